"""What a trainer asks for when it starts an episode, and what it is told of one.

A spec is all that is needed to begin the episode, and to go on with it in another process: it stands beside the log and
never changes. Secrets are not in it: a model's key is named by the variable of the worker that holds it.
"""

from __future__ import annotations

import enum
import math
from typing import Any

from dsec.base.errors import InvalidRequestError
from dsec.episode.agent_calls import AgentCall
from dsec.episode.durability import Durability, Unsaved
from dsec.episode.endpoint import ModelEndpoint as ModelEndpoint
from dsec.episode.identity import ModelIdentity
from dsec.episode.log_events import LogEvent
from dsec.episode.operations import TokenUsage
from dsec.model.sandbox import SandboxSpec
from dsec.model.value import Value


class AgentPolicy(Value, frozen=True, tag="agent", tag_field="policy", omit_defaults=True):
    """A chat model that calls tools.

    Attributes:
        model: asked first.
        stronger: models that take over on failure, in this order.
        system: what comes before the instruction; empty: the standard text.
        history_bytes: of results that the model is shown at once.
        tools: names of those on offer; empty: all that ship.
    """

    model: ModelEndpoint
    stronger: tuple[ModelEndpoint, ...] = ()
    system: str = ""
    history_bytes: int = 400 * 1024
    tools: tuple[str, ...] = ()


class ScaffoldPolicy(Value, frozen=True, tag="scaffold", tag_field="policy", omit_defaults=True):
    """A scaffold of the trainer's own: a command inside the sandbox, whose whole run is one round.

    Attributes:
        command: for ``/bin/sh``; it finds the instruction in the file that ``DSEC_INSTRUCTION`` names.
        timeout_s: seconds it may take.
        env: variables of it, such as the URL of a model.
    """

    command: str
    timeout_s: float = 3600.0
    env: dict[str, str] = {}


class ScriptRound(Value, frozen=True, omit_defaults=True):
    """One round of a script."""

    calls: tuple[AgentCall, ...] = ()
    message: str = ""


class ScriptPolicy(Value, frozen=True, tag="script", tag_field="policy"):
    """Rounds that are given beforehand."""

    rounds: tuple[ScriptRound, ...]


class ReplayPolicy(Value, frozen=True, tag="replay", tag_field="policy"):
    """What another episode of this worker decided, done again."""

    episode_id: str


class PluginPolicy(Value, frozen=True, tag="plugin", tag_field="policy", omit_defaults=True):
    """A policy that is installed beside the worker: an entry point in the group ``dsec.episode_policies``."""

    name: str
    options: dict[str, Any] = {}


PolicySpec = AgentPolicy | ScaffoldPolicy | ScriptPolicy | ReplayPolicy | PluginPolicy


class EnvironmentMode(enum.Enum):
    """Where an episode's sandbox is while the model thinks.

    RESIDENT: it stands as it is.
    REBUILT: it is given up after each round and made again from its last version, beginning while the model thinks.
    PAUSED: it is paused after each round.
    AUTOMATIC: whichever costs least by the measured times of this episode.
    """

    RESIDENT = "resident"
    REBUILT = "rebuilt"
    PAUSED = "paused"
    AUTOMATIC = "automatic"


class LostFiles(enum.Enum):
    """What to do when files of a committed round are gone with their sandbox, and only earlier ones were saved.

    REFUSED: stop; somebody has to decide.
    EXACT: carry out again, from the newest saved files on, what the log says was done to them; every result has to be
        what it was.
    TOLERATED: the same, and go on where results differ, which is written down.
    """

    REFUSED = "refused"
    EXACT = "exact"
    TOLERATED = "tolerated"


class EpisodeEnvironment(Value, frozen=True, omit_defaults=True):
    """The sandbox that an episode acts on.

    Attributes:
        sandbox: what is made for it; its metadata are given the episode and its job.
        sandbox_id: one that exists and is the episode's alone from now on; `sandbox` is not heeded then.
        cwd: where commands run, and what paths that are not absolute begin at; empty: the image's own.
        user: of the commands; empty: the image's own.
        mode: where it is while the model thinks.
        keep: leave it when the episode has ended; one that was given by id is always left.
        snapshot_rounds: after so many rounds its files are saved in the store, so that the episode outlives the node;
            0: never. With 1, an environment that is rebuilt leaves nothing on its node between rounds.
        lost_files: what to do when the sandbox is gone and the newest files in the store are older than the log.
        preparations: command for ``/bin/sh`` that makes a sandbox ready for a tool, by the tool's name, such as the
            start of a database before tests; run once in each sandbox, ahead of the tool's first use there.
    """

    sandbox: SandboxSpec = SandboxSpec()
    sandbox_id: str = ""
    cwd: str = ""
    user: str = ""
    mode: EnvironmentMode = EnvironmentMode.RESIDENT
    keep: bool = False
    snapshot_rounds: int = 0
    lost_files: LostFiles = LostFiles.EXACT
    preparations: dict[str, str] = {}


class DeadlineMode(enum.Enum):
    """EVALUATE: the episode goes on, and what came late is counted as late. ENFORCE: it ends."""

    EVALUATE = "evaluate"
    ENFORCE = "enforce"


class EpisodeLimits(Value, frozen=True, omit_defaults=True):
    """When an episode ends by itself.

    Attributes:
        rounds: it has so many.
        useless_rounds: so many rounds in a row held no call that could be carried out.
        calls: of one decision; what is beyond is answered with a failure and not carried out.
        deadline_s: seconds from its start, pauses of its job excepted; None: none.
        deadline_mode: what the deadline means.
        cost_usd: what its models may cost; None: no limit.
    """

    rounds: int = 10_000
    useless_rounds: int = 5
    calls: int = 64
    deadline_s: float | None = None
    deadline_mode: DeadlineMode = DeadlineMode.ENFORCE
    cost_usd: float | None = None


class EpisodeCheck(Value, frozen=True, omit_defaults=True):
    """A command that says whether a submission is accepted; one that is not goes back to who decides, with its output.

    It runs in the episode's own sandbox, which the agent may have changed: it is a help to the agent, and no verdict.

    Attributes:
        command: for ``/bin/sh``, in the episode's directory; exit code 0 accepts.
        timeout_s: seconds it may take; longer is not accepted.
        user: it runs as; empty: the image's own.
        shown_bytes: of the end of its output that the agent is told; 0: only that it failed.
    """

    command: str
    timeout_s: float = 600.0
    user: str = ""
    shown_bytes: int = 8 * 1024


class EpisodeRecovery(Value, frozen=True, omit_defaults=True):
    """What is tried when an episode does not go well (docs/recovery-tree.md).

    Attributes:
        repairs: how often one model is told what is wrong and goes on; then a stronger one takes over, if there is one.
        worth_usd: what success is worth; None: success goes before money.
        least_success: what is less likely to help is not tried.
        enough: tries from which on a measured probability is believed.
    """

    repairs: int = 2
    worth_usd: float | None = None
    least_success: float = 0.02
    enough: int = 20


class OutsideSpec(Value, frozen=True, omit_defaults=True):
    """A system outside the sandbox that the tools of an episode may use, by an adapter that the worker has.

    Attributes:
        name: of the tool, as the model calls it.
        adapter: ``http`` or ``postgresql``, or one that is installed (entry points ``dsec.outside_systems``).
        options: of the adapter.
    """

    name: str
    adapter: str
    options: dict[str, Any] = {}


class EpisodeSpec(Value, frozen=True, omit_defaults=True):
    """All that is needed to begin an episode, and to go on with it elsewhere.

    Attributes:
        task: the task's name.
        instruction: what is to be done, for the policy.
        policy: who decides.
        environment: what it acts on.
        job: groups episodes; their sandboxes carry it, so that a job is paused as one.
        attempt: number of the attempt at the task, from 1.
        seed: of everything random in it that we draw.
        durability: when a round is saved.
        limits: when it ends by itself.
        check: says whether a submission is accepted; None: each is.
        recovery: what is tried when it does not go well.
        outside: systems outside that its tools may use.
        shell_effect: what commands may do; `Effect.ONCE.value` where their sandbox reaches systems outside.
        metadata: the trainer's own.
    """

    task: str
    policy: PolicySpec
    instruction: str = ""
    environment: EpisodeEnvironment = EpisodeEnvironment()
    job: str = ""
    attempt: int = 1
    seed: int = 0
    durability: Durability = Durability()
    limits: EpisodeLimits = EpisodeLimits()
    check: EpisodeCheck | None = None
    recovery: EpisodeRecovery = EpisodeRecovery()
    outside: tuple[OutsideSpec, ...] = ()
    shell_effect: str = "workspace"
    metadata: dict[str, str] = {}


class EpisodeState(enum.Enum):
    """Where an episode is.

    QUEUED: it waits for its turn in the worker.
    RUNNING: its loop runs.
    WAITING: an operation is UNKNOWN; somebody has to settle it.
    PAUSED: it was asked to stand still (a preemption), or its job was; its loop is kept.
    STOPPED: its loop stopped by an error and can be resumed.
    ENDED: it is over, cancelled or not.
    """

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    STOPPED = "stopped"
    ENDED = "ended"


class UnknownOperation(Value, frozen=True):
    """An operation that began, must not run twice, and has no recorded result.

    Attributes:
        operation_id: of it.
        call: what it was to do.
        reason: why nobody knows.
        number: of its round.
    """

    operation_id: str
    call: AgentCall
    reason: str
    number: int


class EpisodeGrade(Value, frozen=True, omit_defaults=True):
    """What somebody found the result of an episode to be; it is kept beside the log.

    Attributes:
        passed: whether the task is done.
        reward: of the trainer's own scale.
        by: who says so.

    Raises:
        InvalidRequestError: the reward is no number.
    """

    passed: bool
    reward: float | None = None
    by: str = ""

    def __post_init__(self) -> None:
        if self.reward is not None and not math.isfinite(self.reward):
            raise InvalidRequestError(f"a reward of {self.reward} cannot be kept", resolution="give a finite number")


class EpisodeInfo(Value, frozen=True, omit_defaults=True):
    """What is known of an episode now.

    Attributes:
        episode_id, task, attempt, job, policy: from its spec; `policy` is its tag.
        state: where it is.
        reason: why it ended, stopped or waits, in words; `error_code` names the error.
        rounds: committed ones.
        next_sequence: of its log: what a watcher that has seen all asks for next.
        uploaded_sequence: up to which the store has it without a gap.
        unsaved: rounds and operations that were answered and are not on the disk.
        unknown: operations that wait for a verdict.
        sandbox_id: the present one; empty: there is none now.
        model: who decides now.
        usage: of its models so far, failed calls included.
        grade: if it was graded.
        created_at_s, ended_at_s: wall-clock seconds since the epoch; 0: not yet.
        lives: how often its loop was begun.
    """

    episode_id: str
    task: str
    state: EpisodeState
    attempt: int = 1
    job: str = ""
    policy: str = ""
    reason: str = ""
    error_code: str = ""
    rounds: int = 0
    next_sequence: int = 1
    uploaded_sequence: int = 0
    unsaved: Unsaved = Unsaved(rounds=0, operations=0)
    unknown: tuple[UnknownOperation, ...] = ()
    sandbox_id: str = ""
    model: ModelIdentity = ModelIdentity()
    usage: TokenUsage = TokenUsage(calls=0)
    grade: EpisodeGrade | None = None
    created_at_s: float = 0.0
    ended_at_s: float = 0.0
    lives: int = 0


class EpisodeFilter(Value, frozen=True, omit_defaults=True):
    """Which episodes are wanted; everything given has to hold. None given: all."""

    job: str = ""
    task: str = ""
    states: tuple[EpisodeState, ...] = ()
    metadata: dict[str, str] = {}


class EpisodeEvent(Value, frozen=True):
    """A saved event of an episode's log, with its sequence: what a watcher keeps as its offset is `sequence` + 1."""

    sequence: int
    event: LogEvent
