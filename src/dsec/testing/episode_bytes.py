"""The log of an episode read anew, from docs/formats/episode-log.md alone, for the checker of histories.

Nothing of `dsec.episode` or `dsec.stores` is used here on purpose: a mistake there must not excuse itself. What is
slow, simple and obvious is preferred.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
_NAME = re.compile(r"(?:.*/)?([0-9]{10})-([0-9]{6})\.jsonl")
_END = re.compile(rb',"crc32":"([0-9a-f]{8})"\}$')


def read_line(line: bytes) -> tuple[Event, str] | None:
    """Return the object of a line and its checksum; None: it does not verify."""
    found = _END.search(line)
    if found is None:
        return None
    rest = line[: found.start()] + b"}"
    if f"{zlib.crc32(rest):08x}" != found[1].decode():
        return None
    document: Event = json.loads(rest)
    return document, found[1].decode()


@dataclass(slots=True)
class Segment:
    """One file or object: where it begins, who wrote it, its good events, and what is wrong behind them."""

    name: str
    first: int
    epoch: int
    previous: str
    events: list[tuple[Event, str]]
    torn: bool
    damaged: bool


def read_segment(name: str, data: bytes) -> Segment | None:
    """Return a segment; None: that is no segment's name, or its head does not verify."""
    found = _NAME.fullmatch(name)
    lines = data.split(b"\n")
    head = read_line(lines[0])
    if found is None or head is None or head[0]["event"] != "segment":
        return None
    events: list[tuple[Event, str]] = []
    body = lines[1:-1]  # What is behind the last newline is no line.
    for line in body:
        read = read_line(line)
        if read is None:
            break
        events.append(read)
    left = [*body[len(events) :], *([lines[-1]] if lines[-1] else [])]
    announced = head[0].get("events")
    return Segment(
        name=name,
        first=int(found[1]),
        epoch=int(found[2]),
        previous=head[0].get("previous", ""),
        events=events,
        torn=bool(left),
        damaged=any(read_line(line) for line in left) or (announced is not None and announced != len(events)),
    )


@dataclass(slots=True)
class Reading:
    """What a set of segments proves.

    Attributes:
        first: sequence of the first event.
        events: without a gap from there.
        whole: nothing is missing or damaged up to the last event that is anywhere.
        problem: what is, otherwise.
    """

    first: int = 1
    events: list[Event] = field(default_factory=list)
    checksums: list[str] = field(default_factory=list)
    whole: bool = False
    problem: str = "there is nothing"

    @property
    def last(self) -> int:
        """Sequence of the last event; 0: none."""
        return self.first + len(self.events) - 1 if self.events else 0

    @property
    def has_ended(self) -> bool:
        """Whether the history is proven to its end: nothing else may be called complete."""
        return self.whole and bool(self.events) and self.events[-1]["event"] == "ended"

    def rounds(self) -> list[Event]:
        """Return the records of committed rounds that are not behind a state."""
        return [event["record"] for event in self.events if event["event"] == "round"]


def read_log(files: Mapping[str, bytes]) -> Reading:
    """Return what the segments among some files, or objects, prove together."""
    segments = [segment for name, data in files.items() if (segment := read_segment(name, data)) is not None]
    segments.sort(key=lambda segment: (segment.first, segment.epoch))
    table: dict[int, tuple[Event, str, int]] = {}
    problem = ""
    for place, segment in enumerate(segments):
        cut = min((other.first for other in segments if other.epoch > segment.epoch), default=1 << 60)
        is_last = place == len(segments) - 1
        reaches = segment.first + len(segment.events)
        if (segment.damaged or (segment.torn and not is_last)) and reaches < cut:
            problem = problem or f"{segment.name} is damaged behind event {reaches - 1}"
        for number, (event, checksum) in enumerate(segment.events, start=segment.first):
            if number >= cut:
                break
            if number in table and table[number][1] != checksum:
                problem = problem or f"event {number} is there in two forms"
            table[number] = (event, checksum, segment.epoch)
        before = table.get(segment.first - 1)
        if segment.first < cut and segment.previous and before is not None and before[1] != segment.previous:
            problem = problem or f"{segment.name} does not follow what is in front of it"
    if not table:
        return Reading()
    # The last stretch without a gap that has a beginning.
    stretches = _stretches(sorted(table))
    for numbers in reversed(stretches):
        begin = _beginning(numbers, table)
        if begin is None:
            continue
        kept = [table[number] for number in numbers if number >= begin]
        if numbers is not stretches[-1]:
            problem = problem or f"events behind {numbers[-1]} are missing"
        return Reading(
            first=begin,
            events=[event for event, _, _ in kept],
            checksums=[checksum for _, checksum, _ in kept],
            whole=not problem,
            problem=problem,
        )
    return Reading(problem=f"events in front of {stretches[0][0]} are missing")


def _stretches(numbers: list[int]) -> list[list[int]]:
    found = [[numbers[0]]]
    for number in numbers[1:]:
        if number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return found


def _beginning(numbers: list[int], table: Mapping[int, tuple[Event, str, int]]) -> int | None:
    for number in numbers:
        if number == 1 or table[number][0]["event"] == "state":
            return number
    return None
