"""How many calls a self-hosted model service holds, what one call occupies, and what a token costs on it.

A replica of g accelerators serves k sessions side by side; a call of T seconds uses the k-th part of it:

    call         T = tokens x time of a token
    concurrency  N = calls/s x T                    (Little's law)
    replicas     ceil(N / k)
    accelerator time of a call          g T / k
    accelerator cost of a token         g p t / k   (t: time of a token with k sessions, p: price)

A smaller k makes tokens faster and each call dearer. Assumes full batches for the cost of a call. The time of a token
is what the service takes in the steady state, processing of input included. Source: the chapter, opening table,
sections 11.4.1, 11.4.3 and 11.4.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsec.costs.checks import check_count, check_not_negative, check_positive

_S_PER_H = 3600.0
_ROUNDING = 1e-9
"""A demand that fills replicas exactly does not need one more because of floating point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelService:
    """Demand on a self-hosted model service.

    Attributes:
        concurrency: calls in progress on average.
        slots: calls that the replicas at hand hold.
        used_share: concurrency over slots; above 1 the queue grows without end.
        is_enough: whether the replicas at hand hold the demand.
        replicas_needed: the least number that does.
        added_replicas: how many are missing.
        needed_gpus: accelerators of the replicas needed.
        needed_slots: calls that those hold.
        call_gpu_s: accelerator time that one call occupies.
    """

    concurrency: float
    slots: int
    used_share: float
    is_enough: bool
    replicas_needed: int
    added_replicas: int
    needed_gpus: float
    needed_slots: int
    call_gpu_s: float


def call_time_s(*, output_tokens: float, pace_s_per_token: float) -> float:
    """Return how long a call takes that generates `output_tokens`.

    Raises:
        InvalidRequestError: an input is negative.

    Formula:
        T = tokens · time of a token

    Source:
        the chapter, opening table and section 11.4.1
    """
    tokens = check_not_negative("output_tokens", output_tokens, "token")
    return tokens * check_not_negative("pace_s_per_token", pace_s_per_token, "s/token")


def call_gpu_s(*, call_s: float, gpus_per_replica: float, sessions: int) -> float:
    """Return the accelerator time that one call occupies.

    Raises:
        InvalidRequestError: the time is negative, or a replica has no accelerator or no session.

    Formula:
        g · T / k

    Source:
        the chapter, section 11.4.3
    """
    check_not_negative("call_s", call_s, "s")
    return check_positive("gpus_per_replica", gpus_per_replica, "GPU") * call_s / check_count("sessions", sessions)


def model_service(
    *, calls_per_s: float, call_s: float, replicas: int, sessions: int, gpus_per_replica: float
) -> ModelService:
    """Return what a stream of calls asks of a service, and whether its replicas hold it.

    Args:
        calls_per_s: calls that arrive.
        call_s: time of one call.
        replicas: replicas at hand.
        sessions: calls that one replica serves side by side.
        gpus_per_replica: accelerators of one replica.

    Raises:
        InvalidRequestError: a number is out of range.

    Formula:
        N = λ · T,   replicas = ceil(N / k)

    Source:
        the chapter, sections 11.1.2 and 11.4.3
    """
    check_not_negative("calls_per_s", calls_per_s, "1/s")
    check_count("replicas", replicas, minimum=0)
    occupied = call_gpu_s(call_s=call_s, gpus_per_replica=gpus_per_replica, sessions=sessions)
    concurrency = calls_per_s * call_s
    needed = math.ceil(concurrency / sessions * (1 - _ROUNDING))
    slots = replicas * sessions
    return ModelService(
        concurrency=concurrency,
        slots=slots,
        used_share=concurrency / slots if slots else math.inf,
        is_enough=needed <= replicas,
        replicas_needed=needed,
        added_replicas=max(needed - replicas, 0),
        needed_gpus=needed * gpus_per_replica,
        needed_slots=needed * sessions,
        call_gpu_s=occupied,
    )


def call_usd(*, call_gpu_s: float, price_usd_per_gpu_h: float) -> float:
    """Return what the accelerator time of a call costs.

    Raises:
        InvalidRequestError: an input is negative.

    Formula:
        C = accelerator time · price

    Source:
        the chapter, section 11.4.4
    """
    check_not_negative("call_gpu_s", call_gpu_s, "GPU*s")
    return call_gpu_s * check_not_negative("price_usd_per_gpu_h", price_usd_per_gpu_h, "USD/GPU/h") / _S_PER_H


def output_usd_per_mtoken(
    *, pace_s_per_token: float, gpus_per_replica: float, sessions: int, price_usd_per_gpu_h: float
) -> float:
    """Return what a million output tokens cost in accelerator time.

    Args:
        pace_s_per_token: time of one token of one session.
        gpus_per_replica: accelerators of one replica.
        sessions: sessions that it serves side by side, each of which gets a token in that time.
        price_usd_per_gpu_h: price of an accelerator.

    Raises:
        InvalidRequestError: a number is out of range.

    Formula:
        C = 10⁶ · g · p · t / k

    Source:
        the chapter, section 11.4.4
    """
    check_not_negative("pace_s_per_token", pace_s_per_token, "s/token")
    occupied = call_gpu_s(call_s=pace_s_per_token, gpus_per_replica=gpus_per_replica, sessions=sessions)
    return 1e6 * call_usd(call_gpu_s=occupied, price_usd_per_gpu_h=price_usd_per_gpu_h)
