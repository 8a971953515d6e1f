"""What the ledger says of an attempt: one record when it begins, before a byte is sent, and one when it has ended.

See docs/formats/gateway-ledger.md.
"""

from __future__ import annotations

import enum

import msgspec

from dsec.routing.usage import Usage


class Outcome(enum.Enum):
    """How an attempt ended."""

    ANSWERED = "answered"  # The backend gave its whole answer.
    REFUSED = "refused"  # The backend refused the call itself, and the caller was told.
    FAILED = "failed"  # It failed; another attempt may have followed.
    CANCELLED = "cancelled"  # The caller went away, or another attempt of the call was quicker.
    CUT = "cut"  # The gateway ended it: a budget was used up, or the deadline passed.
    UNKNOWN = "unknown"  # The gateway died meanwhile; nobody knows how it ended.


class Cut(enum.Enum):
    """Why the gateway ended an attempt."""

    BUDGET = "budget"
    THINKING = "thinking"
    DEADLINE = "deadline"


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", gc=False):
    """A record of the ledger. Unknown fields are passed over: an older program may count a newer ledger."""


class Considered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A backend that was considered.

    Attributes:
        backend, verdict, why: see `dsec.routing.choice.Candidate`.
        queue_s, first_token_s, completion_s, hit_tokens, success_usd: what was predicted there.
    """

    backend: str
    verdict: str
    why: str
    queue_s: float = 0.0
    first_token_s: float = 0.0
    completion_s: float = 0.0
    hit_tokens: int = 0
    success_usd: float | None = None


class Began(Record, frozen=True, kw_only=True, omit_defaults=True, tag="began", gc=False):
    """An attempt is about to be sent.

    Attributes:
        attempt: its id.
        call: of the call that it belongs to.
        number: 1 for the first attempt of the call.
        wall_s: when, since the epoch.
        key, project, episode, task: whose it is.
        api: "chat", "responses" or "messages".
        model: as the caller named it.
        backend: where it goes.
        group: the model group there.
        streaming: whether the answer comes event by event.
        reason: why that backend, in a sentence.
        considered: the backends beside it.
        client_retry: how often the caller's own client had tried this call before.
        repeats: id of an earlier call of the episode whose thinking was cut and which this one repeats.
        hedge: whether it was sent while an earlier attempt of the call was under way.
        thinking_asked: thinking tokens that the caller asked for; None: no number.
        thinking_allowed: what it may use; None: not limited.
        estimate: what it was expected to use; counts if it never ends.
        estimated_usd: what that costs; None: there is no price.
        prices: the table that prices are from, and its day; empty: they stand in the configuration.
    """

    attempt: str
    call: str
    number: int
    wall_s: float
    key: str
    project: str
    api: str
    model: str
    backend: str
    group: str
    episode: str = ""
    task: str = ""
    streaming: bool = False
    reason: str = ""
    considered: tuple[Considered, ...] = ()
    client_retry: int = 0
    repeats: str = ""
    hedge: bool = False
    thinking_asked: int | None = None
    thinking_allowed: int | None = None
    estimate: Usage = Usage()
    estimated_usd: float | None = None
    prices: str = ""


class Cost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What an attempt costs, by what is paid for; in USD.

    Attributes:
        input, cache_write, cache_read, thinking, visible: by kind of token.
        reserved: its share of a backend that is paid by time.
        estimated: whether any part rests on an estimate.
        missing: kinds of tokens that were used and have no price.
    """

    input: float = 0.0
    cache_write: float = 0.0
    cache_read: float = 0.0
    thinking: float = 0.0
    visible: float = 0.0
    reserved: float = 0.0
    estimated: bool = False
    missing: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        """Everything."""
        return self.input + self.cache_write + self.cache_read + self.thinking + self.visible + self.reserved


class Ended(Record, frozen=True, kw_only=True, omit_defaults=True, tag="ended", gc=False):
    """An attempt has ended.

    Attributes:
        attempt: its id.
        wall_s: when.
        outcome: how.
        failure: what went wrong (`dsec.routing.retrying.FailureKind`); empty: nothing.
        brief: the same in a line.
        status: the backend's HTTP status; None: there was none.
        cut: why the gateway ended it; None: it did not.
        usage: what it used.
        cost: what that costs.
        queue_s: it waited for a slot.
        first_byte_s: from sending to the first byte of the answer; None: none came.
        duration_s: from sending to the end.
        events: of the stream.
        answered_model: what the answer says it is from.
    """

    attempt: str
    wall_s: float
    outcome: Outcome
    failure: str = ""
    brief: str = ""
    status: int | None = None
    cut: Cut | None = None
    usage: Usage = Usage()
    cost: Cost = Cost()
    queue_s: float = 0.0
    first_byte_s: float | None = None
    duration_s: float = 0.0
    events: int = 0
    answered_model: str = ""


class Opened(Record, frozen=True, kw_only=True, omit_defaults=True, tag="opened"):
    """A file of the ledger begins.

    Attributes:
        version: of the format.
        wall_s: when.
        sequence: number of the file.
    """

    version: int
    wall_s: float
    sequence: int


AnyRecord = Opened | Began | Ended


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt, both records together.

    Attributes:
        began: how it began.
        ended: how it ended; of one that never did, `Outcome.UNKNOWN` with what it was expected to use and cost.
    """

    began: Began
    ended: Ended


def unknown_end(began: Began) -> Ended:
    """Return how an attempt is counted whose end nobody knows: as expected, and marked as estimated."""
    return Ended(
        attempt=began.attempt,
        wall_s=began.wall_s,
        outcome=Outcome.UNKNOWN,
        brief="the gateway ended before the attempt did",
        usage=began.estimate,
        cost=Cost(visible=began.estimated_usd or 0.0, estimated=True),
    )
