"""Where an episode's environment had best be while the model thinks: a pure decision by the break-even formulas.

For the gap between two tools each mode costs (`dsec.costs.rebuild`, `dsec.costs.pause`):

=========  ================================================  =========================================
mode       memory over time, at the price of memory          beside it
=========  ================================================  =========================================
resident   M · gap                                           nothing
rebuilt    M · (save + prepare), the sandbox gone between    processors' time; what processes held
paused     M · (save + resume), the memory in swap between   disk; for as long as the room in swap lasts
=========  ================================================  =========================================

The cheapest is taken, with three reservations. A mode that would hold tools up for longer than is tolerated is out: the
model service and the trainer behind it are dearer than memory. Rebuilding is out while processes outlive the tools that
started them: the formulas hold only where everything the next round needs is in its files. And a mode is left only for
one that is cheaper by a margin, so that two that cost the same do not alternate.

Source: the chapter, sections 11.2.3, 11.2.4 and 11.5.3.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from dsec.base.units import GIB
from dsec.costs.pause import pause, pause_saves_usd
from dsec.costs.rebuild import by_snapshot, keep_usd
from dsec.episode.environment_times import EnvironmentTimes
from dsec.episode.spec import EnvironmentMode
from dsec.model.value import Value

ROUNDS_BEFORE_A_CHOICE = 2
"""Until so many gaps were seen nobody knows what the next will be like; the environment stays where it is."""
LEAST_MEMORY_GIB = 1 / 1024
"""What an idle sandbox holds. Less is measured at times, and no formula takes nothing."""
MODES = (EnvironmentMode.RESIDENT, EnvironmentMode.REBUILT, EnvironmentMode.PAUSED)


class EnvironmentPrices(Value, frozen=True, omit_defaults=True):
    """What the modes are compared by. Only ratios matter, so that any currency will do.

    Attributes:
        memory_usd_per_gib_s: memory.
        cpu_usd_per_cpu_s: processors.
        swap_usd_per_gib: writing a GiB of memory to disk and reading it back.
        tolerated_delay_s: how much later tools may start than without the mode.
        tolerated_delay_share: the same, as share of the gap; the larger of both counts.
        margin_share: by how much another mode has to be cheaper than the present one.
    """

    memory_usd_per_gib_s: float = 4.5e-6
    cpu_usd_per_cpu_s: float = 1.4e-5
    swap_usd_per_gib: float = 0.0
    tolerated_delay_s: float = 0.05
    tolerated_delay_share: float = 0.02
    margin_share: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeCost:
    """What a mode is expected to cost in one gap.

    Attributes:
        mode: it.
        cost_usd: memory, processors and disk.
        memory_gib_s: memory over time.
        delay_s: how much later tools start.
        refused: why it is out; empty: it is not.
    """

    mode: EnvironmentMode
    cost_usd: float
    memory_gib_s: float
    delay_s: float = 0.0
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentChoice:
    """A decision.

    Attributes:
        mode: where the environment is from now on; never AUTOMATIC.
        reason: why, in words that can be shown.
        costs: of all modes, as far as they can be told.
    """

    mode: EnvironmentMode
    reason: str
    costs: tuple[ModeCost, ...] = field(default=())


def choose_environment(
    times: EnvironmentTimes,
    *,
    current: EnvironmentMode,
    prices: EnvironmentPrices = EnvironmentPrices(),
    impossible: Mapping[EnvironmentMode, str] | None = None,
) -> EnvironmentChoice:
    """Return where the environment had best be in the next gap.

    Args:
        times: what was measured of this episode.
        current: where it is now.
        prices: what the modes are compared by.
        impossible: modes that this host cannot do or that failed, with the reason.
    """
    seen = min(times.thinking_s.count, times.memory_gib.count)
    if seen < ROUNDS_BEFORE_A_CHOICE:
        return EnvironmentChoice(
            mode=current, reason=f"{seen} of {ROUNDS_BEFORE_A_CHOICE} gaps were seen that a choice needs"
        )
    costs = gap_costs(times, prices, impossible=impossible or {})
    present = next(cost for cost in costs if cost.mode is current)
    possible = [cost for cost in costs if not cost.refused]
    best = min(possible, key=lambda cost: cost.cost_usd)
    if present.refused:
        return EnvironmentChoice(
            mode=best.mode,
            reason=f"{current.value} is out: {present.refused}; {_cheapest(best, possible)}",
            costs=costs,
        )
    if best.mode is current:
        return EnvironmentChoice(mode=current, reason=_cheapest(best, possible), costs=costs)
    if best.cost_usd >= present.cost_usd * (1 - prices.margin_share):
        reason = f"{best.mode.value} would save less than {prices.margin_share:.0%} of what {current.value} costs"
        return EnvironmentChoice(mode=current, reason=reason, costs=costs)
    return EnvironmentChoice(mode=best.mode, reason=_cheapest(best, possible), costs=costs)


def gap_costs(
    times: EnvironmentTimes, prices: EnvironmentPrices, *, impossible: Mapping[EnvironmentMode, str]
) -> tuple[ModeCost, ...]:
    """Return what each mode is expected to cost in the next gap, refused ones included."""
    gap_s = times.thinking_s.value
    memory_gib = max(times.memory_gib.value, LEAST_MEMORY_GIB)
    tolerated_s = max(prices.tolerated_delay_s, prices.tolerated_delay_share * gap_s)
    found = (
        _resident(gap_s, memory_gib, prices),
        _rebuilt(times, gap_s, memory_gib, prices),
        _paused(times, gap_s, memory_gib, prices),
    )
    return tuple(_judged(cost, times, tolerated_s, impossible.get(cost.mode, "")) for cost in found)


def _judged(cost: ModeCost, times: EnvironmentTimes, tolerated_s: float, impossible: str) -> ModeCost:
    refused = impossible
    if not refused and cost.mode is EnvironmentMode.REBUILT and times.leaves_processes:
        refused = "processes outlived the tools that started them, and would be lost"
    if not refused and cost.delay_s > tolerated_s:
        refused = f"tools would start {cost.delay_s:.3g} s later, and {tolerated_s:.3g} s are tolerated"
    return ModeCost(
        mode=cost.mode,
        cost_usd=cost.cost_usd,
        memory_gib_s=cost.memory_gib_s,
        delay_s=cost.delay_s,
        refused=refused if cost.mode is not EnvironmentMode.RESIDENT else "",
    )


def _resident(gap_s: float, memory_gib: float, prices: EnvironmentPrices) -> ModeCost:
    cost_usd = keep_usd(memory_gib=memory_gib, gap_s=gap_s, memory_price_usd_per_gib_s=prices.memory_usd_per_gib_s)
    return ModeCost(mode=EnvironmentMode.RESIDENT, cost_usd=cost_usd, memory_gib_s=memory_gib * gap_s)


def _rebuilt(times: EnvironmentTimes, gap_s: float, memory_gib: float, prices: EnvironmentPrices) -> ModeCost:
    course = by_snapshot(
        model_s=gap_s,
        tool_s=0.0,
        save_s=times.save_s.value,
        restore_s=times.prepare_s.value,
        memory_gib=memory_gib,
    )
    work_usd = prices.cpu_usd_per_cpu_s * times.prepare_cpu_s.value
    return ModeCost(
        mode=EnvironmentMode.REBUILT,
        cost_usd=course.memory_gib_s * prices.memory_usd_per_gib_s + work_usd,
        memory_gib_s=course.memory_gib_s,
        delay_s=course.delay_s,
    )


def _paused(times: EnvironmentTimes, gap_s: float, memory_gib: float, prices: EnvironmentPrices) -> ModeCost:
    course = pause(
        memory_gib=memory_gib,
        gap_s=gap_s,
        save_s_per_gib=times.pause_s_per_gib.value,
        resume_s=times.resume_s.value,
    )
    saved_usd = pause_saves_usd(
        memory_gib=memory_gib,
        released_s=course.released_s,
        memory_price_usd_per_gib_s=prices.memory_usd_per_gib_s,
        transition_usd=prices.swap_usd_per_gib * memory_gib,
    )
    through_usd = keep_usd(
        memory_gib=memory_gib,
        gap_s=gap_s + course.delay_s,
        memory_price_usd_per_gib_s=prices.memory_usd_per_gib_s,
    )
    return ModeCost(
        mode=EnvironmentMode.PAUSED,
        cost_usd=through_usd - saved_usd,
        memory_gib_s=course.paused_gib_s,
        delay_s=course.delay_s,
    )


def _cheapest(best: ModeCost, possible: Collection[ModeCost]) -> str:
    others = ", ".join(
        f"{cost.mode.value} {_memory(cost.memory_gib_s)}" for cost in possible if cost.mode is not best.mode
    )
    against = f", against {others}" if others else ""
    return f"{best.mode.value} costs least: {_memory(best.memory_gib_s)} of memory in a gap{against}"


def _memory(gib_s: float) -> str:
    return f"{gib_s:.3g} GiB·s" if gib_s >= 1 else f"{gib_s * GIB / (1 << 20):.3g} MiB·s"
