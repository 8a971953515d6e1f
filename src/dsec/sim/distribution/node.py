"""One simulated node: what it has, what it wants, and what it sends."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from dsec.distribution.acquisition import Acquisition
from dsec.distribution.announcer import Announcer
from dsec.distribution.messages import Answer, Failure
from dsec.distribution.places import Places
from dsec.distribution.uploads import Stage, Upload, Uploads
from dsec.sim.fleet.links import Link

Question = tuple[int, tuple[Failure, ...]]
"""A chunk, and who failed to give it."""


class Nature(enum.Enum):
    """How a node behaves towards others."""

    HONEST = "honest"
    WRONG = "wrong"
    STALLING = "stalling"
    LYING = "lying"


@dataclass(slots=True, eq=False)
class Transfer:
    """One chunk that one node asks another for.

    Attributes:
        asked_s: when the receiver asked.
        hold_until_s: the receiver waits no longer for it to begin.
        deadline_s: the receiver waits no longer.
        is_pending: whether the receiver waits if the sender is only getting the chunk itself.
        upload: at the sender; None: it was not let in yet.
        is_relayed: whether the sender is getting the chunk itself while it sends it.
        over: whether the receiver gave it up, or its end was told.
    """

    sender: SimNode
    receiver: SimNode
    chunk: int
    asked_s: float
    hold_until_s: float
    deadline_s: float
    is_pending: bool = False
    upload: Upload | None = None
    is_relayed: bool = False
    over: bool = False

    @property
    def is_held(self) -> bool:
        """Whether it waits, for a slot or for the chunk."""
        return self.upload is not None and self.upload.stage is Stage.HELD

    @property
    def is_alive(self) -> bool:
        """Whether bytes or signs of life come, as far as the receiver can see."""
        return self.sender.alive and self.upload is not None and self.upload.stage is not Stage.OVER


@dataclass(slots=True, eq=False)
class SimNode:
    """One node.

    Attributes:
        name: its id.
        wanted: chunks that it is yet to fetch, in order.
        first_left: chunks of the first command that it lacks.
        have: the chunks that are there.
        under_way: how each chunk that it is fetching gets here.
        coming: chunks of which bytes come, and when the last one does.
        followers: who waits here for a chunk that is on its way.
        relays: to whom a chunk is sent while it comes.
        queue: who waits here for a slot.
        asks: whether it waits for the tracker's answer.
        questions: what it is going to ask the tracker.
        ahead: where chunks are to be had that it is going to fetch, and when it was told.
        asked_ahead: when it asked for each ahead.
        news_s: how long it gathers news, by the tracker's word.
        neighbours: who gave it chunks lately.
        places: whom it asks without the tracker.
        silent_until_s: until then it does not ask the tracker, which did not answer.
        usual_s: how long a chunk takes from a peer lately.
    """

    name: str
    up: Link
    down: Link
    uploads: Uploads
    announcer: Announcer
    nature: Nature
    start_s: float
    first: frozenset[int]
    wanted: deque[int]
    first_left: int
    have: set[int] = field(default_factory=set)
    under_way: dict[int, Acquisition | None] = field(default_factory=dict)
    coming: dict[int, float] = field(default_factory=dict)
    followers: dict[int, list[Transfer]] = field(default_factory=dict)
    relays: dict[int, list[Transfer]] = field(default_factory=dict)
    queue: deque[Transfer] = field(default_factory=deque)
    usual_s: float = 0.0
    asks: bool = False
    questions: list[Question] = field(default_factory=list)
    ahead: dict[int, tuple[float, Answer]] = field(default_factory=dict)
    asked_ahead: dict[int, float] = field(default_factory=dict)
    news_s: float = 0.0
    neighbours: dict[str, None] = field(default_factory=dict)
    places: Places = field(default_factory=Places)
    silent_until_s: float = 0.0
    alive: bool = True
    announces: bool = False
    first_s: float = -1.0
    all_s: float = -1.0
    received_bytes: int = 0
    wasted_bytes: int = 0
    sent_bytes: int = 0
