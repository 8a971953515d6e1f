"""What one attempt used: calls of models, executions of tools, an environment over time, and hours on the clock.

Everything here is an amount, and no price is known: what was used stays true when prices change. Amounts are kept in
lines that never overlap, so that a total is the sum of its lines and nothing is counted twice. What a log cannot say is
named (`AttemptUse.missing`): an amount that nobody knows is not zero. Source: the chapter, section 11.5.2.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable

from dsec.episode.totals import EnvironmentKind
from dsec.model.value import Value

SCAFFOLD = "scaffold"
"""The policy that asks its models by itself, so that no log knows what they used."""


class Purpose(enum.Enum):
    """What became of what a model was paid for.

    DECIDED: a round came of it that did something.
    USELESS: a round came of it in which nothing could be carried out.
    ABANDONED: its decision was given up, and another asked for in its place.
    FAILED: no decision came of it.
    """

    DECIDED = "decided"
    USELESS = "useless"
    ABANDONED = "abandoned"
    FAILED = "failed"


class ModelUse(Value, frozen=True, omit_defaults=True):
    """Calls of one model for one purpose; those that told their cost and those that did not are two lines.

    Attributes:
        model: its name as asked for.
        purpose: what became of it.
        calls: of its service, failed ones included.
        input_tokens: all input, cached or not.
        cached_tokens: of it, read from a cache.
        output_tokens: all output, thinking included.
        thinking_tokens: of it, thinking.
        time_s: seconds that the loop waited for it, as far as known.
        told_usd: what the service said it cost; None: it did not say.
    """

    model: str
    purpose: Purpose
    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    thinking_tokens: int = 0
    time_s: float = 0.0
    told_usd: float | None = None


class EnvironmentUse(Value, frozen=True, omit_defaults=True):
    """What an environment took that was kept in one way.

    Attributes:
        kind: the way in which they were kept.
        time_s: seconds.
        memory_byte_s: memory over time.
        cpu_s: processor time.
    """

    kind: EnvironmentKind
    time_s: float = 0.0
    memory_byte_s: float = 0.0
    cpu_s: float = 0.0


class ToolUse(Value, frozen=True, omit_defaults=True):
    """What tools did.

    Attributes:
        calls: operations, each counted once.
        executions: how often they were carried out in all.
        repeated: executions beyond the first of an operation, and those of decisions that were given up.
        failed: operations that could not be carried out.
        time_s: seconds of rounds in which tools ran.
        repeated_s: seconds of commands that ran again, each taken to be as long as the one that is recorded.
    """

    calls: int = 0
    executions: int = 0
    repeated: int = 0
    failed: int = 0
    time_s: float = 0.0
    repeated_s: float = 0.0


class AttemptUse(Value, frozen=True, omit_defaults=True):
    """What one attempt used, in lines.

    Attributes:
        episode_id: of the attempt; empty: it was no episode, and its job is the rollout.
        task, attempt, job, policy: which one it was.
        sequence: of the last event that is counted: of two copies of a log, the one that says more counts.
        rounds: committed ones.
        lives: how often its loop was begun; 0: not known.
        models, environment: lines.
        tools: what they did.
        wall_s: from its first to its last known moment, by the wall clock.
        thinking_s: of it, a model was waited for.
        held_s: of it, it was held (paused, or its job was).
        began_at_s, ended_at_s: those moments, in seconds since the epoch; 0: not known.
        ended: whether it is over.
        error_code: how it ended, if not well.
        missing: what its log does not say, in words.
    """

    task: str
    attempt: int = 1
    episode_id: str = ""
    job: str = ""
    policy: str = ""
    sequence: int = 0
    rounds: int = 0
    lives: int = 0
    models: tuple[ModelUse, ...] = ()
    environment: tuple[EnvironmentUse, ...] = ()
    tools: ToolUse = ToolUse()
    wall_s: float = 0.0
    thinking_s: float = 0.0
    held_s: float = 0.0
    began_at_s: float = 0.0
    ended_at_s: float = 0.0
    ended: bool = False
    error_code: str = ""
    missing: tuple[str, ...] = ()

    @property
    def waiting_s(self) -> float:
        """Seconds of it in which neither a model nor a tool was waited for, nor was it held."""
        return max(0.0, self.wall_s - self.held_s - self.thinking_s - self.tools.time_s)

    @property
    def working_s(self) -> float:
        """Seconds that count against a deadline: all but those in which it was held."""
        return max(0.0, self.wall_s - self.held_s)

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells this attempt from all others."""
        return self.episode_id or self.job, self.task, self.attempt


def sum_models(lines: Iterable[ModelUse]) -> tuple[ModelUse, ...]:
    """Return one line for each model, purpose and whether it told its cost; in whatever order they come, the same."""
    groups: dict[tuple[str, str, bool], list[ModelUse]] = {}
    for line in lines:
        groups.setdefault((line.model, line.purpose.value, line.told_usd is None), []).append(line)
    return tuple(_joined(groups[key]) for key in sorted(groups))


def _joined(lines: list[ModelUse]) -> ModelUse:
    told = [line.told_usd for line in lines if line.told_usd is not None]
    return ModelUse(
        model=lines[0].model,
        purpose=lines[0].purpose,
        calls=sum(line.calls for line in lines),
        input_tokens=sum(line.input_tokens for line in lines),
        cached_tokens=sum(line.cached_tokens for line in lines),
        output_tokens=sum(line.output_tokens for line in lines),
        thinking_tokens=sum(line.thinking_tokens for line in lines),
        time_s=math.fsum(line.time_s for line in lines),
        told_usd=math.fsum(told) if told else None,
    )


def sum_environment(lines: Iterable[EnvironmentUse]) -> tuple[EnvironmentUse, ...]:
    """Return one line for each way of keeping an environment."""
    groups: dict[EnvironmentKind, list[EnvironmentUse]] = {}
    for line in lines:
        groups.setdefault(line.kind, []).append(line)
    return tuple(
        EnvironmentUse(
            kind=kind,
            time_s=math.fsum(line.time_s for line in groups[kind]),
            memory_byte_s=math.fsum(line.memory_byte_s for line in groups[kind]),
            cpu_s=math.fsum(line.cpu_s for line in groups[kind]),
        )
        for kind in EnvironmentKind
        if kind in groups
    )


def sum_tools(uses: Iterable[ToolUse]) -> ToolUse:
    """Return the sum of what tools did."""
    uses = list(uses)
    return ToolUse(
        calls=sum(use.calls for use in uses),
        executions=sum(use.executions for use in uses),
        repeated=sum(use.repeated for use in uses),
        failed=sum(use.failed for use in uses),
        time_s=math.fsum(use.time_s for use in uses),
        repeated_s=math.fsum(use.repeated_s for use in uses),
    )


def merge_uses(uses: Iterable[AttemptUse]) -> list[AttemptUse]:
    """Return each attempt once, in the order of tasks and attempts: of several copies of a log the one that says most.

    The order in which they come makes no difference.
    """
    best: dict[tuple[str, str, int], AttemptUse] = {}
    for use in uses:
        known = best.get(use.key)
        if known is None or _weight(use) > _weight(known):
            best[use.key] = use
    return sorted(best.values(), key=lambda use: (use.task, use.attempt, use.episode_id))


def _weight(use: AttemptUse) -> tuple[int, int, str]:
    return use.sequence, -len(use.missing), repr(use)
