"""Pausing an environment through a gap between two tools, against keeping it.

To pause writes the memory out, to resume reads it back, and during both the environment still takes all of it. In a
gap of W seconds an environment of M GiB that saves in a seconds per GiB and resumes in b seconds is free of memory
for

    G = max(W - a M - b, 0)

seconds; where saving and resuming take longer than the gap, the next tool is late by the rest. Pausing pays when the
memory that is let go is worth more than what the transition adds (writing, storage, reading):

    p_M · M · G > C_transition          equal at  G = C_transition / (p_M M)

Pausing suits gaps of hours, not of seconds: the transition costs the same for both.

Assumes that save and resume times are known and do not depend on how many do it at once, and that the length of the
gap is known, so that the resumption begins as late as it can. Source: the chapter, section 11.2.3, figures 11-14 to
11-16.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.costs.checks import check_not_negative, check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """What a pause does to one gap; times count from the end of the tool before it.

    Attributes:
        save_s: how long the memory is written out.
        resume_from_s: when it begins to be read back.
        tool_start_s: when the next tool starts.
        released_s: how long the memory is free in between.
        delay_s: how much later the next tool starts than without the pause.
        kept_gib_s: memory over time when the environment is kept through the gap.
        paused_gib_s: memory over time with the pause.
        saved_gib_s: the difference; negative where saving and resuming take longer than the gap.
    """

    save_s: float
    resume_from_s: float
    tool_start_s: float
    released_s: float
    delay_s: float
    kept_gib_s: float
    paused_gib_s: float
    saved_gib_s: float


def pause(*, memory_gib: float, gap_s: float, save_s_per_gib: float, resume_s: float) -> Pause:
    """Return what pausing through a gap saves and delays.

    Args:
        memory_gib: memory of the environment.
        gap_s: from the end of one tool to the arrival of the call for the next.
        save_s_per_gib: time to save, for each GiB.
        resume_s: time to resume.

    Raises:
        InvalidRequestError: the memory is not above zero, or a time is negative.

    Formula:
        released = max(gap - save · memory - resume, 0)

    Source:
        the chapter, section 11.2.3
    """
    check_positive("memory_gib", memory_gib, "GiB")
    check_not_negative("gap_s", gap_s, "s")
    save_s = check_not_negative("save_s_per_gib", save_s_per_gib, "s/GiB") * memory_gib
    busy_s = save_s + check_not_negative("resume_s", resume_s, "s")
    tool_start_s = max(gap_s, busy_s)
    return Pause(
        save_s=save_s,
        resume_from_s=tool_start_s - resume_s,
        tool_start_s=tool_start_s,
        released_s=tool_start_s - busy_s,
        delay_s=tool_start_s - gap_s,
        kept_gib_s=memory_gib * gap_s,
        paused_gib_s=memory_gib * busy_s,
        saved_gib_s=memory_gib * (gap_s - busy_s),
    )


def pause_saves_usd(
    *, memory_gib: float, released_s: float, memory_price_usd_per_gib_s: float, transition_usd: float
) -> float:
    """Return what a pause saves; negative where keeping is cheaper.

    Args:
        memory_gib: memory of the environment.
        released_s: how long it is free.
        memory_price_usd_per_gib_s: price of memory.
        transition_usd: what saving, storing and resuming add.

    Raises:
        InvalidRequestError: memory or price are not above zero, or another input is negative.

    Formula:
        saving = p_M · M · G - C_transition

    Source:
        the chapter, section 11.2.3
    """
    check_positive("memory_gib", memory_gib, "GiB")
    check_not_negative("released_s", released_s, "s")
    check_positive("memory_price_usd_per_gib_s", memory_price_usd_per_gib_s, "USD/(GiB·s)")
    check_not_negative("transition_usd", transition_usd, "USD")
    return memory_price_usd_per_gib_s * memory_gib * released_s - transition_usd


def break_even_released_s(*, memory_gib: float, memory_price_usd_per_gib_s: float, transition_usd: float) -> float:
    """Return for how long memory has to be free before a pause pays.

    Raises:
        InvalidRequestError: memory or price are not above zero, or the transition costs less than nothing.

    Formula:
        G = C_transition / (p_M · M)

    Source:
        the chapter, section 11.2.3
    """
    check_positive("memory_gib", memory_gib, "GiB")
    check_positive("memory_price_usd_per_gib_s", memory_price_usd_per_gib_s, "USD/(GiB·s)")
    return check_not_negative("transition_usd", transition_usd, "USD") / (memory_price_usd_per_gib_s * memory_gib)
