"""Workers, nodes and stores that die at any step, between an effect and its record too; judged by an independent model.

``DSEC_CRASH_HISTORIES=5000`` plays as many histories, ``DSEC_CRASH_FIRST=1000`` begins with that seed. A failure names
the seeds: ``DSEC_CRASH_FIRST=<seed> DSEC_CRASH_HISTORIES=1`` plays one again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from dsec.base.errors import DsecError
from dsec.episode import recovery
from dsec.episode.operations import Effect, Operation
from dsec.episode.recovery import AwaitVerdict, RunOperation
from dsec.stores import episode_log_remote, episode_log_upload
from dsec.stores.episode_log_group import DurableLog
from dsec.testing.crash_plan import CrashPlan
from dsec.testing.episode_checker import check_history
from dsec.testing.simulated_disk import SimulatedDisk
from dsec.testing.worker_crashes import Crashes, Tally
from dsec.worker.episodes.drive import EpisodeDrive
from dsec.worker.episodes.environments.workspace import SandboxWorkspace
from dsec.worker.outside.hands import OutsideHands

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
HISTORIES = int(os.environ.get("DSEC_CRASH_HISTORIES", "40"))
FIRST = int(os.environ.get("DSEC_CRASH_FIRST", "0"))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nodes warn of what they find after each of their deaths."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    yield
    structlog.reset_defaults()


async def play(plan: CrashPlan, directory: Path, tally: Tally, *, enough_s: float = 120.0) -> None:
    directory.mkdir()
    crashes = Crashes(plan, directory, enough_s=enough_s)
    history = await crashes.run()
    tally.add(crashes, history, check_history(history))


@pytest.mark.timeout(3600)
async def test_whatever_dies_every_promise_is_kept(tmp_path: Path) -> None:
    tally = Tally()
    for seed in range(FIRST, FIRST + HISTORIES):
        try:
            await play(CrashPlan.drawn(seed), tmp_path / str(seed), tally)
        except (AssertionError, DsecError, TimeoutError, BaseExceptionGroup) as error:
            tally.problems[seed] = [f"it did not end: {error!r}"]
    assert not tally.problems, {seed: problems[:3] for seed, problems in tally.problems.items()}
    if HISTORIES >= 40:  # Otherwise it tested less than it says.
        assert tally.deaths > HISTORIES
        assert tally.node_deaths > HISTORIES / 20
        assert min(tally.unknown, tally.effects, tally.undone, tally.complete, tally.incomplete) > 0


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
async def test_whatever_step_a_worker_dies_at_every_promise_is_kept(power: bool, tmp_path: Path) -> None:
    plan = CrashPlan(seed=5, rounds=3, deaths=0, node_deaths=0, power=power, store=0.0, trouble=0.0, dear_s=0.0)
    unharmed = Crashes(plan, tmp_path)
    assert check_history(await unharmed.run()) == []
    assert unharmed.steps > 60  # Saves that meet share steps, so that their number differs from run to run.
    tally = Tally()
    stride = 1 if os.environ.get("DSEC_CRASH_STEPS") == "all" else 12
    for step in range(1 + power, unharmed.steps + 1, stride):
        # The life after it dies, too, in the middle of its recovery or somewhere behind.
        dying = replace(plan, seed=5 if step % 2 else step, deaths=2, kills=(step, 1 + step * 7 % 40))
        await play(dying, tmp_path / str(step), tally)
        assert not tally.problems, (step, tally.problems)


# -- the judge finds what is broken in the real parts, not only in what was written for it -----------------------------


class Broken:
    """Ways to break a promise in a real part, by the plan that shows it and what the judge has to say then."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def announcements_are_not_saved(self) -> None:
        async def announce(log: DurableLog, *events: Any) -> None:
            for event in events:
                await log.note(event)

        self._patch.setattr(DurableLog, "announce", announce)

    def what_is_unknown_is_run_again(self) -> None:
        self._decide(lambda operation: operation.effect is Effect.ONCE, run=True)

    def what_is_unknown_is_asked_of_nobody(self) -> None:
        """Whoever can be asked is not, and the operation is run again."""

        async def ask(hands: OutsideHands, operation: Operation) -> None:
            return None

        self._patch.setattr(OutsideHands, "ask", ask)

    def what_can_be_asked_is_called_unknown(self) -> None:
        self._decide(lambda operation: operation.effect is Effect.ASKED, run=False)

    def nothing_is_undone(self) -> None:
        async def compensate(hands: OutsideHands, operation: Operation) -> None:
            return None

        self._patch.setattr(OutsideHands, "compensate", compensate)

    def the_disk_lies(self) -> None:
        self._patch.setattr(SimulatedDisk, "sync", lambda disk, handle: None)

    def watchers_see_what_is_not_saved(self) -> None:
        def saved(drive: EpisodeDrive) -> int:
            holding = drive._holding
            return holding.log.log.next_sequence - 1 if holding is not None else 0

        self._patch.setattr(EpisodeDrive, "saved_sequence", property(saved, lambda drive, value: None), raising=False)

    def the_workspace_is_left_as_it_is(self) -> None:
        async def restore(workspace: SandboxWorkspace, version: str) -> None:
            return None

        self._patch.setattr(SandboxWorkspace, "restore", restore)

    def readers_pass_over_gaps(self) -> None:
        read = episode_log_remote.read_content

        def read_on(joined: Any, *, name: str, problem: str = "") -> Any:
            content = read(joined, name=name, problem=problem)
            return type(content)(
                **{field: getattr(content, field) for field in content.__slots__ if field != "completeness"},
                completeness=episode_log_remote.Completeness.COMPLETE,
            )

        self._patch.setattr(episode_log_remote, "read_content", read_on)

    def the_watermark_counts_what_has_gaps(self) -> None:
        """It counts what is under way as stored."""
        advance = episode_log_upload._Progress.advance

        def advance_all(progress: Any, epoch: int) -> Any:
            for one in progress.batches:
                one.stored = True
            return advance(progress, epoch)

        self._patch.setattr(episode_log_upload._Progress, "advance", advance_all)

    def results_of_a_dead_life_are_taken_for_ours(self) -> None:
        """A round that was begun is played again from its beginning, whatever was recorded of it."""
        plan = recovery._action

        def again(open_round: Any, operation: Operation, *, anew: bool) -> Any:
            found = plan(open_round, operation, anew=anew)
            attempt = open_round.attempts.get(operation.operation_id, 0) + 1
            return (
                RunOperation(operation_id=operation.operation_id, attempt=attempt, reason="") if attempt > 1 else found
            )

        self._patch.setattr(recovery, "_action", again)

    def _decide(self, concerns: Callable[[Operation], bool], *, run: bool) -> None:
        undecided = recovery._undecided

        def decide(operation: Operation, attempt: int) -> Any:
            if not concerns(operation):
                return undecided(operation, attempt)
            name = operation.operation_id
            if run:
                return RunOperation(operation_id=name, attempt=attempt, reason="it is tried again")
            return AwaitVerdict(operation_id=name, reason="nobody was asked")

        self._patch.setattr(recovery, "_undecided", decide)


BROKEN = {
    "announcements_are_not_saved": "happened, and n",
    "what_is_unknown_is_run_again": "nobody knows what became of it",
    "what_is_unknown_is_asked_of_nobody": "in effect 2 times",
    "what_can_be_asked_is_called_unknown": "were called unknown",
    "nothing_is_undone": "in effect 2 times",
    "the_disk_lies": "it did not end",
    "watchers_see_what_is_not_saved": "was told",
    "the_workspace_is_left_as_it_is": "the workspace holds",
    "readers_pass_over_gaps": "called complete",
    "the_watermark_counts_what_has_gaps": "the watermark promises",
    "results_of_a_dead_life_are_taken_for_ours": "it did not end",
}
_PLAN = {"deaths": 6, "node_deaths": 0, "store": 0.0, "trouble": 0.3}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_promise_that_is_broken_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    getattr(Broken(monkeypatch), name)()
    found: list[str] = []
    for seed in range(100):  # Most are found in the first few; one in ten tells a watcher too much.
        tally = Tally()
        try:
            await play(CrashPlan(seed=seed, **_PLAN), tmp_path / str(seed), tally, enough_s=1.5)
        except (AssertionError, DsecError, TimeoutError, BaseExceptionGroup) as error:
            # The parts behind the broken one may refuse to go on: that is found, too.
            found.append(f"it did not end: {error!r}")
        found += tally.problems.get(seed, [])
        if any(BROKEN[name] in problem for problem in found):
            break
    assert any(BROKEN[name] in problem for problem in found), found[:5]
