"""Why sandboxes are created slowly: figures of the scheduler, then of the node, each beside its threshold.

The order is that of the search: when too few stand ready and more arrive than are made, a faster disk changes
little; when enough are ready nothing on the node can have made a task wait. So the scheduler's side comes first,
and suggestions follow from what is beyond its threshold, with numbers from the same figures. Only the time in which
the task waited counts, and the minute before, in which the pool was emptied.

Source: the training report, finding the cause of slow creations.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from dsec.base.errors import InvalidRequestError, NotFoundError
from dsec.base.units import format_duration
from dsec.model.diagnosis import Asked, Diagnosis, Finding, Thresholds
from dsec.model.event import EventKind, EventReading, NodeEvent

_BEFORE_S = 60.0
_ANSWERS = frozenset({EventKind.READY, EventKind.FAILED})
_EDGE = 1.05
"""Arrivals count as more than what is made only beyond what a minute's average can tell."""
_END_OF_TIME_S = 253_402_300_800.0
"""The year 10000, which no date can tell."""
_MOST = 1e12


def diagnose(events: Sequence[NodeEvent], task: str = "", *, thresholds: Thresholds = Thresholds()) -> Diagnosis:
    """Look at what a node remembers.

    Args:
        events: the oldest first.
        task: whose creations; empty: all.
        thresholds: what counts as too much.

    Raises:
        NotFoundError: the events know nothing of this task, or there are none.
    """
    asked = tuple(_asked(event for event in events if not task or event.task == task))
    if not asked:
        raise NotFoundError(
            f"no event tells of a creation for task {task!r}" if task else "no event tells of a creation",
            resolution="name the task as its metadata does (task_id or task); the node remembers its newest events",
        )
    begin_s = min(each.at_s for each in asked) - _BEFORE_S
    end_s = max(each.at_s + (each.waited_s or 0.0) for each in asked)
    if any(each.waited_s is None for each in asked):
        end_s = events[-1].at_s
    seen = _Seen([event for event in events if begin_s <= event.at_s <= end_s], asked, thresholds)
    findings = (*seen.scheduler(), *seen.node())
    return Diagnosis(
        task=task,
        begin_s=begin_s,
        end_s=end_s,
        asked=asked,
        findings=findings,
        suggestions=tuple(seen.suggestions(findings)),
    )


def read_trace(data: bytes, where: str) -> list[NodeEvent]:
    """Read saved events, one JSON object a line.

    Raises:
        InvalidRequestError: a line is no event; names file and line.
    """
    decoder = msgspec.json.Decoder(NodeEvent)
    events = []
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            events.append(_checked(decoder.decode(line)))
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            raise InvalidRequestError(
                f"{where}, line {number}: this is no event",
                detail=f"{error}: {line[:120]!r}",
                resolution="each line is one event as docs/formats/events.md has it",
            ) from error
    return events


def _checked(event: NodeEvent) -> NodeEvent:
    """Return the event. Raises `ValueError` when its times are none."""
    if not 0 <= event.at_s < _END_OF_TIME_S:
        raise ValueError(f"at_s is {event.at_s:g}; it must be seconds since 1970, before the year 10000")
    if event.duration_s is not None and not 0 <= event.duration_s < _END_OF_TIME_S:
        raise ValueError(f"duration_s is {event.duration_s:g}; it must be seconds, 0 or more")
    for name, value in ({} if event.reading is None else msgspec.structs.asdict(event.reading)).items():
        if value is not None and not 0 <= value <= _MOST:
            raise ValueError(f"{name} of the reading is {value:g}; it must be 0 to {_MOST:g}")
    return event


def _asked(events: Iterable[NodeEvent]) -> Iterator[Asked]:
    open_: dict[str, list[NodeEvent]] = defaultdict(list)
    for event in events:
        if event.kind is EventKind.ARRIVED:
            open_[event.sandbox_id].append(event)
        elif event.kind in _ANSWERS and open_[event.sandbox_id]:
            arrived = open_[event.sandbox_id].pop(0)
            outcome = "ready" if event.kind is EventKind.READY else event.text
            yield Asked(sandbox_id=event.sandbox_id, at_s=arrived.at_s, waited_s=event.duration_s, outcome=outcome)
    for left in open_.values():
        for event in left:
            yield Asked(sandbox_id=event.sandbox_id, at_s=event.at_s, waited_s=None, outcome="waits")


class _Seen:
    """The events of the time in question, sorted by what they tell."""

    def __init__(self, events: Sequence[NodeEvent], asked: tuple[Asked, ...], thresholds: Thresholds) -> None:
        self._events = events
        self._asked = asked
        self._thresholds = thresholds
        self._readings = [event.reading for event in events if event.reading is not None]
        self._pools = [each for each in self._readings if each.ready is not None]
        self._span_s = max(1.0, events[-1].at_s - events[0].at_s) if events else 1.0

    def _durations(self, kind: EventKind) -> list[float]:
        return [e.duration_s for e in self._events if e.kind is kind and e.duration_s is not None]

    def _worst(self) -> EventReading | None:
        """The reading at which the pool was worst off: most waiting, then fewest ready."""
        return max(self._pools, key=lambda each: (each.waiting or 0, -(each.ready or 0)), default=None)

    # -- the scheduler's side -----------------------------------------------------------------------------------------

    def scheduler(self) -> Iterator[Finding]:
        worst = self._worst()
        if worst is None:
            text = "no pool serves these creations: each was made when it was asked for"
            yield _finding("scheduler", "ready", None, None, "sandboxes", True, text)
        else:
            yield self._ready(worst)
        yield from self._rates(worst)
        yield self._hold(worst)

    def _ready(self, worst: EventReading) -> Finding:
        ready, level = worst.ready or 0, worst.level or 0
        least = math.ceil(self._thresholds.ready_share * level)
        is_fine = ready >= least
        text = f"{ready} of {level} wanted" + ("" if is_fine else f", below {least}")
        if worst.waiting:
            text += f"; {worst.waiting} tasks wait"
        return _finding("scheduler", "ready", ready, least, "sandboxes", is_fine, text)

    def _rates(self, worst: EventReading | None) -> Iterator[Finding]:
        arrivals, supply = self._arrivals_per_s(worst), self._supply_per_s(worst)
        is_fine = arrivals <= _EDGE * supply or (worst is None and not self._long())
        more = "" if is_fine else f", more than the {supply:.1f}/s that are made or recycled"
        yield _finding("scheduler", "arrival rate", arrivals, supply, "/s", is_fine, f"{arrivals:.1f}/s{more}")
        made = len(self._durations(EventKind.CREATED)) / self._span_s
        fewer = "" if is_fine else f"; with what is recycled {supply:.1f}/s, below the {arrivals:.1f}/s that arrive"
        yield _finding("scheduler", "creation rate", made, arrivals, "/s", is_fine, f"{made:.1f}/s{fewer}")

    def _long(self) -> bool:
        return any((each.waited_s or 0.0) > self._thresholds.launch_p99_s for each in self._asked)

    def _arrivals_per_s(self, worst: EventReading | None) -> float:
        if worst is not None and worst.arrival_rate_per_s is not None:
            return worst.arrival_rate_per_s
        return sum(event.kind is EventKind.ARRIVED for event in self._events) / self._span_s

    def _supply_per_s(self, worst: EventReading | None) -> float:
        if worst is not None and worst.supply_rate_per_s is not None:
            return worst.supply_rate_per_s
        return len(self._durations(EventKind.CREATED)) / self._span_s

    def _hold(self, worst: EventReading | None) -> Finding:
        hold_s = None if worst is None else worst.hold_time_s
        if worst is None or hold_s is None:
            return _finding("scheduler", "hold time", None, None, "s", True, "not known: no sandbox came back yet")
        at_once = worst.hold_time_s or 0.0
        needed = math.ceil((worst.arrival_rate_per_s or 0.0) * at_once)
        if worst.maximum is None or not worst.arrival_rate_per_s:
            return _finding("scheduler", "hold time", hold_s, None, "s", True, format_duration(hold_s))
        limit_s = worst.maximum / worst.arrival_rate_per_s
        is_fine = hold_s <= limit_s
        text = format_duration(hold_s)
        if not is_fine:
            text += f": {needed} sandboxes would be in use at once, the pool may hold {worst.maximum}"
        return _finding("scheduler", "hold time", hold_s, limit_s, "s", is_fine, text)

    # -- the node's side ----------------------------------------------------------------------------------------------

    def node(self) -> Iterator[Finding]:
        limits = self._thresholds
        images = percentile(self._durations(EventKind.IMAGE_LOADED), 0.99)
        yield _timed("image load, p99", images, limits.image_load_p99_s, "no image was loaded")
        launches = percentile(self._durations(EventKind.CREATED), 0.99)
        yield _timed("launch, p99", launches, limits.launch_p99_s, "nothing was launched")
        waits = [each.disk_wait_s for each in self._readings if each.disk_wait_s is not None]
        yield _timed("disk wait, worst second", max(waits, default=None), limits.disk_wait_s, "not measured")
        yield self._network()
        yield from self._refused()
        yield from self._not_clean()

    def _network(self) -> Finding:
        shares = [each.network_repeated for each in self._readings if each.network_repeated is not None]
        worst, limit = max(shares, default=None), self._thresholds.network_repeated
        if worst is None:
            return _finding("node", "network, sent again", None, limit, "share", True, "nothing was sent")
        text = f"{100 * worst:.1f}% of segments" + ("" if worst <= limit else f", above {100 * limit:.1f}%")
        return _finding("node", "network, sent again", worst, limit, "share", worst <= limit, text)

    def _refused(self) -> Iterator[Finding]:
        texts = [event.text for event in self._events if event.kind is EventKind.REFUSED]
        if texts:
            text = f"{len(texts)} creations were not admitted; the last: {texts[-1]}"
            yield _finding("node", "admission", len(texts), 0, "refusals", False, text)

    def _not_clean(self) -> Iterator[Finding]:
        texts = [event.text for event in self._events if event.kind is EventKind.NOT_CLEAN]
        if texts:
            text = f"{len(texts)} recycled sandboxes were not clean; the last: {texts[-1]}"
            yield _finding("node", "clean check", len(texts), 0, "failures", False, text)

    # -- what would help ----------------------------------------------------------------------------------------------

    def suggestions(self, findings: Sequence[Finding]) -> Iterator[str]:
        wrong = {finding.name: finding for finding in findings if not finding.is_fine}
        worst = self._worst()
        if worst is not None and "hold time" in wrong:
            needed = math.ceil((worst.arrival_rate_per_s or 0.0) * (worst.hold_time_s or 0.0))
            yield f"raise the pool's maximum to {needed + (worst.level or 0)}, or let fewer tasks begin at once"
        elif worst is not None and wrong.keys() & {"ready", "arrival rate"}:
            if "admission" not in wrong:
                # A full host takes no more ready ones either.
                yield self._more_ready(worst)
        elif worst is None and self._long():
            yield "keep sandboxes ready: dsec pool set IMAGE"
        if "image load, p99" in wrong:
            yield "look at the bandwidth to where images come from; load the image before the tasks begin"
        if "launch, p99" in wrong and "disk wait, worst second" not in wrong:
            yield "launch fewer at once: lower the pool's creations_at_once, or use a host with more cores"
        if "disk wait, worst second" in wrong:
            yield "the disk is the bottleneck: fewer creations at once, or another disk; more sandboxes make it worse"
        if "network, sent again" in wrong:
            yield "look at the network: segments are lost"
        if "admission" in wrong:
            yield "the host is full: stop sandboxes or use another node"
        if "clean check" in wrong:
            yield "see what the clean check names: sandboxes are made anew instead of recycled"
        if not wrong and not (worst is None and self._long()):
            yield "nothing is beyond its threshold"

    def _more_ready(self, worst: EventReading) -> str:
        """Enough for those who wait, or for what arrives in excess within the horizon, whichever is more."""
        excess_per_s = max(0.0, self._arrivals_per_s(worst) - self._supply_per_s(worst))
        missing = max(worst.waiting or 0, math.ceil(excess_per_s * self._thresholds.horizon_s))
        level = (worst.level or 0) + missing
        if not missing:
            return f"the pool fills up by itself; to begin with more, raise its floor to {2 * (worst.level or 1)}"
        return f"raise the pool's ready level to {level}: dsec pool set IMAGE --floor {level}"


def _finding(
    side: str, name: str, measured: float | None, threshold: float | None, unit: str, is_fine: bool, text: str
) -> Finding:
    return Finding(side=side, name=name, measured=measured, threshold=threshold, unit=unit, is_fine=is_fine, text=text)


def _timed(name: str, measured_s: float | None, limit_s: float, unknown: str) -> Finding:
    if measured_s is None:
        return _finding("node", name, None, limit_s, "s", True, unknown)
    is_fine = measured_s <= limit_s
    text = format_duration(measured_s) + ("" if is_fine else f", above {format_duration(limit_s)}")
    return _finding("node", name, measured_s, limit_s, "s", is_fine, text)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the nearest-rank percentile; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
