"""What a simulated backend is like: how fast, how large, how much it says, and how often it goes wrong in which way."""

from __future__ import annotations

import enum
import math

from dsec.base.errors import InvalidRequestError
from dsec.costs.checks import check_count
from dsec.model.value import Value
from dsec.routing.backend import Backend, Limits, Pace, PrefixCache

_SUM_SLACK = 1e-9


class Trouble(enum.Enum):
    """A way in which an answer goes wrong."""

    FAILED = "failed"  # 500 at once.
    OVERLOADED = "overloaded"  # 503, or 529 for messages.
    LIMITED = "limited"  # 429 that says when to come back.
    LIMITED_SILENTLY = "limited-silently"  # 429 that does not.
    REFUSED = "refused"  # 400.
    GONE = "gone"  # The connection ends without an answer.
    SILENT = "silent"  # Never a byte.
    WEB_PAGE = "web-page"  # 200 with HTML.
    ERROR_EVENT = "error-event"  # An error in the middle of the stream.
    BROKEN_OFF = "broken-off"  # The connection ends in the middle.
    CUT_SHORT = "cut-short"  # The stream ends well in the middle, without its last events.
    STALLED = "stalled"  # Nothing more comes after the middle.
    NOT_UTF8 = "not-utf8"
    BROKEN_EVENT = "broken-event"  # Not JSON.
    ENDLESS_EVENT = "endless-event"  # Many bytes, and never an end.
    NO_USAGE = "no-usage"
    LYING_USAGE = "lying-usage"  # Numbers that cannot be.
    OTHER_MODEL = "other-model"  # It says that another model answered.


class FakeSettings(Value, frozen=True):
    """One simulated backend.

    Attributes:
        model: the name it answers to; any, if a caller asks for another.
        slots: calls served side by side; None: all of them.
        waiting: calls that may wait for a slot; more are refused as overload.
        pace: time of a token by calls side by side; none: no time.
        prefill_tokens_per_s, cached_tokens_per_s: processing of input, new and found in the cache; None: no time.
        context_tokens: longest input; None: any.
        requests_per_minute, tokens_per_minute: limits; beyond them 429.
        tells_when: whether that 429 says when to come back.
        visible_tokens, thinking_tokens: of an answer whose call does not say.
        cache_tokens: what the prefix cache holds; 0: there is none.
        cache_lifetime_s: how long after its last use; None: until others push it out.
        cache_minimum_tokens: shorter prefixes are not kept.
        cache_block_tokens: what is kept of chat and responses are whole blocks.
        event_tokens: tokens in one event of a stream.
        speed: how many times faster than the times above; infinite: no waits at all.
        troubles: share of calls with each trouble; the rest goes well.
        seed: two backends of one seed give the same answers and troubles to the same calls.
    """

    model: str = "fake"
    slots: int | None = None
    waiting: int = 256
    pace: tuple[Pace, ...] = ()
    prefill_tokens_per_s: float | None = None
    cached_tokens_per_s: float | None = None
    context_tokens: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tells_when: bool = True
    visible_tokens: int = 100
    thinking_tokens: int = 0
    cache_tokens: int = 4_000_000
    cache_lifetime_s: float | None = None
    cache_minimum_tokens: int = 0
    cache_block_tokens: int = 16
    event_tokens: int = 1
    speed: float = 1.0
    troubles: dict[Trouble, float] = {}
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("waiting", "visible_tokens", "thinking_tokens", "cache_tokens", "cache_minimum_tokens"):
            check_count(name, getattr(self, name), minimum=0)
        check_count("event_tokens", self.event_tokens)
        check_count("cache_block_tokens", self.cache_block_tokens)
        if not self.speed > 0:
            raise InvalidRequestError(f"speed is {self.speed}", resolution="give a number above 0, or inf for no waits")
        for trouble, share in self.troubles.items():
            if not 0 <= share <= 1:
                raise InvalidRequestError(f"the share of {trouble.value} is {share}", resolution="give 0 to 1")
        if (total := sum(self.troubles.values())) > 1 + _SUM_SLACK:
            raise InvalidRequestError(f"the shares of troubles add up to {total:g}", resolution="at most 1 in all")
        self.backend()  # It checks the rest.

    @property
    def waits(self) -> bool:
        """Whether anything takes time."""
        return math.isfinite(self.speed)

    def backend(self) -> Backend:
        """Return what a gateway would declare of it: the same model of service time."""
        return Backend(
            name="fake",
            group=self.model or "fake",
            limits=Limits(
                slots=self.slots,
                waiting=self.waiting,
                context_tokens=self.context_tokens,
                requests_per_minute=self.requests_per_minute,
                tokens_per_minute=self.tokens_per_minute,
            ),
            pace=self.pace,
            prefill_tokens_per_s=self.prefill_tokens_per_s,
            cached_tokens_per_s=self.cached_tokens_per_s,
            cache=PrefixCache(capacity_tokens=self.cache_tokens, lifetime_s=self.cache_lifetime_s)
            if self.cache_tokens
            else None,
        )
