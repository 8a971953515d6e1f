"""What is declared of a backend: what it serves, how fast, up to which limits and at which prices.

A backend is whatever runs a model when it is asked over HTTP: one inference instance, or a hosted service. Backends
that may stand in for each other form a model group; only within a group is a prefix worth the same everywhere.

A token of one call takes longer the more calls are served beside it, since they share the accelerator. The times are
declared by number of calls and interpolated between; above the last one the last one holds, below the first the first.
Source: the chapter, opening table and sections 11.4.2 to 11.4.4.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left

from dsec.base.errors import InvalidRequestError
from dsec.costs.checks import check_count, check_not_negative, check_positive
from dsec.costs.token_prices import TokenPrices
from dsec.model.value import Value
from dsec.routing.model_names import is_same_model


class BackendKind(enum.Enum):
    """The protocol that a backend speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    REPLAY = "replay"


class Pace(Value, frozen=True):
    """The time of one output token of one call.

    Attributes:
        calls: with so many calls side by side.
        s_per_token: seconds from one token of a call to its next.
    """

    calls: int
    s_per_token: float


class Limits(Value, frozen=True):
    """What a backend takes. What is absent is not limited.

    Attributes:
        slots: calls that it serves side by side; further ones wait at the gateway.
        waiting: calls that may wait for a slot there; beyond it the backend is full. Of one project at most as many may
            wait as places are left, so that one alone fills half of them and the others still find some.
        context_tokens: input and output of one call together.
        requests_per_minute: calls begun in any 60 s.
        tokens_per_minute: tokens of calls begun in any 60 s, input and output.
    """

    slots: int | None = None
    waiting: int = 256
    context_tokens: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        check_count("waiting", self.waiting, minimum=0)
        for name in ("slots", "context_tokens", "requests_per_minute", "tokens_per_minute"):
            if (value := getattr(self, name)) is not None:
                check_count(name, value, minimum=1)


class PrefixCache(Value, frozen=True):
    """How a backend keeps prefixes.

    Attributes:
        capacity_tokens: how much it keeps; None: unknown, and bounded by what the index remembers.
        lifetime_s: how long after its last use a prefix is kept; None: until others push it out.
        minimum_tokens: shorter prefixes are not kept.
        explicit: whether it keeps and finds prefixes only for calls that ask for it (`RouteRequest.cacheable_tokens`).
    """

    capacity_tokens: int | None = None
    lifetime_s: float | None = None
    minimum_tokens: int = 0
    explicit: bool = False

    def __post_init__(self) -> None:
        check_count("minimum_tokens", self.minimum_tokens, minimum=0)
        if self.capacity_tokens is not None:
            check_count("capacity_tokens", self.capacity_tokens, minimum=0)
        if self.lifetime_s is not None:
            check_positive("lifetime_s", self.lifetime_s, "s")


class Backend(Value, frozen=True):
    """One backend.

    Attributes:
        name: unique at this gateway.
        kind: the protocol it speaks.
        group: the model group; backends of one group give equally good answers.
        model: what the model is called there; empty: as the group.
        aliases: further names under which it may answer.
        limits: what it takes.
        pace: times of output tokens by calls side by side, ascending; empty: unknown, counted as nothing.
        prefill_tokens_per_s: input tokens processed in a second that are not cached; None: unknown, counted as nothing.
        cached_tokens_per_s: the same for tokens found in its cache; None: they take no time.
        network_s: the way there and back.
        prices: by the token; None: not sold by the token.
        reserved_usd_per_h: price of the whole backend for an hour, for one that is paid by time.
        success: probability that an answer passes the caller's acceptance rule.
        thinking_tokens: that the model usually spends on a call before it answers.
        cache: how it keeps prefixes; None: it keeps none.
    """

    name: str
    group: str
    kind: BackendKind = BackendKind.OPENAI
    model: str = ""
    aliases: tuple[str, ...] = ()
    limits: Limits = Limits()
    pace: tuple[Pace, ...] = ()
    prefill_tokens_per_s: float | None = None
    cached_tokens_per_s: float | None = None
    network_s: float = 0.0
    prices: TokenPrices | None = None
    reserved_usd_per_h: float | None = None
    success: float = 1.0
    thinking_tokens: int = 0
    cache: PrefixCache | None = PrefixCache()

    def __post_init__(self) -> None:
        if not self.name or not self.group:
            raise InvalidRequestError(
                f"backend {self.name!r} of group {self.group!r} is not named", resolution="give it a name and a group"
            )
        for name, unit in (("prefill_tokens_per_s", "token/s"), ("cached_tokens_per_s", "token/s")):
            if (value := getattr(self, name)) is not None:
                check_positive(name, value, unit)
        if (self.cached_tokens_per_s or math.inf) < (self.prefill_tokens_per_s or math.inf):
            raise _wrong(
                "cached_tokens_per_s", self.cached_tokens_per_s, "at least prefill_tokens_per_s, which it needs"
            )
        check_not_negative("network_s", self.network_s, "s")
        if self.reserved_usd_per_h is not None:
            check_not_negative("reserved_usd_per_h", self.reserved_usd_per_h, "USD/h")
        if not 0 < self.success <= 1:
            raise _wrong("success", self.success, "a probability above 0 and at most 1")
        check_count("thinking_tokens", self.thinking_tokens, minimum=0)
        self._check_pace()

    def _check_pace(self) -> None:
        for pace in self.pace:
            check_count("pace.calls", pace.calls, minimum=1)
            check_positive("pace.s_per_token", pace.s_per_token, "s/token")
        if any(first.calls >= second.calls for first, second in zip(self.pace, self.pace[1:], strict=False)):
            raise _wrong("pace", [pace.calls for pace in self.pace], "numbers of calls that ascend")

    @property
    def model_name(self) -> str:
        """What the model is called at this backend."""
        return self.model or self.group

    def answers_as(self, model: str) -> bool:
        """Say whether an answer that names `model` is from the model that was asked for."""
        return any(is_same_model(name, model) for name in (self.model_name, *self.aliases))

    def s_per_token(self, calls: int) -> float:
        """Return the time of one output token of each of so many calls side by side; 0 if it is not known."""
        if not self.pace:
            return 0.0
        at = bisect_left(self.pace, calls, key=lambda pace: pace.calls)
        if at == 0 or at == len(self.pace):
            return self.pace[min(at, len(self.pace) - 1)].s_per_token
        below, above = self.pace[at - 1], self.pace[at]
        share = (calls - below.calls) / (above.calls - below.calls)
        return below.s_per_token + share * (above.s_per_token - below.s_per_token)

    def keeps(self, cacheable_tokens: int) -> bool:
        """Say whether its cache takes part in a call that asks for so many tokens to be kept."""
        return self.cache is not None and (not self.cache.explicit or cacheable_tokens > 0)

    def prefill_s(self, input_tokens: int, cached_tokens: int) -> float:
        """Return how long the input of a call is processed of which so many tokens are found in the cache."""
        cached_s = cached_tokens / self.cached_tokens_per_s if self.cached_tokens_per_s else 0.0
        new = input_tokens - cached_tokens
        return cached_s + (new / self.prefill_tokens_per_s if self.prefill_tokens_per_s else 0.0)


def _wrong(name: str, value: object, wanted: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name} is {value}, which is not {wanted}", resolution=f"give {name} as {wanted}")
