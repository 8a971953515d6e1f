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


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTimeline:
    """When one task does what; every moment counts from its arrival.

    Attributes:
        completion_s: when the task is done.
        preparations: how many environments were made.
        resident_s: how long environments are resident.
        resident_from_s, resident_until_s: the intervals in which they are.
        model_total_s, tool_total_s, prepare_total_s: time in each activity.
        ready_total_s: how long environments are resident and wait.
        model_starts_s, model_ends_s: of each model call.
        tool_starts_s, tool_ends_s: of each tool.
        prepare_starts_s, prepare_ends_s: of each preparation; none where it takes no time.
    """

    completion_s: float
    preparations: int
    resident_s: float
    resident_from_s: tuple[float, ...]
    resident_until_s: tuple[float, ...]
    model_total_s: float
    tool_total_s: float
    prepare_total_s: float
    ready_total_s: float
    model_starts_s: tuple[float, ...]
    model_ends_s: tuple[float, ...]
    tool_starts_s: tuple[float, ...]
    tool_ends_s: tuple[float, ...]
    prepare_starts_s: tuple[float, ...]
    prepare_ends_s: tuple[float, ...]


def task_timeline(
    *,
    rounds: Sequence[RoundTimes],
    residency: Residency,
    prepare_s: float = 0.0,
    queue_s: float = 0.0,
    commit_s: float = 0.0,
    overlapped: bool = True,
) -> TaskTimeline:
    """Return when one task does what.

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
    spans = task_spans(
        rounds=rounds,
        residency=residency,
        prepare_s=prepare_s,
        queue_s=queue_s,
        commit_s=commit_s,
        overlapped=overlapped,
    )
    return _summed(spans, residency, queue_s, len(rounds))


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


def task_spans(
    *,
    rounds: Sequence[RoundTimes],
    residency: Residency,
    prepare_s: float = 0.0,
    queue_s: float = 0.0,
    commit_s: float = 0.0,
    overlapped: bool = True,
) -> tuple[Span, ...]:
    """Return every activity of one task; arguments and errors are those of `task_timeline`."""
    _check(rounds, queue_s, prepare_s, commit_s)
    spans = _Spans()
    spans.add_unless_empty(Activity.QUEUE, 0.0, queue_s)
    if residency is Residency.KEPT:
        end_s = _kept(spans, rounds, prepare_s, queue_s, overlapped)
    else:
        end_s = _rebuilt(spans, rounds, prepare_s, queue_s, residency is Residency.ON_DEMAND)
    spans.add_unless_empty(Activity.COMMIT, end_s, end_s + commit_s)
    return tuple(spans.laid)


def _check(rounds: Sequence[RoundTimes], queue_s: float, prepare_s: float, commit_s: float) -> None:
    check_not_empty("rounds", rounds)
    for number, one in enumerate(rounds, start=1):
        check_not_negative(f"model_s of round {number}", one.model_s, "s")
        check_not_negative(f"tool_s of round {number}", one.tool_s, "s")
    for name, value in (("queue_s", queue_s), ("prepare_s", prepare_s), ("commit_s", commit_s)):
        check_not_negative(name, value, "s")


class _Spans:
    """Spans as they are laid down."""

    def __init__(self) -> None:
        self.laid: list[Span] = []

    def add(self, activity: Activity, start_s: float, end_s: float) -> None:
        self.laid.append(Span(activity=activity, start_s=start_s, end_s=end_s))

    def add_unless_empty(self, activity: Activity, start_s: float, end_s: float) -> None:
        if end_s > start_s:
            self.add(activity, start_s, end_s)


def _kept(spans: _Spans, rounds: Sequence[RoundTimes], prepare_s: float, now_s: float, overlapped: bool) -> float:
    """Lay down the rounds of a kept environment from `now_s` on; return when they end."""
    ready_s = now_s + prepare_s
    spans.add_unless_empty(Activity.PREPARE, now_s, ready_s)
    now_s = now_s if overlapped else ready_s
    for one in rounds:
        call_s = now_s + one.model_s
        tool_s = max(call_s, ready_s)
        spans.add(Activity.MODEL, now_s, call_s)
        spans.add_unless_empty(Activity.READY, max(now_s, ready_s), tool_s)
        now_s = tool_s + one.tool_s
        spans.add(Activity.TOOL, tool_s, now_s)
    return now_s


def _rebuilt(spans: _Spans, rounds: Sequence[RoundTimes], prepare_s: float, now_s: float, on_demand: bool) -> float:
    """Lay down rounds that each make an environment from `now_s` on; return when they end."""
    for one in rounds:
        call_s = now_s + one.model_s
        start_s = call_s if on_demand else max(now_s, call_s - prepare_s)
        tool_s = max(call_s, start_s + prepare_s)
        spans.add(Activity.MODEL, now_s, call_s)
        if prepare_s > 0:
            spans.add(Activity.PREPARE, start_s, tool_s)
        now_s = tool_s + one.tool_s
        spans.add(Activity.TOOL, tool_s, now_s)
    return now_s


_Moments = tuple[float, ...]


def _edges(spans: Sequence[Span], activity: Activity) -> tuple[_Moments, _Moments]:
    """Return the starts and the ends of one activity."""
    chosen = [span for span in spans if span.activity is activity]
    return tuple(span.start_s for span in chosen), tuple(span.end_s for span in chosen)


def _resident(spans: Sequence[Span], residency: Residency, queue_s: float) -> tuple[_Moments, _Moments]:
    """Return from when and until when an environment takes memory."""
    if residency is Residency.KEPT:
        return (queue_s,), (spans[-1].end_s,)
    tool_starts_s, tool_ends_s = _edges(spans, Activity.TOOL)
    prepare_starts_s, _ = _edges(spans, Activity.PREPARE)
    return prepare_starts_s or tool_starts_s, tool_ends_s


def _summed(spans: Sequence[Span], residency: Residency, queue_s: float, rounds: int) -> TaskTimeline:
    edges = {activity: _edges(spans, activity) for activity in Activity}
    total_s = {activity: sum(ends_s) - sum(starts_s) for activity, (starts_s, ends_s) in edges.items()}
    from_s, until_s = _resident(spans, residency, queue_s)
    return TaskTimeline(
        completion_s=spans[-1].end_s,
        preparations=1 if residency is Residency.KEPT else rounds,
        resident_s=sum(until_s) - sum(from_s),
        resident_from_s=from_s,
        resident_until_s=until_s,
        model_total_s=total_s[Activity.MODEL],
        tool_total_s=total_s[Activity.TOOL],
        prepare_total_s=total_s[Activity.PREPARE],
        ready_total_s=total_s[Activity.READY],
        model_starts_s=edges[Activity.MODEL][0],
        model_ends_s=edges[Activity.MODEL][1],
        tool_starts_s=edges[Activity.TOOL][0],
        tool_ends_s=edges[Activity.TOOL][1],
        prepare_starts_s=edges[Activity.PREPARE][0],
        prepare_ends_s=edges[Activity.PREPARE][1],
    )
