"""A small world of one chunk, to look at every interleaving of those who collect, publish, pull and unpublish.

`dsec.images.lazy.collection.rules` decides; what happens between its decisions is modelled: one step is one request to
the store, anybody may take the next, stand still for as long as time allows, or never take it (be killed). `explore`
visits states and returns a way to a loss: an image that is published, or a layer that a host
pulled, whose chunk is gone. Draws of interleavings do not find such ways: they are twenty steps long, of which each has
to come at its time.

Time has the unit of half a window, in which a deletion that was sent is carried out or never is. It is kept as ages,
which stop to be counted where no rule looks at them any more, and passes in leaps: to the last moment before a rule
changes its mind, or the first one after (the corners of regions, Alur and Dill, "A theory of timed automata", 1994).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

from dsec.images.lazy.collection import rules as real_rules
from dsec.images.lazy.collection.objects import Part, Tombstone, TombstoneState
from dsec.stores.objects import ObjectInfo

WINDOW = 2
GRACE = 16 * WINDOW
_SENT = WINDOW // 2
_PIN = 2 * GRACE
_NOW_S = 1000.0
_PASS = " windows pass"
_PART = Part.chunk("a" * 64)
_DOOMED, _KEPT, _DELETED = TombstoneState.DOOMED, TombstoneState.KEPT, TombstoneState.DELETED

Mark = tuple[TombstoneState, int]
"""A tombstone's state and age."""


class Collector(NamedTuple):
    """A collector.

    Attributes:
        at: what it does next; empty: it begins.
        if_needed, if_not: what it will do, by what it will find to be reachable.
        is_same: whether the tombstone is still the one that it saw.
        left: in what time a deletion that it sent can be carried out.
        runs: how many times it will begin again.
    """

    runs: int
    at: str = ""
    if_needed: str = ""
    if_not: str = ""
    is_same: bool = True
    left: int = 0


class Publisher(NamedTuple):
    """A publisher of an image with the chunk.

    Attributes:
        at: what it does next; empty: it is done, or dead.
        looked: how long ago it looked at the tombstone.
        left: how long it sleeps, or in what time its document is put.
    """

    at: str = ""
    looked: int = 0
    left: int = 0


class World(NamedTuple):
    """What is in the store, and where everybody is.

    Attributes:
        mark: the chunk's tombstone.
        age: of the chunk; None: it is not there.
        is_document: whether a document names the chunk.
        is_published: and somebody was told so.
        pin: the age of a host's pin; None: there is none, or it is old.
        is_pulled: whether a host relies on its pin.
        puller: how many steps of a pull were done; None: nobody pulls.
        may_unpublish: whether somebody may delete the document.
    """

    mark: Mark | None = None
    age: int | None = GRACE
    is_document: bool = False
    is_published: bool = False
    pin: int | None = None
    is_pulled: bool = False
    first: Collector = Collector(1)
    second: Collector = Collector(2)
    publisher: Publisher = Publisher()
    puller: int | None = None
    may_unpublish: bool = False

    @property
    def is_lost(self) -> bool:
        """Whether something that somebody relies on is gone."""
        return self.age is None and (self.is_published or self.is_pulled)


@dataclass(slots=True)
class Found:
    """What an exploration came to.

    Attributes:
        states: how many were visited.
        way: steps that lead to a loss; empty: none was found.
        is_all: whether all states were visited.
    """

    states: int
    way: tuple[str, ...] = ()
    is_all: bool = True


@dataclass(slots=True)
class Model:
    """The world under some rules.

    Attributes:
        rules: a module like `dsec.images.lazy.collection.rules`.
        judges_by_view: whether a collector asks, when it reads a tombstone again, whether it was due at its view; or,
            which is wrong, whether it is now.
        reads_again: whether it reads the tombstone again at all.
    """

    rules: ModuleType = real_rules
    judges_by_view: bool = True
    reads_again: bool = True
    _plans: dict[tuple[Mark | None, bool, bool], str] = field(default_factory=dict)
    _answers: dict[tuple[str, Mark | None], bool] = field(default_factory=dict)

    def explore(self, start: World, limit: int) -> Found:
        """Visit states, those first that take the fewest leaps of time, until one is a loss, all were visited, or so
        many were. Between leaps there are few."""
        came_from: dict[World, tuple[World, str] | None] = {start: None}
        todo = deque([start])
        while todo:
            world = todo.popleft()
            if world.is_lost:
                return Found(len(came_from), _way(came_from, world), is_all=False)
            if len(came_from) > limit:
                return Found(len(came_from), is_all=False)
            for step, after in self._steps(world):
                if after not in came_from:
                    came_from[after] = (world, step)
                    (todo.append if step.endswith(_PASS) else todo.appendleft)(after)
        return Found(len(came_from))

    def settles(self, start: World, runs: int = 6) -> bool:
        """Whether a collector alone, which runs at times, leaves nothing of what nobody needs."""
        world = start._replace(is_document=False, pin=None, publisher=Publisher())
        for _ in range(runs):
            world = world._replace(first=Collector(1), second=Collector(0))
            while steps := list(self._collect(world, "first")):
                world = steps[0][1]
            world = _later(world, GRACE)
        return world.mark is None and world.age is None

    def ends(self, start: World, steps: int = 40) -> bool:
        """Whether a publisher alone gets its image published."""
        world = start._replace(publisher=Publisher("look"))
        for _ in range(steps):
            if not world.publisher.at:
                return world.is_published and world.age is not None
            if world.publisher.at == "sleep":
                world = _later(world, max(1, world.publisher.left))
            world = next(iter(self._publish(world)), (("", world)))[1]
        return False

    def _steps(self, world: World) -> Iterator[tuple[str, World]]:
        yield from self._collect(world, "first")
        yield from self._collect(world, "second")
        yield from self._publish(world)
        yield from self._pull(world)
        for leap in self._leaps(world):
            yield f"{leap / WINDOW:g}{_PASS}", _later(world, leap)

    def _collect(self, world: World, who: str) -> Iterator[tuple[str, World]]:
        mine: Collector = getattr(world, who)
        done = Collector(mine.runs)
        match mine.at:
            case "" if mine.runs:
                if_needed, if_not = self._plan(world, True), self._plan(world, False)
                if if_needed or if_not:
                    seen = Collector(mine.runs - 1, "reach", if_needed, if_not)
                    yield f"{who} sees", _with(world, who, seen)
            case "reach":
                is_needed = world.is_document or world.pin is not None
                plan = mine.if_needed if is_needed else mine.if_not
                after = done._replace(at=plan, is_same=mine.is_same or plan != "Delete") if plan else done
                yield f"{who} looks what is {'' if is_needed else 'not '}reachable", _with(world, who, after)
            case "Keep":
                yield f"{who} says kept", _with(_marked(world, (_KEPT, 0)), who, done)
            case "Doom":
                doomed = _marked(world, (_DOOMED, 0)) if world.mark is None else world
                yield f"{who} dooms", _with(doomed, who, done)
            case "Forget" | "Delete":
                may = self._may_act(mine, world)
                after = done._replace(at=f"{mine.at} sent", left=_SENT) if may else done
                yield f"{who} reads the tombstone again", _with(world, who, after)
            case "Forget sent":
                yield f"{who} forgets", _with(_marked(world, None), who, done)
            case "Delete sent":
                yield f"{who} deletes", _with(world._replace(age=None), who, done._replace(at="say"))
            case "say":
                yield f"{who} says deleted", _with(_marked(world, (_DELETED, 0)), who, done)

    def _may_act(self, mine: Collector, world: World) -> bool:
        if not self.reads_again:
            return True
        if mine.at == "Forget":
            return self._ask("may_forget", world.mark)
        # One that is not the same was written after the view, and was due at no time before.
        return (mine.is_same or not self.judges_by_view) and self._ask("is_due", world.mark)

    def _publish(self, world: World) -> Iterator[tuple[str, World]]:
        mine = world.publisher
        match mine.at:
            case "look":
                yield from self._look(world, Publisher("head"), Publisher("sleep", left=WINDOW))
            case "object" | "object late":
                then = Publisher("sleep", left=WINDOW) if mine.at == "object" else Publisher("look")
                yield "publisher says kept", _marked(world, (_KEPT, 0))._replace(publisher=then)
            case "sleep" if mine.left == 0:
                yield "publisher wakes", world._replace(publisher=Publisher("look"))
            case "head":
                at = "put" if world.age is None else "confirm"
                yield "publisher looks for the chunk", world._replace(publisher=mine._replace(at=at))
            case "put":
                age = 0 if world.age is None else world.age
                yield "publisher puts it", world._replace(age=age, publisher=mine._replace(at="head"))
            case "confirm" if mine.looked > GRACE // 8:
                yield from self._look(world, Publisher("head late"), Publisher("look"))
            case "confirm":
                after = mine._replace(at="document", left=GRACE // 8)
                yield "publisher is content", world._replace(publisher=after)
            case "head late":
                is_there = Publisher("document", mine.looked, GRACE // 8)
                after = Publisher("look") if world.age is None else is_there
                yield "publisher looks for the chunk again", world._replace(publisher=after)
            case "document":
                after = mine._replace(at="recent", left=0)
                yield "publisher puts the document", world._replace(is_document=True, publisher=after)
            case "recent" if mine.looked < GRACE // 4:
                yield "publisher is done", world._replace(is_published=world.is_document, publisher=Publisher())
            case "recent":
                yield "publisher took too long", world._replace(publisher=mine._replace(at="confirm"))

    def _look(self, world: World, then: Publisher, waits: Publisher) -> Iterator[tuple[str, World]]:
        """Look at the tombstone: go on, or object to it and begin again later."""
        if self._ask("may_rely", world.mark):
            yield "publisher relies", world._replace(publisher=then)
        elif world.mark is not None and world.mark[0] is _KEPT:
            yield "publisher waits", world._replace(publisher=waits)
        else:
            at = "object" if waits.at == "sleep" else "object late"
            yield "publisher objects", world._replace(publisher=Publisher(at))

    def _pull(self, world: World) -> Iterator[tuple[str, World]]:
        if world.may_unpublish and world.is_document and world.publisher.at != "recent":
            gone = world._replace(is_document=False, is_published=False, may_unpublish=False)
            yield "somebody unpublishes", gone
        match world.puller:
            case 0 if world.is_document:
                yield "puller reads the document", world._replace(puller=1)
            case 1:
                yield "puller pins", world._replace(puller=2, pin=0)
            case 2:
                pulled = world.is_document and world.pin is not None
                yield "puller looks for the document", world._replace(puller=None, is_pulled=pulled)

    def _leaps(self, world: World) -> set[int]:
        """Return the times until something changes."""
        leaps: set[int] = set()
        if world.mark is not None:
            leaps.update(age - world.mark[1] for age in (WINDOW, 2 * WINDOW, GRACE // 2 - 1, GRACE - 1, GRACE))
        if world.age is not None:
            leaps.add(GRACE - world.age)
        if world.pin is not None:
            leaps.add(_PIN - world.pin)
        leaps |= {world.first.left, world.second.left, world.publisher.left}
        match world.publisher.at:
            case "head" | "put" | "confirm" | "head late":
                leaps.update(age - world.publisher.looked for age in (GRACE // 8, GRACE // 8 + 1))
            case "recent":
                leaps.update(age - world.publisher.looked for age in (GRACE // 4 - 1, GRACE // 4))
        return {leap for leap in leaps if leap > 0}

    def _plan(self, world: World, is_needed: bool) -> str:
        is_old = world.age is not None and world.age >= GRACE
        key = (world.mark, is_old, is_needed)
        if key not in self._plans:
            info = ObjectInfo(key="", size_bytes=1, modified_at_s=_NOW_S - (GRACE if is_old else 0))
            view = real_rules.StoreView(
                now_s=_NOW_S,
                grace_s=float(GRACE),
                objects={} if world.age is None else {_PART: info},
                tombstones={} if world.mark is None else {_PART: _tombstone(world.mark)},
                reachable={_PART} if is_needed else set(),
            )
            (action, *_) = self.rules.decide(view) or (None,)
            self._plans[key] = type(action).__name__ if action else ""
        return self._plans[key]

    def _ask(self, rule: str, mark: Mark | None) -> bool:
        if (rule, mark) not in self._answers:
            tombstone = None if mark is None else _tombstone(mark)
            self._answers[rule, mark] = getattr(self.rules, rule)(tombstone, _NOW_S, float(GRACE))
        return self._answers[rule, mark]


def _tombstone(mark: Mark) -> Tombstone:
    return Tombstone(state=mark[0], since_s=_NOW_S - mark[1])


def _with(world: World, who: str, collector: Collector) -> World:
    changed: dict[str, Any] = {who: collector}
    return world._replace(**changed)


def _marked(world: World, mark: Mark | None) -> World:
    """Write the tombstone, or delete it: collectors under way saw another."""
    first, second = (
        each._replace(is_same=False) if each.at in ("reach", "Delete") else each for each in (world.first, world.second)
    )
    return world._replace(mark=mark, first=first, second=second)


def _later(world: World, leap: int) -> World:
    pin = None if world.pin is None or world.pin + leap >= _PIN else world.pin + leap
    return world._replace(
        mark=None if world.mark is None else (world.mark[0], min(world.mark[1] + leap, GRACE)),
        age=None if world.age is None else min(world.age + leap, GRACE),
        pin=pin,
        is_pulled=world.is_pulled and pin is not None,
        first=_aged(world.first, leap),
        second=_aged(world.second, leap),
        publisher=_older(world.publisher, leap),
    )


def _aged(collector: Collector, leap: int) -> Collector:
    if not collector.at.endswith(" sent"):
        return collector
    # What was sent and not carried out never is.
    return Collector(collector.runs) if leap > collector.left else collector._replace(left=collector.left - leap)


def _older(publisher: Publisher, leap: int) -> Publisher:
    if publisher.at == "document" and leap > publisher.left:
        return Publisher()
    if publisher.at in ("", "look", "object", "object late"):
        return publisher
    looked = 0 if publisher.at == "sleep" else min(publisher.looked + leap, GRACE // 4)
    return publisher._replace(looked=looked, left=max(0, publisher.left - leap))


def _way(came_from: dict[World, tuple[World, str] | None], end: World) -> tuple[str, ...]:
    steps, before = [], came_from[end]
    while before is not None:
        steps.append(before[1])
        before = came_from[before[0]]
    return tuple(reversed(steps))
