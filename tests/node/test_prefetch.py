"""What a node has brought for its sandboxes: when they begin, run a command, are told what comes, and end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace

import anyio
import anyio.lowlevel
import msgspec
import pytest

from dsec.base.errors import DsecError
from dsec.distribution.prefetch import PrefetchProgress
from dsec.model.prefetch import PrefetchHint, PrefetchStep
from dsec.model.process import CommandRequest, SessionCommand, SessionRequest
from dsec.model.sandbox import SandboxSpec
from dsec.node import prefetch
from dsec.node.node import Node
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio


class Recorded:
    """Writes down what is asked for."""

    def __init__(self, *programs: str) -> None:
        self.told: list[tuple[str, ...]] = []
        self._programs = frozenset(programs)

    def programs(self, images: Sequence[str]) -> frozenset[str] | None:
        return self._programs

    def begin(self, owner: str, steps: Sequence[PrefetchStep], *, is_guess: bool = False) -> PrefetchProgress:
        self.told.append((owner, *(["guess"] if is_guess else []), *(step.command for step in steps)))
        return PrefetchProgress(wanted=len(steps))

    def stop(self, owner: str) -> None:
        self.told.append(("stop", owner))

    def untouched(self, images: Sequence[str], ago_s: float) -> bool:
        self.told.append(("untouched", *images))
        return True

    def keep_first_use(self, images: Sequence[str]) -> None:
        self.told.append(("kept", *images))


def _node(recorded: Recorded, **settings: object) -> AbstractAsyncContextManager[Node]:
    parts = MemoryHost().parts()
    changed = msgspec.structs.replace(parts.settings, **settings)
    return Node.open(replace(parts, prefetches=recorded, settings=changed))


async def _wait_told(recorded: Recorded, *told: str) -> None:
    with anyio.fail_after(60):
        while told not in recorded.told:  # noqa: ASYNC110 - a thread of the node's writes it down
            await anyio.sleep(0.002)


async def test_a_sandbox_has_its_image_s_first_use_brought_then_its_commands_and_nothing_after_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefetch, "GUESSED_AFTER_S", 3600.0)
    recorded = Recorded("", "pytest", "make")
    async with _node(recorded) as node:
        box = (await node.create(SandboxSpec())).sandbox_id
        await _wait_told(recorded, box, "guess", "")
        for script in ("pytest -q", "pytest tests", "ls"):
            await node.run(box, CommandRequest(argv=("sh", "-c", script)))
        await _wait_told(recorded, box, "pytest")
        session = await node.open_session(box, SessionRequest())
        with suppress(DsecError):  # The fake's shell runs nothing.
            await node.run_in_session(box, session.session_id, SessionCommand(script="cd /x && make", timeout_s=0.01))
        await _wait_told(recorded, box, "make")
        hint = PrefetchHint(sandbox_id=box, steps=(PrefetchStep(images=("python",), command="git"),))
        assert (await node.prefetch.hint(hint)).wanted == 2
        await _wait_told(recorded, box, "make", "git")
        await node.rollback(box)
        assert (await node.prefetch.hint(hint)).wanted == 2, "a rollback is not the end"
        await node.remove(box)
        await _wait_told(recorded, "stop", box)
    told = [
        (box, "guess", ""),
        (box, "pytest"),
        (box, "make"),
        (box, "make", "git"),
        (box, "make", "git"),
        ("stop", box),
    ]
    assert recorded.told == told


async def test_the_first_use_is_brought_whole_when_nothing_begins_or_what_begins_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = Recorded("", "pytest")
    for wait_s, script in ((0.0, ""), (3600.0, "ls")):
        monkeypatch.setattr(prefetch, "GUESSED_AFTER_S", wait_s)
        async with _node(recorded) as node:
            box = (await node.create(SandboxSpec())).sandbox_id
            await _wait_told(recorded, box, "guess", "")
            if script:
                await node.run(box, CommandRequest(argv=("sh", "-c", script)))
            await _wait_told(recorded, box, "")


async def test_of_an_image_with_one_trace_that_is_brought_whole() -> None:
    recorded = Recorded("")
    async with _node(recorded) as node:
        box = (await node.create(SandboxSpec())).sandbox_id
        await _wait_told(recorded, box, "")


async def test_of_an_image_of_which_nothing_is_known_nothing_is_brought_and_its_first_use_is_kept() -> None:
    recorded = Recorded()
    async with _node(recorded, trace_s=0.001) as node:
        box = (await node.create(SandboxSpec(image="python"))).sandbox_id
        await _wait_told(recorded, "kept", "python")
        await node.remove(box)
    assert ("untouched", "python") in recorded.told


async def test_hints_for_what_is_to_come_belong_to_who_gives_them() -> None:
    recorded = Recorded()
    async with _node(recorded) as node:
        steps = (PrefetchStep(images=("python",), command="a"), PrefetchStep(images=("python",), command="b"))
        assert (await node.prefetch.hint(PrefetchHint(owner="rollout", steps=steps))).wanted == 2
        await node.prefetch.hint(PrefetchHint(owner="rollout"))
    assert recorded.told == [("hint rollout", "a", "b"), ("stop", "hint rollout")]
