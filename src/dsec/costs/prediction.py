"""Preparing the environment that the next call will probably want, before the call is there.

A preparation takes P seconds and is begun L seconds before the call arrives, for the environment that was predicted.
The prediction is right with probability h. When it is right, the call still waits for what is left of the
preparation; when it is wrong, the wrong environment is dropped at once and the right one is prepared from its start:

    E[wait] = h · max(P - L, 0) + (1 - h) · P = P - h · min(P, L)

A lead beyond P gains nothing more and costs memory. Per prediction, of an environment of M GiB:

    ready and idle, when right     h · M · max(L - P, 0)
    prepared for nothing           (1 - h) · M · L

The second counts an environment from the start of its preparation to its end at the call's arrival.

Assumes that right predictions compete for nothing and wrong ones can be ended at once. Source: the chapter, section
11.2.4, figures 11-19 to 11-23, exercise 11-3.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.costs.checks import check_not_negative, check_positive, check_probability


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What preparing ahead brings and costs, for one call.

    Attributes:
        right_wait_s: wait of the call when the prediction is right.
        wrong_wait_s: wait when it is wrong.
        expected_wait_s: mean of the two.
        expected_saved_s: how much less that is than preparing on demand.
        right_idle_s: how long a right environment stands ready before its call.
        expected_idle_gib_s: memory over time of right environments that stand ready.
        expected_wasted_gib_s: memory over time of wrong environments.
    """

    right_wait_s: float
    wrong_wait_s: float
    expected_wait_s: float
    expected_saved_s: float
    right_idle_s: float
    expected_idle_gib_s: float
    expected_wasted_gib_s: float


def expected_wait_s(*, prepare_s: float, lead_s: float, hit_probability: float) -> float:
    """Return how long a call waits on average for its environment.

    Args:
        prepare_s: time of one preparation.
        lead_s: how long before the call it begins; 0 prepares on demand.
        hit_probability: how often the predicted environment is the right one.

    Raises:
        InvalidRequestError: a time is negative, or the probability lies outside 0..1.

    Formula:
        E[W] = P - h · min(P, L)

    Source:
        the chapter, section 11.2.4
    """
    check_not_negative("prepare_s", prepare_s, "s")
    check_not_negative("lead_s", lead_s, "s")
    return prepare_s - check_probability("hit_probability", hit_probability) * min(prepare_s, lead_s)


def prediction(*, prepare_s: float, lead_s: float, hit_probability: float, memory_gib: float) -> Prediction:
    """Return what preparing ahead brings and costs, for one call.

    Args:
        prepare_s: time of one preparation.
        lead_s: how long before the call it begins; 0 prepares on demand.
        hit_probability: how often the predicted environment is the right one.
        memory_gib: memory of an environment, taken from the start of its preparation.

    Raises:
        InvalidRequestError: a time is negative, the probability lies outside 0..1, or the memory is not above zero.

    Formula:
        E[W] = P - h · min(P, L),   idle = h · M · max(L - P, 0),   wasted = (1 - h) · M · L

    Source:
        the chapter, section 11.2.4 and exercise 11-3
    """
    wait_s = expected_wait_s(prepare_s=prepare_s, lead_s=lead_s, hit_probability=hit_probability)
    check_positive("memory_gib", memory_gib, "GiB")
    idle_s = max(lead_s - prepare_s, 0.0)
    return Prediction(
        right_wait_s=max(prepare_s - lead_s, 0.0),
        wrong_wait_s=prepare_s,
        expected_wait_s=wait_s,
        expected_saved_s=prepare_s - wait_s,
        right_idle_s=idle_s,
        expected_idle_gib_s=hit_probability * memory_gib * idle_s,
        expected_wasted_gib_s=(1 - hit_probability) * memory_gib * lead_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """When things happen around one call.

    Attributes:
        begin_s: when the environment that is used begins to be prepared.
        ready_s: when it is ready.
        tool_start_s: when the tool starts in it.
        wait_s: how long the call waits.
        idle_s: how long the environment stands ready before the call.
        wasted_from_s, wasted_until_s: when a wrong environment stands; both the call's arrival when none does.
    """

    begin_s: float
    ready_s: float
    tool_start_s: float
    wait_s: float
    idle_s: float
    wasted_from_s: float
    wasted_until_s: float


def course(*, call_s: float, prepare_s: float, lead_s: float, right: bool) -> Course:
    """Return when things happen around a call for a right or a wrong prediction.

    Args:
        call_s: when the call arrives.
        prepare_s: time of one preparation.
        lead_s: how long before the call it begins; 0 prepares on demand.
        right: whether the predicted environment is the right one.

    Raises:
        InvalidRequestError: a time is negative, or the preparation would begin before time 0.

    Formula:
        ready = call - lead + prepare when right, call + prepare when wrong

    Source:
        the chapter, figures 11-19 to 11-23
    """
    for name, value in (("call_s", call_s), ("prepare_s", prepare_s), ("lead_s", lead_s)):
        check_not_negative(name, value, "s")
    check_not_negative("call_s less lead_s", call_s - lead_s, "s")
    begin_s = call_s - lead_s if right else call_s
    ready_s = begin_s + prepare_s
    tool_start_s = max(ready_s, call_s)
    return Course(
        begin_s=begin_s,
        ready_s=ready_s,
        tool_start_s=tool_start_s,
        wait_s=tool_start_s - call_s,
        idle_s=tool_start_s - ready_s,
        wasted_from_s=call_s if right else call_s - lead_s,
        wasted_until_s=call_s,
    )
