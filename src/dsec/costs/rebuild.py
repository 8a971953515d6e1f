"""Making an environment anew in each round, against keeping it and against restoring a snapshot.

Between two tools lies a gap of G seconds in which the model works. An environment of M GiB that is kept costs memory
through the whole gap; one that is destroyed and made again costs memory only while it is prepared, P seconds, and w
CPU seconds:

    keep      p_M · M · G
    rebuild   p_M · M · P + p_C · w        the preparation lies at the end of the gap, P ≤ G
    equal at  G = P + p_C w / (p_M M)

For a gap shorter than P the rebuilt environment is late; `by_rebuilding` says by how much.

Against a snapshot, memory over time decides. From the end of one tool to the end of the next:

    rebuild    (P + T) · M                 let go at once, prepared as late as possible
    snapshot   (S + R + T) · M             held while it is saved, let go, held again from the restoration on

where S saves, R restores and T is the next tool. A snapshot keeps processes and memory; a rebuilt environment has
only what is in persistent storage. Where the next round needs the former, rebuilding is no choice at any price.

Assumes that the gap's length is known, so that preparation or restoration begins as late as it can. Source: the
chapter, sections 11.2.4 and 11.5.3 (the break-even wait), exercise 11-2.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.costs.checks import check_not_negative, check_positive


def keep_usd(*, memory_gib: float, gap_s: float, memory_price_usd_per_gib_s: float) -> float:
    """Return what keeping an environment through a gap costs.

    Raises:
        InvalidRequestError: memory or price are not above zero, or the gap is negative.

    Formula:
        p_M · M · G

    Source:
        the chapter, section 11.5.3
    """
    check_positive("memory_gib", memory_gib, "GiB")
    check_not_negative("gap_s", gap_s, "s")
    return check_positive("memory_price_usd_per_gib_s", memory_price_usd_per_gib_s, "USD/(GiB·s)") * memory_gib * gap_s


def rebuild_usd(
    *,
    memory_gib: float,
    prepare_s: float,
    work_cpu_s: float,
    memory_price_usd_per_gib_s: float,
    cpu_price_usd_per_cpu_s: float,
) -> float:
    """Return what making an environment anew costs: memory while it is prepared, and CPU time.

    Args:
        memory_gib: memory of the environment.
        prepare_s: how long the preparation takes.
        work_cpu_s: CPU time of the preparation.
        memory_price_usd_per_gib_s: price of memory.
        cpu_price_usd_per_cpu_s: price of CPU time.

    Raises:
        InvalidRequestError: memory or its price are not above zero, or another input is negative.

    Formula:
        p_M · M · P + p_C · w

    Source:
        the chapter, section 11.5.3
    """
    check_positive("memory_gib", memory_gib, "GiB")
    check_not_negative("prepare_s", prepare_s, "s")
    check_not_negative("work_cpu_s", work_cpu_s, "CPU·s")
    check_positive("memory_price_usd_per_gib_s", memory_price_usd_per_gib_s, "USD/(GiB·s)")
    check_not_negative("cpu_price_usd_per_cpu_s", cpu_price_usd_per_cpu_s, "USD/(CPU·s)")
    return memory_price_usd_per_gib_s * memory_gib * prepare_s + cpu_price_usd_per_cpu_s * work_cpu_s


def break_even_gap_s(
    *,
    memory_gib: float,
    prepare_s: float,
    work_cpu_s: float,
    memory_price_usd_per_gib_s: float,
    cpu_price_usd_per_cpu_s: float,
) -> float:
    """Return the gap at which keeping and rebuilding cost the same; through a longer one rebuilding is cheaper.

    Args and errors are those of `rebuild_usd`.

    Formula:
        G = P + p_C · w / (p_M · M)

    Source:
        the chapter, section 11.5.3
    """
    cost_usd = rebuild_usd(
        memory_gib=memory_gib,
        prepare_s=prepare_s,
        work_cpu_s=work_cpu_s,
        memory_price_usd_per_gib_s=memory_price_usd_per_gib_s,
        cpu_price_usd_per_cpu_s=cpu_price_usd_per_cpu_s,
    )
    return cost_usd / (memory_price_usd_per_gib_s * memory_gib)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """How an environment comes back for the next tool; times count from the end of the tool before.

    Attributes:
        released_at_s: when the old environment's memory is free.
        begin_s: when preparation or restoration begins.
        tool_start_s: when the next tool starts.
        tool_end_s: when it ends.
        released_s: how long no environment takes memory.
        resident_s: how long one does, until the end of the next tool.
        memory_gib_s: that, times its memory.
        delay_s: how much later the tool starts than the model's call arrives.
    """

    released_at_s: float
    begin_s: float
    tool_start_s: float
    tool_end_s: float
    released_s: float
    resident_s: float
    memory_gib_s: float
    delay_s: float


def by_rebuilding(*, model_s: float, tool_s: float, prepare_s: float, memory_gib: float) -> Restoration:
    """Return the course of one gap when the environment is let go at once and prepared as late as possible.

    Args:
        model_s: time of the model's call that fills the gap.
        tool_s: time of the next tool.
        prepare_s: time of one preparation.
        memory_gib: memory of the environment.

    Raises:
        InvalidRequestError: the memory is not above zero, or a time is negative.

    Formula:
        resident = prepare + tool

    Source:
        the chapter, exercise 11-2
    """
    check_not_negative("prepare_s", prepare_s, "s")
    return _restoration(0.0, prepare_s, model_s, tool_s, memory_gib)


def by_snapshot(*, model_s: float, tool_s: float, save_s: float, restore_s: float, memory_gib: float) -> Restoration:
    """Return the course of one gap when the environment is saved, let go, and restored as late as possible.

    Args:
        model_s: time of the model's call that fills the gap.
        tool_s: time of the next tool.
        save_s: time of saving the snapshot, which begins at once.
        restore_s: time of restoring it, which cannot begin before the snapshot is complete.
        memory_gib: memory of the environment.

    Raises:
        InvalidRequestError: the memory is not above zero, or a time is negative.

    Formula:
        resident = save + restore + tool

    Source:
        the chapter, exercise 11-2
    """
    check_not_negative("save_s", save_s, "s")
    check_not_negative("restore_s", restore_s, "s")
    return _restoration(save_s, restore_s, model_s, tool_s, memory_gib)


def _restoration(held_s: float, restore_s: float, model_s: float, tool_s: float, memory_gib: float) -> Restoration:
    check_not_negative("model_s", model_s, "s")
    check_not_negative("tool_s", tool_s, "s")
    check_positive("memory_gib", memory_gib, "GiB")
    begin_s = max(model_s - restore_s, held_s)
    tool_start_s = begin_s + restore_s
    resident_s = held_s + restore_s + tool_s
    return Restoration(
        released_at_s=held_s,
        begin_s=begin_s,
        tool_start_s=tool_start_s,
        tool_end_s=tool_start_s + tool_s,
        released_s=begin_s - held_s,
        resident_s=resident_s,
        memory_gib_s=resident_s * memory_gib,
        delay_s=tool_start_s - model_s,
    )
