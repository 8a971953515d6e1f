"""An independent judge of what episodes promise, over a history of deaths: written from the formats, not from the code.

It is given three testimonies that cannot have agreed beforehand: what truly happened (the world's own list of
effects), the bytes of the log (on the disk, and in the store), and what was told to the trainer, and when.
It knows the table of effects and the format of the log, and imports nothing that wrote or read either.

What it finds, it says in words; nothing found means:

- what was told to a trainer is in the log, as it was told: no event and no committed round is lost or changed;
- nothing outside is in effect twice, undone without a reason, or in effect with nothing in the log that says so;
- every result that a round holds is what the world did;
- an operation of the kind *once* was reported as unknown exactly when the log then held its beginning and neither a
  result nor a verdict; and none went on from there without a verdict;
- no reader called a history complete that the bytes do not prove to its end, and no watermark promised more than them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsec.testing.episode_bytes import Event, Reading, read_log

ONCE = "once"
ANNOUNCED = frozenset({"asked", "deduplicated", "compensated", ONCE})
"""Kinds of effect that are announced. An operation that names none is of the kind *once*."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Something that happened in the world: an operation took effect (`by` = 1) or was undone (`by` = -1)."""

    operation: str
    by: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """The worker said that an episode waits.

    Attributes:
        operations: those whose outcome it called unknown.
        log: what lay on the disk at that moment.
    """

    operations: tuple[str, ...]
    log: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A reader of the store said how complete a history is.

    Attributes:
        word: ``complete``, ``open`` or ``incomplete``.
        rounds: how many it returned.
        objects: what lay in the store at that moment.
    """

    word: str
    rounds: int
    objects: Mapping[str, bytes]


@dataclass(slots=True, kw_only=True)
class History:
    """What is known of one episode.

    Attributes:
        disk: names and contents of the files of its log, at the end.
        effects: what happened in the world, in order.
        told: events that a watcher was given, with their sequences, over all its connections.
        ended: the trainer was told that it had ended.
        reported: unknown outcomes that were reported.
        claims: what readers of the store said.
        watermarks: sequence that was promised, and what lay in the store then.
        files: operations that changed the workspace, in order, as the workspace tells; None: it is gone.
        crashed: whether anything died; if not, nothing may ever have been unknown.
    """

    disk: Mapping[str, bytes]
    effects: Sequence[Effect] = ()
    told: Sequence[tuple[int, Event]] = ()
    ended: bool = False
    reported: Sequence[Reported] = ()
    claims: Sequence[Claim] = ()
    watermarks: Sequence[tuple[int, Mapping[str, bytes]]] = ()
    files: Sequence[str] | None = None
    crashed: bool = True


@dataclass(slots=True)
class _Open:
    """A round that is decided and not committed; by operation."""

    decision: Event
    kinds: dict[str, str]
    begun: dict[str, int] = field(default_factory=dict)
    life: dict[str, int] = field(default_factory=dict)
    finished: dict[str, Any] = field(default_factory=dict)
    settled: dict[str, Event] = field(default_factory=dict)

    def undecided(self) -> list[str]:
        """Return what began, has no result and no verdict."""
        return [name for name in self.begun if name not in self.finished and name not in self.settled]


class _Fold:
    """Walks over the events of a log once, by the rules of the format, and collects what breaks them."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.open: _Open | None = None
        self.last_round = 0
        self.ended = False
        self.results: dict[str, Any] = {}
        self.calls: dict[str, Event] = {}
        self.kinds: dict[str, str] = {}
        self.changes: list[str] = []
        self.verdicts: list[str] = []
        self.life = 0

    def walk(self, events: Sequence[Event]) -> None:
        for event in events:
            if self.ended:
                self._wrong(f"{event['event']} follows the end")
            step = getattr(self, f"_{event['event']}", None)
            if step is not None:
                step(event)

    def _wrong(self, problem: str) -> None:
        self.problems.append(problem)

    # -- events --------------------------------------------------------------------------------------------------------

    def _life(self, event: Event) -> None:
        self.life += 1

    def _state(self, event: Event) -> None:
        self.last_round = event["number"]

    def _ended(self, event: Event) -> None:
        self.ended = True

    def _decided(self, event: Event) -> None:
        if self.open is not None or event["number"] != self.last_round + 1:
            self._wrong(f"round {event['number']} is decided out of turn")
        self.open = _Open(decision=event["decision"], kinds=self._kinds(event["decision"]))

    def _running(self, event: Event) -> None:
        for name in event["operations"]:
            if self.open is None or name not in self.open.kinds:
                self._wrong(f"{name} begins without a decision")
                continue
            again = name in self.open.begun
            settled = self.open.settled.get(name)
            if name in self.open.finished or (settled is not None and settled["verdict"] == "happened"):
                self._wrong(f"{name} begins again although it has a result")
            if again and self.open.kinds[name] == ONCE and settled is None:
                self._wrong(f"{name} begins again, and nobody knows what became of it")
            if event.get("attempt", 1) <= self.open.begun.get(name, 0):
                self._wrong(f"attempt {event.get('attempt', 1)} at {name} begins twice")
            self.open.begun[name] = event.get("attempt", 1)
            self.open.life[name] = self.life
            self.open.settled.pop(name, None)

    def _finished(self, event: Event) -> None:
        name = event["operation"]
        if self.open is None or name not in self.open.kinds:
            self._wrong(f"{name} has a result without a decision")
            return
        if self.open.kinds[name] not in ANNOUNCED:
            return
        if name not in self.open.begun:
            self._wrong(f"{name} has a result and never began")
        elif self.open.kinds[name] == ONCE and self.open.life[name] != self.life:
            self._wrong(f"{name} has a result in a life of the loop in which it did not begin")
        if name in self.open.finished or name in self.open.settled:
            self._wrong(f"{name} has a second result")
        self.open.finished[name] = event["result"]

    def _settled(self, event: Event) -> None:
        name = event["operation"]
        if self.open is None or name not in self.open.undecided():
            self._wrong(f"{name} is settled and was not unknown")
            return
        self.open.settled[name] = event
        self.verdicts.append(name)

    def _abandoned(self, event: Event) -> None:
        if self.open is None or self.open.undecided():
            self._wrong(f"round {event['number']} is given up while nobody knows what it did")
        self.open = None

    def _round(self, event: Event) -> None:
        record = event["record"]
        decision, results = record["decision"], record.get("results", [])
        kinds = self._kinds(decision)
        if record["number"] != self.last_round + 1:
            self._wrong(f"round {record['number']} follows round {self.last_round}")
        if self.open is not None and self.open.decision != decision:
            self._wrong(f"round {record['number']} was decided otherwise")
        if len(results) != len(kinds):
            self._wrong(f"round {record['number']} has {len(results)} results of {len(kinds)} operations")
        for (name, kind), result in zip(kinds.items(), results, strict=False):
            self.results[name] = result
            if kind in ANNOUNCED:
                self._check_recorded(name, result)
            elif kind == "workspace" and result.get("result") != "failed":
                self.changes.append(name)
        self.open = None
        self.last_round = record["number"]

    def _check_recorded(self, name: str, result: Any) -> None:
        if self.open is None or name not in self.open.begun:
            self._wrong(f"{name} is in a round and never began")
            return
        settled = self.open.settled.get(name)
        recorded = self.open.finished.get(name, settled.get("result") if settled is not None else None)
        if recorded is None and self.open.life[name] != self.life:
            self._wrong(f"{name} is in a round without its own result")
        elif recorded not in (None, result):
            self._wrong(f"{name} has two results")

    def _kinds(self, decision: Event) -> dict[str, str]:
        kinds: dict[str, str] = {}
        for operation in decision.get("operations", []):
            name = operation["operation_id"]
            kinds[name] = operation.get("effect", ONCE)
            self.calls[name] = operation["call"]
        if len(kinds) != len(decision.get("operations", [])):
            self._wrong("two operations have the same id")
        self.kinds |= kinds
        return kinds


def check_history(history: History) -> list[str]:
    """Return what is wrong with a history, in words; nothing: every promise was kept."""
    reading = read_log(history.disk)
    # What was dropped behind a saved state is known from what was told of it, if that was all of it.
    dropped = [event for sequence, event in history.told if sequence < reading.first]
    is_known = len(dropped) == reading.first - 1
    fold = _Fold()
    fold.walk([*dropped, *reading.events] if is_known else reading.events)
    problems = [f"the log: {problem}" for problem in fold.problems]
    if not reading.whole:
        problems.append(f"the log on the disk is not whole: {reading.problem}")
    problems += _check_told(history, reading, fold)
    problems += _check_effects(history, fold, is_known=is_known)
    for reported in history.reported:
        problems += _check_reported(reported, history)
    if history.reported and not history.crashed:
        problems.append("something was unknown although nothing died")
    for claim in history.claims:
        problems += _check_claim(claim)
    for sequence, objects in history.watermarks:
        stored = read_log(objects)
        if sequence > stored.last:
            problems.append(f"the watermark promises event {sequence}, and the store proves {stored.last}")
    if history.files is not None and is_known and fold.open is None and list(history.files) != fold.changes:
        problems.append(f"the workspace holds {list(history.files)}, and the rounds say {fold.changes}")
    return problems


def _check_told(history: History, reading: Reading, fold: _Fold) -> list[str]:
    problems = []
    by_number = dict(enumerate(reading.events, start=reading.first))
    for sequence, event in history.told:
        known = by_number.get(sequence)
        if known is None and sequence >= reading.first:
            problems.append(f"event {sequence} ({event['event']}) was told and is lost")
        elif known is not None and known != event:
            problems.append(f"event {sequence} was told as {_short(event)} and is {_short(known)}")
    expected = 1
    for sequence, event in history.told:
        # A beginning that was dropped is answered with the state that stands for it.
        if sequence != expected and (sequence < expected or event["event"] != "state"):
            problems.append(f"a watcher was told event {sequence}, and event {expected} comes next")
        expected = sequence + 1
    if history.ended and not fold.ended:
        problems.append("the end was told, and the log does not hold it")
    return problems


def _check_effects(history: History, fold: _Fold, *, is_known: bool) -> list[str]:
    problems = []
    times: Counter[str] = Counter()
    for effect in history.effects:
        times[effect.operation] += effect.by
        if times[effect.operation] > 1:
            problems.append(f"{effect.operation} is in effect {times[effect.operation]} times")
        if times[effect.operation] < 0:
            problems.append(f"{effect.operation} was undone and had not happened")
        if effect.by < 0 and fold.kinds.get(effect.operation, "compensated") != "compensated":
            problems.append(f"{effect.operation} was undone, and is not of the kind that may be")
        if effect.operation not in fold.kinds and is_known:
            problems.append(f"{effect.operation} happened, and nothing says that it was decided")
    for name, result in fold.results.items():
        if fold.kinds[name] not in ANNOUNCED:
            continue
        happened = result.get("result") != "failed"
        if happened != (times[name] == 1):
            problems.append(f"{name} is recorded as {_short(result)}, and is in effect {times[name]} times")
    open_ = fold.open
    for name, count in times.items():
        begun = open_ is not None and name in open_.begun
        if count and name in fold.kinds and name not in fold.results and not begun:
            problems.append(f"{name} happened, and no round and no announcement says so")
    return problems


def _check_reported(reported: Reported, history: History) -> list[str]:
    """Look at what the log held when an outcome was called unknown: exactly these had to be.

    That nothing went on from there without a verdict is a rule of the fold.
    """
    reading = read_log(reported.log)
    fold = _Fold()
    dropped = [event for sequence, event in history.told if sequence < reading.first]
    fold.walk([*dropped, *reading.events])
    must = [name for name in fold.open.undecided() if fold.open.kinds[name] == ONCE] if fold.open is not None else []
    if sorted(must) != sorted(reported.operations):
        return [f"{sorted(reported.operations)} were called unknown, and {sorted(must)} are"]
    return []


def _check_claim(claim: Claim) -> list[str]:
    reading = read_log(claim.objects)
    proven = len(reading.rounds())
    problems = []
    if claim.word == "complete" and not reading.has_ended:
        why = reading.problem or "its end is not there"
        problems.append(f"a history was called complete: {why}")
    if claim.word == "open" and not reading.whole:
        problems.append(f"a history with a gap was called open: {reading.problem}")
    if claim.rounds > proven:
        problems.append(f"a reader returned {claim.rounds} rounds, and {proven} are proven")
    return problems


def _short(document: Any) -> str:
    text = json.dumps(document, sort_keys=True)
    return text if len(text) < 300 else text[:300] + "..."
