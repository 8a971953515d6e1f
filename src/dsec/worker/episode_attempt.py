"""An attempt whose play is an episode: it survives its runner, and whoever comes next goes on with it.

::

    image ─► find the episode ─► follow it ─► its end ─► verify ─► grade
                │      └ none: start one         ├ stopped by its model's service: left open, for the next run
                └ ended, not verified yet:       ├ stopped otherwise: given up, another try
                  its last version, verify       └ waits for somebody: unknown, left open

The sandbox is the episode's. A runner that dies, or is interrupted, leaves both; they are found by their names, which
follow from rollout, task, attempt and try. A sandbox ends by itself when nobody has come for hours.
"""

from __future__ import annotations

from hashlib import blake2b

import anyio
import msgspec

from dsec.base.errors import (
    BackendFailedError,
    DsecError,
    InvalidStateError,
    SandboxNotFoundError,
    UnknownOutcomeError,
    error_from_code,
)
from dsec.episode.failure_kinds import DEADLINE_PASSED
from dsec.episode.operations import Effect
from dsec.episode.prices import Cost, endpoint_prices, model_cost
from dsec.episode.spec import (
    AgentPolicy,
    EpisodeEnvironment,
    EpisodeFilter,
    EpisodeGrade,
    EpisodeInfo,
    EpisodeLimits,
    EpisodeSpec,
    EpisodeState,
)
from dsec.episode.tools import CommandOutput
from dsec.model.sandbox import SandboxFilter, SandboxSpec, SandboxState
from dsec.service.episodes import EpisodeService
from dsec.service.state import HasState
from dsec.verification.attempt_result import AttemptResult, EpisodeRecord
from dsec.verification.faults import Judgement, Phase
from dsec.verification.outcome import Outcome, Verdict
from dsec.verification.stages import Stage
from dsec.worker.attempt import LIFETIME_SLACK_S, Attempt, Try
from dsec.worker.episode_play import EpisodePlay
from dsec.worker.episodes.drive import CANCELLED
from dsec.worker.episodes.environments.sandboxes import EPISODE_KEY
from dsec.worker.episodes.ports import first_version
from dsec.worker.play import PolicyEnd
from dsec.worker.policies.port import PolicyContext

ABSENCE_S = 4 * 3600.0
"""For so long the sandbox of an episode waits for a runner that died or was interrupted."""
BY = "verification"
_MARK = "-t"
_HELD = (EpisodeState.STOPPED, EpisodeState.PAUSED)


def episode_id_of(rollout_id: str, task: str, attempt: int, number: int) -> str:
    """Return the id of the episode of a try, which whoever comes next finds again."""
    digest = blake2b(task.encode(), digest_size=6).hexdigest()
    return f"ep-{rollout_id.partition('-')[2]}-{digest}-a{attempt}{_MARK}{number}"


def _effect_of_commands(sandbox: SandboxSpec) -> Effect:
    """Return what commands may do: with a network, things that no restored file undoes."""
    return Effect.ONCE if sandbox.network.rules else Effect.WORKSPACE


def _try_number(episode_id: str) -> int:
    number = episode_id.rpartition(_MARK)[2]
    return int(number) if number.isdecimal() else 0


def seed_of(seed: int, task: str, attempt: int) -> int:
    """Return the seed of an attempt, from that of the rollout: the same for all its tries."""
    digest = blake2b(f"{seed}.{attempt}.{task}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1


class EpisodeAttempt(Attempt):
    """One attempt at one task, as an episode."""

    _left_open = False
    _followed: EpisodePlay | None = None
    _tries = 0

    async def run(self) -> tuple[AttemptResult, CommandOutput | None]:
        """Play the attempt to its verdict, and tell the worker what it was worth."""
        result, tests = await super().run()
        followed = self._followed
        if followed is not None and followed.ended is not None and result.outcome.is_verdict:
            passed = result.outcome is Outcome.PASSED
            grade = EpisodeGrade(passed=passed, reward=result.verdict.reward, by=BY)
            await self._episodes.grade(followed.episode_id, grade)
        return result, tests

    async def release(self, result: AttemptResult) -> None:
        """Remove the sandbox, now that the verdict is on the disk: until then it is what the attempt is worth."""
        if self._followed is not None and result.outcome.is_verdict:
            timeout_s = self._context.settings.cleanup_timeout_s
            with anyio.move_on_after(timeout_s, shield=True):
                await self._remove_sandboxes(self._followed.episode_id)

    @property
    def _episodes(self) -> EpisodeService:
        assert self._context.episodes is not None
        return self._context.episodes

    async def _try(self, current: Try) -> Judgement:
        judgement = await super()._try(current)
        if not self._left_open:
            return judgement
        rounds = current.play.round_count if current.play is not None else 0
        reason = f"{judgement.verdict.reason}; its {rounds} rounds are kept, and another run goes on from there"
        verdict = msgspec.structs.replace(judgement.verdict, reason=reason)
        return Judgement(verdict=verdict)

    async def _destroy(self, current: Try) -> None:
        """Remove what only the tests needed; the episode's own sandbox is removed once the verdict is on the disk."""
        kept = current.sandboxes[:1]
        current.sandboxes = current.sandboxes[1:]
        await super()._destroy(current)
        current.sandboxes = kept + current.sandboxes

    # -- the play ------------------------------------------------------------------------------------------------------

    async def _play(self, current: Try) -> str:
        await self._find_image(current)
        current.enter(Phase.POLICY)
        play = await self._earlier()
        if play is None:
            play = EpisodePlay(self._episodes, (await self._start(current)).episode_id)
            current.play = self._followed = play
        else:
            current.play = self._followed = play
            await self._go_on(play)
        began_s = self._context.clock.wall_s()
        info = await play.follow()
        self._count(play, began_s)
        return await self._judge(current, play, info)

    async def _earlier(self) -> EpisodePlay | None:
        """Return the newest episode of this attempt that an earlier run, or try, left and that can be gone on with."""
        query = EpisodeFilter(job=self._context.rollout_id, task=self._task.name)
        found = [info for info in await self._episodes.list(query) if info.attempt == self._number]
        newest = max(found, key=lambda info: _try_number(info.episode_id), default=None)
        self._tries = _try_number(newest.episode_id) if newest is not None else 0
        if newest is None or newest.error_code == CANCELLED:
            return None
        play = EpisodePlay(self._episodes, newest.episode_id)
        await play.catch_up()
        # Before its end the worker finds its sandbox, or says that there is none.
        if newest.state is EpisodeState.ENDED and (play.is_failing or not await self._sandboxes(newest.episode_id)):
            await self._remove_sandboxes(newest.episode_id)
            return None
        return play

    async def _sandboxes(self, episode_id: str) -> list[str]:
        """Return the sandboxes that carry an episode's name and can be used."""
        found = await self._context.service.list(SandboxFilter(metadata={EPISODE_KEY: episode_id}))
        usable = (SandboxState.READY, SandboxState.PAUSED, SandboxState.MIGRATING, SandboxState.ROLLING_BACK)
        return [info.sandbox_id for info in found if info.state in usable]

    async def _last_sandbox(self, play: EpisodePlay) -> str:
        """Return the sandbox that an ended episode left; a death may have left another beside it.

        Raises:
            SandboxNotFoundError: there is none.
        """
        found = await self._sandboxes(play.episode_id)
        if len(found) > 1:
            assert isinstance(self._context.service, HasState)
            listed = {name: await self._context.service.state.list_checkpoints(name) for name in found}
            wanted = play.workspace or first_version(play.episode_id)
            found = [name for name in found if wanted in (each.name for each in listed[name])]
        if not found:
            raise SandboxNotFoundError(f"episode {play.episode_id} left no sandbox")
        return found[0]

    async def _start(self, current: Try) -> EpisodeInfo:
        number = self._tries + 1
        episode_id = episode_id_of(self._context.rollout_id, self._task.name, self._number, number)
        return await self._episodes.start(self._episode_spec(current), episode_id=episode_id)

    def _episode_spec(self, current: Try) -> EpisodeSpec:
        task, options, policy = self._task, self._context.options, self._context.policy
        assert policy.episode is not None
        context = PolicyContext(task=task, attempt=self._number, environ=self._context.settings.environ)
        sandbox = self._spec(current.image, slack_s=LIFETIME_SLACK_S + ABSENCE_S)
        return EpisodeSpec(
            task=task.name,
            instruction=task.instruction,
            policy=policy.episode(context),
            environment=EpisodeEnvironment(sandbox=sandbox, mode=options.mode, keep=True),
            shell_effect=(options.commands or _effect_of_commands(sandbox)).value,
            job=self._context.rollout_id,
            attempt=self._number,
            seed=seed_of(options.seed, task.name, self._number),
            durability=options.durability,
            limits=EpisodeLimits(
                rounds=self._context.settings.maximum_rounds,
                deadline_s=task.agent_timeout_s,
                cost_usd=options.cost_usd,
            ),
        )

    async def _go_on(self, play: EpisodePlay) -> None:
        """Let an episode of an earlier run go on, with the model that is asked now."""
        self._count_before(play)
        await self._extend_life(play.episode_id)
        info = await self._episodes.get(play.episode_id)
        if info.state is EpisodeState.ENDED:
            # Its tests may have been running when the runner died: what the policy left is put back before they run.
            version = play.workspace or first_version(play.episode_id)
            await self._context.service.rollback(await self._last_sandbox(play), snapshot=version)
            return
        wanted, was = self._context.options.model, (await self._episodes.spec(info.episode_id)).policy
        moved = isinstance(was, AgentPolicy) and wanted is not None and was.model != wanted
        if info.state is not EpisodeState.WAITING and (moved or info.state in _HELD):
            await self._episodes.resume(info.episode_id, model=wanted if moved else None)

    async def _extend_life(self, episode_id: str) -> None:
        """Give what is left of an earlier run as long as a sandbox of this one would have."""
        for info in await self._context.service.list(SandboxFilter(metadata={EPISODE_KEY: episode_id})):
            try:
                await self._context.service.extend(info.sandbox_id, info.spec.lifetime)
            except DsecError:
                continue  # It is gone, or goes; the worker finds another way.

    async def _judge(self, current: Try, play: EpisodePlay, info: EpisodeInfo) -> str:
        """Return the sandbox to verify.

        Raises:
            DsecError: there is nothing to verify.
        """
        if info.state is EpisodeState.WAITING:
            self._left_open = True
            raise UnknownOutcomeError(
                f"episode {info.episode_id} waits for a verdict on {len(info.unknown)} operations",
                detail=info.reason,
                resolution="say what became of them (docs/agents.md), and run the rollout again",
            )
        if info.state is EpisodeState.STOPPED:
            error = error_from_code(info.error_code, info.reason or "the episode stopped")
            self._left_open = isinstance(error, BackendFailedError)
            if not self._left_open:
                await self._give_up(info, info.reason)
            if isinstance(error, InvalidStateError):
                # Its workspace cannot be put back: the sandbox went, with the versions in it.
                raise SandboxNotFoundError(info.reason) from error
            raise error
        assert play.ended is not None
        timed_out = play.ended.error_code == DEADLINE_PASSED
        if timed_out and play.is_failing:
            raise BackendFailedError(
                f"the model's service failed until the time of episode {info.episode_id} was over",
                resolution="see to the service; the attempt says nothing about the policy",
            )
        current.end = PolicyEnd(reason=play.ended.reason, timed_out=timed_out)
        sandbox_id = await self._last_sandbox(play)
        current.sandboxes.append(sandbox_id)
        return sandbox_id

    async def _give_up(self, info: EpisodeInfo, why: str) -> None:
        if info.state is not EpisodeState.ENDED:
            await self._episodes.cancel(info.episode_id, reason=why)
        await self._remove_sandboxes(info.episode_id)

    async def _remove_sandboxes(self, episode_id: str) -> None:
        for left in await self._context.service.list(SandboxFilter(metadata={EPISODE_KEY: episode_id})):
            try:
                await self._context.service.remove(left.sandbox_id)
            except DsecError:
                continue  # It carries the rollout's id, and the next sweep removes it.

    # -- the record ----------------------------------------------------------------------------------------------------

    async def _log_end(self, current: Try, error: DsecError | None) -> None:
        """Write nothing: the episode's log is the record."""

    def _count_before(self, play: EpisodePlay) -> None:
        """Count the time since an earlier run began the attempt; that in which nobody drove it, as waiting."""
        began_s = play.use().began_at_s
        now_s = self._context.clock.wall_s()
        last_s = max((moment.end_s for moment in play.moments), default=began_s)
        if began_s <= 0 or began_s >= self._started_at_s:
            return
        seconds = self._started_at_s - began_s
        self._watch.began_before(seconds)
        self._started_at_s -= seconds
        self._watch.add(Stage.WAIT, last_s - began_s, now_s - began_s)

    def _count(self, play: EpisodePlay, began_s: float) -> None:
        """Count what the log says of the time; of the rest since `began_s` rounds were brought to the disk."""
        origin_s, known_s = self._started_at_s, 0.0
        for moment in play.moments:
            end_s = moment.end_s - origin_s
            tools_s = end_s - moment.tools_s
            if moment.create_s:
                self._watch.add(Stage.CREATE, end_s - moment.create_s, end_s)
            else:
                self._watch.add(Stage.DECIDE, tools_s - moment.decide_s, tools_s)
                self._watch.add(Stage.TOOLS, tools_s, end_s)
            if moment.end_s >= began_s:
                known_s += moment.create_s + moment.decide_s + moment.tools_s
        self._watch.count(Stage.RECORD, max(0.0, self._context.clock.wall_s() - began_s - known_s))

    def _result(self, current: Try, verdict: Verdict) -> AttemptResult:
        result = super()._result(current, verdict)
        return msgspec.structs.replace(result, episode=self._record()) if self._followed is not None else result

    def _record(self) -> EpisodeRecord:
        assert self._followed is not None
        use, options = self._followed.use(), self._context.options
        models = (*((options.model,) if options.model is not None else ()), *options.stronger)
        prices = {model.name: priced for model in models if (priced := endpoint_prices(model)) is not None}
        lines = [line for one in use.models for line in model_cost(one, prices.get(one.model))]
        return EpisodeRecord(
            episode_id=self._followed.episode_id,
            models=tuple(self._followed.models),
            lives=use.lives,
            calls=sum(line.calls for line in use.models),
            input_tokens=sum(line.input_tokens for line in use.models),
            cached_tokens=sum(line.cached_tokens for line in use.models),
            output_tokens=sum(line.output_tokens for line in use.models),
            cost_usd=Cost(lines=tuple(lines)).usd if lines else None,
        )
