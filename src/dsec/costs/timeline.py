"""A task's timeline: what runs when, and for how long its environment is resident.

A task of R rounds alternates: the model produces a tool call, then the tool runs and its result goes into the next
call. Rounds never overlap, because a call needs the result before it. The tool of a round starts when the complete
call has arrived *and* an environment is ready:

    tool start = max(end of the model's call, environment ready)

How environments come about is a policy. Three are known here; they differ in memory and in waiting only:

    kept        one environment from the task's start to its end; its preparation, if it has one, runs first or beside
                the first model call
    rebuilt     a new environment in each round, begun as late as it can be without delaying the tool, destroyed after
                it; needs all state that the next round uses to be in persistent storage
    on demand   as rebuilt, begun only when the complete call has arrived

Assumes that times are known, that preparations do not compete for anything, and that an environment takes its whole
memory from the start of its preparation to the end of its tool (or task), and none afterwards.

Source: the chapter, section 11.1.1 (critical path of R rounds), section 11.2.4 (rebuilding), figures 11-1, 11-2,
11-17, 11-18, 11-48.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from dsec.costs.checks import check_count, check_not_empty, check_not_negative


class Residency(enum.Enum):
    """How a task comes by the environments of its tools."""

    KEPT = "kept"
    REBUILT = "rebuilt"
    ON_DEMAND = "on demand"


class Activity(enum.Enum):
    """What a span of a timeline is spent on."""

    QUEUE = "queue"
    MODEL = "model"
    PREPARE = "prepare"
    READY = "ready"
    """The environment is resident and nothing runs in it."""
    TOOL = "tool"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimes:
    """One round: a model call of `model_s` seconds, then a tool of `tool_s` seconds."""

    model_s: float
    tool_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One activity from `start_s` to `end_s`, both counted from the task's arrival."""

    activity: Activity
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTimeline:
    """What one task does.

    Attributes:
        completion_s: when the task is done.
        preparations: how many environments were made.
        resident_from_s, resident_until_s: the intervals in which an environment takes memory.
        spans: every activity by its start; those of the environment (prepare, ready) lie beside those of the model.
    """

    completion_s: float
    preparations: int
    resident_from_s: tuple[float, ...]
    resident_until_s: tuple[float, ...]
    spans: tuple[Span, ...]

    @property
    def resident_s(self) -> float:
        """How long environments are resident."""
        return sum(self.resident_until_s) - sum(self.resident_from_s)

    @property
    def model_starts_s(self) -> tuple[float, ...]:
        """When each model call begins."""
        return self._edges(Activity.MODEL, "start_s")

    @property
    def tool_starts_s(self) -> tuple[float, ...]:
        """When each tool begins."""
        return self._edges(Activity.TOOL, "start_s")

    @property
    def tool_ends_s(self) -> tuple[float, ...]:
        """When each round ends."""
        return self._edges(Activity.TOOL, "end_s")

    @property
    def prepare_starts_s(self) -> tuple[float, ...]:
        """When each preparation begins."""
        return self._edges(Activity.PREPARE, "start_s")

    @property
    def model_total_s(self) -> float:
        """Time in model calls."""
        return self.total_s(Activity.MODEL)

    @property
    def tool_total_s(self) -> float:
        """Time in tools."""
        return self.total_s(Activity.TOOL)

    def total_s(self, activity: Activity) -> float:
        """Return how long an activity takes altogether."""
        return sum(span.duration_s for span in self.spans if span.activity is activity)

    def _edges(self, activity: Activity, edge: str) -> tuple[float, ...]:
        return tuple(getattr(span, edge) for span in self.spans if span.activity is activity)


def task_timeline(
    *,
    rounds: Sequence[RoundTimes],
    residency: Residency,
    prepare_s: float = 0.0,
    queue_s: float = 0.0,
    commit_s: float = 0.0,
    overlapped: bool = True,
) -> TaskTimeline:
    """Lay out one task; time 0 is its arrival.

    Args:
        rounds: the rounds in order.
        residency: how environments come about.
        prepare_s: how long one preparation takes; 0 for an environment that stands ready in a pool.
        queue_s: waiting before anything runs.
        commit_s: handing in the result at the end.
        overlapped: for a kept environment, whether it is prepared beside the first model call or before it.

    Raises:
        InvalidRequestError: there are no rounds, or a time is negative.

    Formula:
        tool start = max(end of the model's call, environment ready)

    Source:
        the chapter, sections 11.1.1 and 11.2.4
    """
    _check(rounds, queue_s, prepare_s, commit_s)
    if residency is Residency.KEPT:
        return _kept(rounds, prepare_s, queue_s, commit_s, overlapped)
    return _rebuilt(rounds, prepare_s, queue_s, commit_s, on_demand=residency is Residency.ON_DEMAND)


def uniform_task_timeline(
    *,
    rounds: int,
    model_s: float,
    tool_s: float,
    residency: Residency,
    prepare_s: float = 0.0,
    queue_s: float = 0.0,
    commit_s: float = 0.0,
    overlapped: bool = True,
) -> TaskTimeline:
    """Lay out one task of equal rounds; otherwise as `task_timeline`.

    Args:
        rounds: how many.
        model_s: time of each model call.
        tool_s: time of each tool.
        residency: how environments come about.
        prepare_s: how long one preparation takes.
        queue_s: waiting before anything runs.
        commit_s: handing in the result at the end.
        overlapped: for a kept environment, whether it is prepared beside the first model call or before it.

    Formula:
        tool start = max(end of the model's call, environment ready)

    Source:
        the chapter, sections 11.1.1 and 11.2.4
    """
    return task_timeline(
        rounds=(RoundTimes(model_s=model_s, tool_s=tool_s),) * check_count("rounds", rounds),
        residency=residency,
        prepare_s=prepare_s,
        queue_s=queue_s,
        commit_s=commit_s,
        overlapped=overlapped,
    )


def _check(rounds: Sequence[RoundTimes], queue_s: float, prepare_s: float, commit_s: float) -> None:
    check_not_empty("rounds", rounds)
    for number, one in enumerate(rounds, start=1):
        check_not_negative(f"model_s of round {number}", one.model_s, "s")
        check_not_negative(f"tool_s of round {number}", one.tool_s, "s")
    for name, value in (("queue_s", queue_s), ("prepare_s", prepare_s), ("commit_s", commit_s)):
        check_not_negative(name, value, "s")


class _Spans:
    """Spans as they are laid down; empty ones are left out."""

    def __init__(self, queue_s: float) -> None:
        self.laid: list[Span] = []
        self.add(Activity.QUEUE, 0.0, queue_s)

    def add(self, activity: Activity, start_s: float, end_s: float) -> None:
        if end_s > start_s or activity in (Activity.MODEL, Activity.TOOL):
            self.laid.append(Span(activity=activity, start_s=start_s, end_s=end_s))

    def in_order(self) -> tuple[Span, ...]:
        return tuple(sorted(self.laid, key=lambda span: span.start_s))


def _kept(
    rounds: Sequence[RoundTimes], prepare_s: float, queue_s: float, commit_s: float, overlapped: bool
) -> TaskTimeline:
    spans = _Spans(queue_s)
    ready_s = queue_s + prepare_s
    spans.add(Activity.PREPARE, queue_s, ready_s)
    now_s = queue_s if overlapped else ready_s
    for one in rounds:
        call_s = now_s + one.model_s
        tool_s = max(call_s, ready_s)
        spans.add(Activity.MODEL, now_s, call_s)
        spans.add(Activity.READY, max(now_s, ready_s), tool_s)
        now_s = tool_s + one.tool_s
        spans.add(Activity.TOOL, tool_s, now_s)
    spans.add(Activity.COMMIT, now_s, now_s + commit_s)
    return TaskTimeline(
        completion_s=now_s + commit_s,
        preparations=1,
        resident_from_s=(queue_s,),
        resident_until_s=(now_s + commit_s,),
        spans=spans.in_order(),
    )


def _rebuilt(
    rounds: Sequence[RoundTimes], prepare_s: float, queue_s: float, commit_s: float, *, on_demand: bool
) -> TaskTimeline:
    spans = _Spans(queue_s)
    starts_s: list[float] = []
    ends_s: list[float] = []
    now_s = queue_s
    for one in rounds:
        call_s = now_s + one.model_s
        start_s = call_s if on_demand else max(now_s, call_s - prepare_s)
        tool_s = max(call_s, start_s + prepare_s)
        spans.add(Activity.MODEL, now_s, call_s)
        spans.add(Activity.PREPARE, start_s, tool_s)
        now_s = tool_s + one.tool_s
        spans.add(Activity.TOOL, tool_s, now_s)
        starts_s.append(start_s)
        ends_s.append(now_s)
    spans.add(Activity.COMMIT, now_s, now_s + commit_s)
    return TaskTimeline(
        completion_s=now_s + commit_s,
        preparations=len(rounds),
        resident_from_s=tuple(starts_s),
        resident_until_s=tuple(ends_s),
        spans=spans.in_order(),
    )
