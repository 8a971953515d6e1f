"""One attempt at a task: sandbox, rounds, verification, clean-up, and again when the platform failed.

::

    create ─► play rounds ─► verify ─► verdict
       │            │            │
       └────────────┴────────────┴── error ─► judge_error(phase) ─► verdict, or another try after 1, 3, 9 s

Every try has its own sandbox, which is removed whatever happens, also when the run is cancelled: the removal is
shielded and bounded in time. What it could not remove carries the rollout's id in its metadata and is found by the next
sweep. How the rounds are played is one step, which attempts that are episodes do otherwise
(`dsec.worker.episode_attempt`).
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
import msgspec

from dsec.base.clock import Clock
from dsec.base.errors import DsecError, InvalidStateError, SandboxExitedError, SandboxNotFoundError
from dsec.episode.content import recordable
from dsec.episode.retry import next_delay_s
from dsec.episode.tools import CommandOutput
from dsec.episode.trajectory import TryBegan, TryEnded, encode_event
from dsec.model.image import ImageConfig
from dsec.model.sandbox import Lifetime, SandboxSpec, SandboxState
from dsec.service.episodes import EpisodeService
from dsec.service.port import SandboxService
from dsec.verification.attempt_result import AttemptResult, TestsRecord, excerpt
from dsec.verification.faults import Judgement, Phase, judge_error
from dsec.verification.outcome import Verdict
from dsec.verification.stages import Stage
from dsec.worker.framed_log import FramedLog
from dsec.worker.play import Play, Played, PolicyEnd
from dsec.worker.policies.episodes import EpisodeOptions
from dsec.worker.policies.port import PolicyContext, PolicySource
from dsec.worker.settings import RolloutSettings, VerifyIn
from dsec.worker.stages import Stopwatch
from dsec.worker.tasks.images import TaskImages
from dsec.worker.tasks.support import task_network, task_resources
from dsec.worker.tasks.task import Task
from dsec.worker.tasks.variables import resolve_variables
from dsec.worker.toolbox import Toolbox
from dsec.worker.verify import tests_environment, transplant, transplanted_paths, verify

LIFETIME_SLACK_S = 900.0
"""Beyond the task's own time limits: a sandbox whose runner vanished ends by itself."""


@dataclass(slots=True, kw_only=True)
class Try:
    """What is known of the current try."""

    phase: Phase = Phase.CREATE
    sandboxes: list[str] = field(default_factory=list)
    image: str = ""
    image_config: ImageConfig = field(default_factory=ImageConfig)
    play: Played | None = None
    end: PolicyEnd | None = None
    tests: CommandOutput | None = None

    def enter(self, phase: Phase) -> None:
        self.phase = phase

    def guest_s(self) -> float:
        tests_s = self.tests.duration_s if self.tests else 0.0
        return tests_s + (self.play.guest_s() if self.play else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptContext:
    """What all attempts of a rollout share.

    Attributes:
        service: drives the sandboxes.
        policy: makes the policies.
        settings: the rollout's settings.
        rollout_id: goes into every sandbox's metadata.
        images: images of tasks.
        clock: tells the time.
        episodes: plays those that are episodes; None: none is.
        options: how they are played.
        sleep: waits; a parameter so that tests need not.
    """

    service: SandboxService
    policy: PolicySource
    settings: RolloutSettings
    rollout_id: str
    images: TaskImages
    clock: Clock
    episodes: EpisodeService | None = None
    options: EpisodeOptions = field(default_factory=EpisodeOptions)
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep


class Attempt:
    """One attempt at one task."""

    def __init__(self, context: AttemptContext, task: Task, number: int, *, lane: int, log: FramedLog) -> None:
        self._context = context
        self._task = task
        self._number = number
        self._lane = lane
        self._log = log
        self._watch = Stopwatch(context.clock)
        self._started_at_s = context.clock.wall_s()
        self._broken: list[str] = []
        self._guest_s = 0.0

    async def run(self) -> tuple[AttemptResult, CommandOutput | None]:
        """Play the attempt to its verdict; return its record and the whole output of the tests."""
        while True:
            current = Try()
            judgement = await self._try(current)
            self._guest_s += current.guest_s()
            delay_s = next_delay_s(len(self._broken) + 1, backoff_s=self._context.settings.backoff_s)
            if not judgement.retry or delay_s is None:
                return self._result(current, judgement.verdict), current.tests
            self._broken.append(judgement.verdict.reason)
            with self._watch.stage(Stage.WAIT):
                await self._context.sleep(delay_s)

    async def release(self, result: AttemptResult) -> None:
        """Let go of what was kept until the result is on the disk: nothing, where each try removes its own."""

    async def _try(self, current: Try) -> Judgement:
        error: DsecError | None = None
        verdict: Verdict | None = None
        try:
            verdict = await self._steps(current)
        except DsecError as caught:
            error = await self._explained(caught, current)
        except Exception as caught:  # noqa: BLE001 - one attempt's supervisor: a defect of ours must not end thousands of others.
            error = DsecError(f"{type(caught).__name__}: {caught}", detail=traceback.format_exc(limit=-3))
        finally:
            await self._destroy(current)
        await self._log_end(current, error)
        if error is not None:
            return _recordable(judge_error(error, current.phase))
        assert verdict is not None
        return Judgement(verdict=verdict)

    async def _steps(self, current: Try) -> Verdict:
        sandbox_id = await self._play(current)
        with self._watch.stage(Stage.VERIFY):
            return await self._verify(current, sandbox_id)

    async def _play(self, current: Try) -> str:
        """Let the policy play its rounds; return the sandbox that they left."""
        sandbox_id = await self._create(current)
        play = await self._begin(current, sandbox_id)
        current.enter(Phase.POLICY)
        current.end = await play.run(maximum_rounds=self._context.settings.maximum_rounds)
        return sandbox_id

    async def _begin(self, current: Try, sandbox_id: str) -> Play:
        context = PolicyContext(task=self._task, attempt=self._number, environ=self._context.settings.environ)
        policy = self._context.policy.make(context)
        event = TryBegan(
            task=self._task.name,
            attempt=self._number,
            number=len(self._broken) + 1,
            policy=self._context.policy.name,
            sandbox_id=sandbox_id,
            started_at_s=self._context.clock.wall_s(),
        )
        await self._log.append(encode_event(event), durable=False)
        toolbox = Toolbox(self._context.service, sandbox_id)
        current.play = play = Play(policy, toolbox, self._task, self._log, self._watch)
        return play

    async def _find_image(self, current: Try) -> None:
        if not current.image:
            with self._watch.stage(Stage.WAIT):
                current.image = await self._context.images.image_of(self._task)
                current.image_config = await self._context.images.config_of(current.image)
            self._clean_paths(current)

    async def _create(self, current: Try) -> str:
        await self._find_image(current)
        with self._watch.stage(Stage.CREATE):
            timeout_s = self._context.settings.create_timeout_s
            info = await self._context.service.create(self._spec(current.image), timeout_s=timeout_s)
        current.sandboxes.append(info.sandbox_id)
        return info.sandbox_id

    def _clean_paths(self, current: Try) -> tuple[str, ...]:
        """Return what a clean sandbox takes over; raises before anything is created when that cannot be said."""
        if self._context.settings.verify_in is VerifyIn.SAME:
            return ()
        return transplanted_paths(self._task, current.image_config.workdir)

    def _spec(self, image: str, *, slack_s: float = LIFETIME_SLACK_S) -> SandboxSpec:
        task, settings = self._task, self._context.settings
        maximum_s = task.agent_timeout_s + task.verifier_timeout_s + slack_s
        return SandboxSpec(
            image=image,
            resources=task_resources(task, settings.left_out_limits),
            user=task.agent_user,
            env=resolve_variables(task.environment.env, settings.environ, task=task.name),
            workdir=task.environment.workdir,
            network=task_network(task, without_network=settings.without_network),
            lifetime=Lifetime(idle_timeout_s=None, maximum_s=maximum_s),
            metadata={
                "rollout": self._context.rollout_id,
                "task": task.name[:200],
                "attempt": str(self._number),
            },
        )

    async def _verify(self, current: Try, sandbox_id: str) -> Verdict:
        service = self._context.service
        env = resolve_variables(self._task.verifier_env, self._context.settings.environ, task=self._task.name)
        if self._context.settings.verify_in is VerifyIn.CLEAN:
            current.enter(Phase.CREATE)
            clean_id = await self._create(current)
            current.enter(Phase.VERIFY)
            await transplant(service, sandbox_id, clean_id, self._clean_paths(current))
            sandbox_id = clean_id
        assert current.end is not None
        verification = await verify(
            service,
            sandbox_id,
            self._task,
            env=tests_environment(current.image_config.env, env),
            policy_timed_out=current.end.timed_out,
            enter=current.enter,
        )
        current.tests = verification.tests
        return verification.verdict

    async def _explained(self, error: DsecError, current: Try) -> DsecError:
        """Find out who ended a sandbox: the guest, whose fault the error then is, or somebody else."""
        if not isinstance(error, (SandboxExitedError, InvalidStateError)) or not current.sandboxes:
            return error
        try:
            info = await self._context.service.inspect(current.sandboxes[-1])
        except DsecError as lost:
            return lost
        if info.state is SandboxState.FAILED:
            return SandboxExitedError(f"the sandbox ended: {info.cause or error.brief}", detail=error.detail)
        if info.state in (SandboxState.STOPPING, SandboxState.STOPPED) or info.generation > 0:
            return SandboxNotFoundError(f"{info.sandbox_id} was stopped or rolled back by somebody else")
        return error

    async def _destroy(self, current: Try) -> None:
        timeout_s = self._context.settings.cleanup_timeout_s
        with self._watch.stage(Stage.DESTROY), anyio.move_on_after(timeout_s, shield=True):
            for sandbox_id in current.sandboxes:
                try:
                    await self._context.service.remove(sandbox_id)
                except DsecError:
                    # The verdict stands; the sandbox carries the rollout's id and the next sweep removes it.
                    continue

    async def _log_end(self, current: Try, error: DsecError | None) -> None:
        if current.play is None:
            return
        end = current.end or PolicyEnd(reason="")
        event = TryEnded(
            reason=recordable(error.brief if error else end.reason),
            timed_out=end.timed_out,
            error_code=error.code if error else "",
        )
        await self._log.append(encode_event(event), durable=False)

    def _result(self, current: Try, verdict: Verdict) -> AttemptResult:
        result = AttemptResult(
            task=self._task.name,
            attempt=self._number,
            verdict=verdict,
            tries=len(self._broken) + 1,
            policy_end=recordable(current.end.reason) if current.end else "",
            started_at_s=round(self._started_at_s, 6),
            duration_s=round(self._watch.elapsed_s(), 6),
            guest_s=round(self._guest_s, 6),
            lane=self._lane,
            totals_s=self._watch.totals_s,
            segments=self._watch.segments(),
            sandbox_id=current.sandboxes[-1] if current.sandboxes else "",
            image=current.image,
            broken_tries=tuple(self._broken),
        )
        return _with_outputs(result, current)


def _recordable(judgement: Judgement) -> Judgement:
    """Return the judgement with a reason that JSON can hold: errors name paths, and a guest chooses those."""
    verdict = msgspec.structs.replace(judgement.verdict, reason=recordable(judgement.verdict.reason))
    return Judgement(verdict=verdict, retry=judgement.retry)


def _with_outputs(result: AttemptResult, current: Try) -> AttemptResult:
    tests = current.tests
    record = tests and TestsRecord(
        exit_code=tests.exit_code,
        duration_s=tests.duration_s,
        stdout=excerpt(tests.stdout.shown()),
        stderr=excerpt(tests.stderr.shown()),
    )
    rounds, output = (current.play.round_count, current.play.last_output()) if current.play else (0, "")
    return msgspec.structs.replace(result, rounds=rounds, last_output=excerpt(output), tests=record)
