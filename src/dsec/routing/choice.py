"""What a decision says: the backend, or why there is none; and of every candidate why it was or was not taken."""

from __future__ import annotations

import enum

import msgspec

from dsec.base.errors import DsecError, InvalidRequestError, ModelUnavailableError, NotFoundError
from dsec.model.value import Value


class Reason(enum.Enum):
    """Why this backend."""

    CACHED = "cached"  # It begins first because it holds the prefix, or more of it than those that are as free.
    SHORTEST = "shortest"  # It begins first.
    STICKY = "sticky"  # The episode's other calls were there, and no other is better by more than staying is worth.
    QUICKEST = "quickest"  # It ends first.
    CHEAPEST = "cheapest"  # A success costs least there, of those that keep deadline and required success.


class Verdict(enum.Enum):
    """What became of a candidate."""

    TAKEN = "taken"
    LATER = "later"  # Open, but the one taken begins or ends earlier.
    DEARER = "dearer"  # Open, but a success costs more.
    UNTIMELY = "untimely"  # Too few of its answers succeed in time.
    EXCLUDED = "excluded"  # The call was there already.
    UNHEALTHY = "unhealthy"  # It failed too often lately.
    PAUSED = "paused"  # It asked for calls to stay away until a time.
    CONTEXT = "context"  # The call is longer than its context.
    FULL = "full"  # As many calls wait there as may.
    REQUESTS = "requests"  # Its requests of this minute are used up.
    TOKENS = "tokens"  # Its tokens of this minute are used up.

    @property
    def passes(self) -> bool:
        """Whether waiting may change it."""
        return self in (Verdict.UNHEALTHY, Verdict.PAUSED, Verdict.FULL, Verdict.REQUESTS, Verdict.TOKENS)


class Prediction(Value, frozen=True):
    """What a call would meet at one backend.

    Attributes:
        network_s: the way there and back.
        queue_s: waiting for a slot.
        hit_tokens: tokens of the prompt that its cache should hold.
        hit_share: probability that it really holds them.
        hit_prefill_s: processing of the prompt if it does.
        miss_prefill_s: the same if it does not.
        first_token_s: until the answer begins, on average over hit and miss.
        completion_s: until it ends, on average.
        crowding_s: how much later it counts because its slots are taken: what a call there takes from those after it.
        counted_s: time to the first token with that, which is what backends are compared by.
        call_usd: cost of the call, on average; None where no price is known.
        success_usd: cost of one call that succeeds; None where no price is known.
        timely_success: probability that the call succeeds within its deadline.
    """

    network_s: float
    queue_s: float
    hit_tokens: int
    hit_share: float
    hit_prefill_s: float
    miss_prefill_s: float
    first_token_s: float
    completion_s: float
    crowding_s: float
    counted_s: float
    call_usd: float | None
    success_usd: float | None
    timely_success: float


class Candidate(Value, frozen=True):
    """One backend that could have been taken.

    Attributes:
        backend: its name.
        group: its model group.
        verdict: what became of it.
        why: the same in a sentence, with the figures that decided.
        prediction: what the call would meet there.
        binding: the limit that binds first there: "requests", "tokens", "concurrency" or "context"; empty: none.
        binding_share: how far that limit would be used with this call; above 1 it is exceeded.
        opens_at_s: when a limit that refuses it now should allow it; None: unknown or not refused.
    """

    backend: str
    group: str
    verdict: Verdict
    why: str
    prediction: Prediction
    binding: str = ""
    binding_share: float = 0.0
    opens_at_s: float | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Send the call to this backend.

    Attributes:
        backend: its name.
        group: its model group.
        reason: why.
        queue_s: the predicted wait for a slot.
        hit_tokens: tokens of the prompt that its cache should hold.
        first_token_s: predicted time until the answer begins.
        candidates: every candidate; empty unless the decision was asked to explain itself.
    """

    backend: str
    group: str
    reason: Reason
    queue_s: float
    hit_tokens: int
    first_token_s: float
    candidates: tuple[Candidate, ...] = ()

    @property
    def why(self) -> str:
        """One sentence for people."""
        held = f", {self.hit_tokens} tokens of the prompt in its cache" if self.hit_tokens else ""
        return (
            f"{self.backend}: {self.reason.value}; begins in {self.first_token_s * 1e3:.0f} ms"
            f" after {self.queue_s * 1e3:.0f} ms of queue{held}"
        )


class Why(enum.Enum):
    """What kind of refusal."""

    UNKNOWN_MODEL = "unknown_model"
    TOO_LONG = "too_long"  # No backend's context holds the call.
    UNTIMELY = "untimely"  # None succeeds often enough in time.
    EXCLUDED = "excluded"  # The call was everywhere already.
    UNAVAILABLE = "unavailable"  # All that could are full, limited, paused or unhealthy now.


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """No backend for this call now.

    Attributes:
        model: what was asked for.
        why: the kind of refusal.
        brief: one line for people.
        detail: the closest misses.
        opens_at_s: when it is worth asking again; None: not known, or waiting changes nothing.
        alternatives: models that are served, nearest names first, for one that is not.
        candidates: every candidate; empty unless the decision was asked to explain itself.
    """

    model: str
    why: Why
    brief: str
    detail: str = ""
    opens_at_s: float | None = None
    alternatives: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] = ()

    @property
    def retryable(self) -> bool:
        """Whether waiting may help."""
        return self.why is Why.UNAVAILABLE

    def error(self) -> DsecError:
        """Return the refusal as an error."""
        if self.why is Why.UNKNOWN_MODEL:
            known = ", ".join(self.alternatives)
            return NotFoundError(self.brief, detail=self.detail, resolution=f"ask for one of: {known}")
        if self.why is Why.TOO_LONG:
            return InvalidRequestError(self.brief, detail=self.detail, resolution="shorten the prompt or the answer")
        if self.why is Why.UNTIMELY:
            return InvalidRequestError(
                self.brief, detail=self.detail, resolution="allow more time, or require success less often"
            )
        return ModelUnavailableError(self.brief, detail=self.detail, resolution="try again later, or add a backend")
