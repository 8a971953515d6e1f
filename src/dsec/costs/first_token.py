"""How long a request takes until its answer begins, on one backend or another.

    T = network + queue + prefix processing

where the prefix is quick on a backend that holds it and slow on one that does not. It pays to queue for the cached
prefix as long as the longer queue is shorter than the processing it spares. Assumes that what is generated afterwards
takes equally long on both. Source: the chapter, section 11.4.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.costs.checks import check_not_negative


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A request's way to one backend.

    Attributes:
        queue_s: waiting for a slot.
        prefix_s: processing of the prefix there, cached or not.
        network_s: transfer.
    """

    queue_s: float
    prefix_s: float
    network_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokenChoice:
    """Two backends compared.

    Attributes:
        first_s: until generation begins on the first backend.
        second_s: the same on the second.
        lead_s: how much earlier the first is; negative when the second is.
        spared_processing_s: processing that the first backend spares.
        added_queue_s: how much longer the first backend's queue is.
        break_even_queue_s: queue of the first backend at which both begin at the same time.
        first_is_faster: whether the first begins earlier.
    """

    first_s: float
    second_s: float
    lead_s: float
    spared_processing_s: float
    added_queue_s: float
    break_even_queue_s: float
    first_is_faster: bool


def time_to_generation_s(*, backend: Backend) -> float:
    """Return how long a request takes until generation begins.

    Raises:
        InvalidRequestError: a time is negative.

    Formula:
        T = network + queue + prefix

    Source:
        the chapter, section 11.4.3
    """
    check_not_negative("queue_s", backend.queue_s, "s")
    check_not_negative("prefix_s", backend.prefix_s, "s")
    check_not_negative("network_s", backend.network_s, "s")
    return backend.network_s + backend.queue_s + backend.prefix_s


def compare_backends(*, first: Backend, second: Backend) -> FirstTokenChoice:
    """Return which of two backends begins to generate earlier, and what would change that.

    Raises:
        InvalidRequestError: a time is negative.

    Formula:
        lead = T_second - T_first,   break-even queue = queue_first + lead

    Source:
        the chapter, section 11.4.3
    """
    first_s = time_to_generation_s(backend=first)
    second_s = time_to_generation_s(backend=second)
    return FirstTokenChoice(
        first_s=first_s,
        second_s=second_s,
        lead_s=second_s - first_s,
        spared_processing_s=second.prefix_s - first.prefix_s,
        added_queue_s=first.queue_s - second.queue_s,
        break_even_queue_s=first.queue_s + second_s - first_s,
        first_is_faster=first_s < second_s,
    )
