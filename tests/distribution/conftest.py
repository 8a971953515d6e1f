"""Nodes around one tracker, for the tests of distribution."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from dsec.distribution.announcer import Announcer
from dsec.distribution.messages import Acknowledgement, Answer, Failure, FailureKind, Lookup, Report, Verdict
from dsec.distribution.policy import TrackerPolicy
from dsec.distribution.tracker import Tracker

LAYER = "a" * 64
GIGABIT = 125_000_000


def chunk(number: int) -> str:
    """Return a chunk's name."""
    return f"{number:064x}"


@dataclass
class Member:
    """One node, as a test drives it."""

    announcer: Announcer
    held: dict[str, set[str] | None] = field(default_factory=dict)
    bandwidth: int = GIGABIT
    slots: int = 4
    uploads: int = 0


class Swarm:
    """A tracker and nodes whose announcements arrive, unless a test loses them."""

    def __init__(self, policy: TrackerPolicy | None = None, seed: int = 1) -> None:
        self.now_s = 100.0
        self.seed = seed
        self.policy = policy or TrackerPolicy()
        self.tracker = Tracker(self.policy, random.Random(seed).getrandbits)
        self.members: dict[str, Member] = {}

    def join(self, *names: str, has: tuple[int, ...] = (), **fields: Any) -> None:
        for name in names:
            member = self.members[name] = Member(Announcer(name, f"http://{name}", "life-1"), **fields)
            if has:
                member.held[LAYER] = {chunk(number) for number in has}
            self.announce(name)

    def announce(self, name: str) -> Acknowledgement:
        """Announce until the tracker asks for nothing more; return its first answer."""
        first = None
        for _ in range(3):
            member = self.members[name]
            message = member.announcer.make(
                member.held, upload_bytes_per_s=member.bandwidth, upload_slots=member.slots, uploads=member.uploads
            )
            answer = self.tracker.announce(message, self.now_s)
            member.announcer.acknowledged(message, answer)
            first = first or answer
            if not answer.resend:
                break
        assert first is not None
        return first

    def gain(self, name: str, *numbers: int) -> None:
        chunks = {chunk(number) for number in numbers}
        held = self.members[name].held.setdefault(LAYER, set())
        assert held is not None
        held |= chunks
        self.members[name].announcer.gained(LAYER, chunks)
        self.announce(name)

    def ask(self, name: str, number: int = 1, *failures: tuple[str, FailureKind]) -> Answer:
        told = tuple(Failure(peer=peer, chunk=chunk(number), kind=kind) for peer, kind in failures)
        lookup = Lookup(node=name, layer=LAYER, chunks=(chunk(number),), failures=told)
        (answer,) = self.tracker.look_up(lookup, self.now_s).answers
        return answer

    def accuse(self, reporter: str, peer: str, number: int, kind: FailureKind = FailureKind.WRONG) -> list[Verdict]:
        failures = (Failure(peer=peer, chunk=chunk(number), kind=kind),)
        self.tracker.report(Report(node=reporter, failures=failures), self.now_s)
        return list(self.tracker.take_verdicts())

    def pass_time(self, seconds: float) -> None:
        """Let time pass; nodes renew their leases."""
        self.now_s += seconds
        for name in self.members:
            self.announce(name)
        self.tracker.expire(self.now_s)

    def restart_tracker(self) -> None:
        self.tracker = Tracker(self.policy, random.Random(self.seed).getrandbits)


MakeSwarm = Callable[..., Swarm]


@pytest.fixture
def make_swarm() -> MakeSwarm:
    return Swarm


@pytest.fixture
def swarm() -> Swarm:
    return Swarm()
