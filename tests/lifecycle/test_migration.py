"""Every interleaving of source, target, network and crashes of a migration.

Messages, once sent, stay on their way for ever: any of them may arrive now, later, again, or not at all. Both sides may
die between any two steps; what they had in memory is gone then. The walk visits every state that can be reached.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from dsec.base.errors import InvalidStateError
from dsec.lifecycle.migration import (
    SourceEvent,
    SourcePhase,
    TargetEvent,
    TargetPhase,
    Verdict,
    event_of,
    source_after,
    source_serves,
    target_after,
    target_serves,
    verdict,
)


class Message(enum.Enum):
    OFFER = "offer"
    LAST_ROUND = "last round"
    COMMIT = "commit"
    RELEASE = "release"
    ABORT = "abort"
    PREPARED = "prepared"
    ACKNOWLEDGED = "acknowledged"
    SAID_RELEASED = "said: released"
    SAID_GIVEN_UP = "said: given up"


@dataclass(frozen=True, slots=True)
class World:
    """Both journals, both memories, and what is on its way.

    Attributes:
        begun: the source has drawn the id; it never uses it again.
        still: the source's sandbox stands still (memory).
        whole: the target has the last round (memory; its journal once it is prepared).
        stale: the source served after the round that it sent as the last one.
    """

    source: SourcePhase | None = None
    target: TargetPhase | None = None
    begun: bool = False
    still: bool = False
    whole: bool = False
    stale: bool = False
    sent: frozenset[Message] = frozenset()

    def send(self, *messages: Message) -> World:
        return replace(self, sent=self.sent | frozenset(messages))


def _source_moves(world: World) -> Iterator[World]:
    if not world.begun:
        yield replace(world, source=source_after(None, SourceEvent.BEGUN), begun=True).send(Message.OFFER)
    if world.source is SourcePhase.COPYING:
        if not world.still:
            yield replace(world, still=True).send(Message.LAST_ROUND)
        else:
            yield world.send(Message.COMMIT)
            if Message.PREPARED in world.sent:
                yield replace(world, source=source_after(world.source, SourceEvent.TARGET_PREPARED))
        yield _given_up(world, SourceEvent.GIVEN_UP).send(Message.ABORT)
    if world.source is SourcePhase.RELEASED:
        yield world.send(Message.RELEASE)
        if Message.ACKNOWLEDGED in world.sent:
            yield replace(world, source=source_after(world.source, SourceEvent.ACKNOWLEDGED))
    if world.begun:
        answer = verdict(world.source)
        if answer is Verdict.RELEASED:
            yield world.send(Message.SAID_RELEASED)
        if answer is Verdict.GIVEN_UP:
            yield world.send(Message.SAID_GIVEN_UP)


def _given_up(world: World, event: SourceEvent) -> World:
    after = source_after(world.source, event)
    sent_last = Message.LAST_ROUND in world.sent
    return replace(world, source=after, still=False, stale=world.stale or (source_serves(after) and sent_last))


def _target_moves(world: World) -> Iterator[World]:
    for message, event in (
        (Message.OFFER, TargetEvent.OFFERED),
        (Message.COMMIT, TargetEvent.COMMITTED),
        (Message.RELEASE, TargetEvent.RELEASE_HEARD),
        (Message.ABORT, TargetEvent.ABORT_HEARD),
        (Message.SAID_RELEASED, event_of(Verdict.RELEASED)),
        (Message.SAID_GIVEN_UP, event_of(Verdict.GIVEN_UP)),
    ):
        if message in world.sent and event is not None:
            yield from _heard(world, event)
    if world.target is TargetPhase.RECEIVING:
        if Message.LAST_ROUND in world.sent:
            yield replace(world, whole=True)
        yield replace(world, target=target_after(world.target, TargetEvent.LEASE_ENDED), whole=False)


def _heard(world: World, event: TargetEvent) -> Iterator[World]:
    if event is TargetEvent.COMMITTED and not world.whole:
        return  # Rounds are missing: it refuses.
    try:
        after = target_after(world.target, event)
    except InvalidStateError:
        return  # It refuses.
    heard = replace(world, target=after, whole=world.whole and after is not None)
    if event is TargetEvent.COMMITTED:
        heard = heard.send(Message.PREPARED)
    if event is TargetEvent.RELEASE_HEARD:
        heard = heard.send(Message.ACKNOWLEDGED)
    yield heard


def _crashes(world: World) -> Iterator[World]:
    if world.begun:
        yield _given_up(world, SourceEvent.RESTARTED)
    after = target_after(world.target, TargetEvent.RESTARTED)
    yield replace(world, target=after, whole=world.whole and after is not None)


def _reachable() -> dict[World, frozenset[World]]:
    """Every state, with those that follow on it without a crash."""
    first = World()
    found: dict[World, frozenset[World]] = {}
    waiting = deque([first])
    while waiting:
        world = waiting.popleft()
        if world in found:
            continue
        steps = frozenset((*_source_moves(world), *_target_moves(world))) - {world}
        found[world] = steps
        waiting.extend((*steps, *_crashes(world)))
    return found


@pytest.fixture(scope="module")
def worlds() -> dict[World, frozenset[World]]:
    return _reachable()


def test_the_walk_visits_every_phase_of_both(worlds: dict[World, frozenset[World]]) -> None:
    assert {world.source for world in worlds} == {None, *SourcePhase}
    assert {world.target for world in worlds} == {None, *TargetPhase}
    doubtful = [world for world in worlds if world.source is None and world.target is TargetPhase.PREPARED]
    assert doubtful, "the target can be in doubt after the source gave up"


def test_never_do_both_serve(worlds: dict[World, frozenset[World]]) -> None:
    assert not [world for world in worlds if source_serves(world.source) and target_serves(world.target)]


def test_a_release_finds_a_whole_copy_that_is_prepared(worlds: dict[World, frozenset[World]]) -> None:
    released = [world for world in worlds if world.source in (SourcePhase.RELEASED, SourcePhase.MOVED)]
    assert released
    for world in released:
        assert world.target in (TargetPhase.PREPARED, TargetPhase.DONE), world
        assert world.whole, world


def test_nothing_that_was_served_after_the_last_round_is_lost(worlds: dict[World, frozenset[World]]) -> None:
    assert not [world for world in worlds if world.stale and not source_serves(world.source)]


def test_from_everywhere_one_of_them_comes_to_serve_and_nothing_is_left(worlds: dict[World, frozenset[World]]) -> None:
    settled = {
        world
        for world in worlds
        if source_serves(world.source) != target_serves(world.target)
        and (world.source, world.target) in ((None, None), (SourcePhase.MOVED, TargetPhase.DONE))
    }
    reaching = set(settled)
    grew = True
    while grew:
        more = {world for world, after in worlds.items() if world not in reaching and after & reaching}
        grew = bool(more)
        reaching |= more
    assert not set(worlds) - reaching


def test_what_is_done_is_not_undone_by_a_late_message() -> None:
    for event in (TargetEvent.OFFERED, TargetEvent.COMMITTED, TargetEvent.ABORT_HEARD, TargetEvent.LEASE_ENDED):
        with pytest.raises(InvalidStateError, match="done"):
            target_after(TargetPhase.DONE, event)


def test_the_source_decides_once() -> None:
    for phase in (SourcePhase.RELEASED, SourcePhase.MOVED):
        with pytest.raises(InvalidStateError):
            source_after(phase, SourceEvent.GIVEN_UP)
