"""What a combination comes to before anything is counted: one row for each policy, service and number of sessions.

The scalar formulas run here, once for each class and row; `table` then spreads the rows over counts of replicas and
hosts with numpy alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsec.planner.folding import QUANTILE, Hold, folded_peak, poisson_peak
from dsec.planner.libraries import missing_library
from dsec.planner.profile import Profile, make_profile
from dsec.planner.workload import Billing, Pattern, PolicyKind, Service, TaskClass, Workload

if TYPE_CHECKING:
    from dsec.planner.waits import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Which policy, service and number of sessions a row is about."""

    policy: str
    service: str
    sessions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row, in base units; rates are of all classes together.

    Attributes:
        profiles: of one task of each class.
        path_s: mean time of a task that waits for nothing.
        cpu_s, memory_byte_s, model_usd: means of one task.
        cores, memory_bytes, slots: in use on average.
        cores_peak, memory_peak_bytes, slots_peak: in use at most (Poisson arrivals: 99.9 % of the time).
        calls_per_s, made_per_s, tokens_per_s: model calls, environments made, tokens.
        prepare_cores: cores that make environments, on average.
        call_s, call_variation: mean of a model call, squared coefficient of variation.
        tool_s, tool_variation, tool_cores: the same of a tool, and the cores that it takes.
    """

    key: Key
    profiles: tuple[Profile, ...]
    path_s: float
    cpu_s: float
    memory_byte_s: float
    model_usd: float
    cores: float
    memory_bytes: float
    slots: float
    cores_peak: float
    memory_peak_bytes: float
    slots_peak: float
    calls_per_s: float
    made_per_s: float
    tokens_per_s: float
    prepare_cores: float
    call_s: float
    call_variation: float
    tool_s: float
    tool_variation: float
    tool_cores: float


def outer_keys(workload: Workload) -> list[Key]:
    """Return the rows that a workload has."""
    return [
        Key(policy=policy, service=service.name, sessions=sessions)
        for policy in workload.policies
        for service in workload.services.values()
        for sessions in service.sessions.values
    ]


def make_row(workload: Workload, key: Key) -> Row:
    """Return one row.

    Raises:
        InvalidRequestError: a formula refuses an input.
    """
    classes = tuple(workload.classes.values())
    service, policy = workload.services[key.service], workload.policies[key.policy]
    profiles = tuple(make_profile(item, service, key.sessions, policy) for item in classes)
    rate = workload.arrivals.rate.value

    def mean(of: Callable[[Profile], float]) -> float:
        return math.fsum(item.share.value * of(profile) for item, profile in zip(classes, profiles, strict=True))

    rounds = mean(lambda profile: float(profile.rounds))
    call_s, call_variation = _mixture(
        [(item.share.value * item.rounds, profile.model_s, item.model_variation.value)
         for item, profile in zip(classes, profiles, strict=True)]
    )  # fmt: skip
    tool_s, tool_variation = _mixture(
        [(item.share.value * item.rounds, item.tool.value, item.tool_variation.value) for item in classes]
    )
    cpu_s, memory_byte_s = mean(lambda profile: profile.cpu_s), mean(lambda profile: profile.memory_byte_s)
    slot_s, made = mean(lambda profile: profile.slot_s), mean(lambda profile: profile.phases.made)
    return Row(
        key=key,
        profiles=profiles,
        path_s=mean(lambda profile: profile.phases.path_s),
        cpu_s=cpu_s,
        memory_byte_s=memory_byte_s,
        model_usd=mean(lambda profile: profile.model_usd),
        cores=rate * cpu_s,
        memory_bytes=rate * memory_byte_s,
        slots=rate * slot_s,
        cores_peak=_peak(workload, profiles, Profile.cpu_holds),
        memory_peak_bytes=_peak(workload, profiles, Profile.memory_holds),
        slots_peak=_peak(workload, profiles, Profile.slot_holds),
        calls_per_s=rate * rounds,
        made_per_s=rate * made,
        tokens_per_s=rate * mean(lambda profile: profile.tokens),
        prepare_cores=rate * made * policy.prepare_cpu.value,
        call_s=call_s,
        call_variation=call_variation,
        tool_s=tool_s,
        tool_variation=tool_variation,
        tool_cores=max(item.tool_cores.value for item in classes),
    )


def _mixture(parts: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Return mean and squared coefficient of variation of a mixture of (weight, mean, variation)."""
    weight = math.fsum(part for part, _, _ in parts)
    mean = math.fsum(part * value for part, value, _ in parts) / weight
    if mean == 0:
        return 0.0, 0.0
    square = math.fsum(part * value**2 * (1 + variation) for part, value, variation in parts) / weight
    return mean, max(square / mean**2 - 1, 0.0)


def _peak(workload: Workload, profiles: Iterable[Profile], holds: Callable[[Profile], list[Hold]]) -> float:
    arrivals = workload.arrivals
    shares = [(profile, profile.task_class.share.value) for profile in profiles if profile.task_class.share.value > 0]
    if arrivals.pattern is Pattern.POISSON or any(profile.is_random for profile, _ in shares):
        found = [poisson_peak(holds(profile), rate_per_s=arrivals.rate.value * share) for profile, share in shares]
        return sum(mean for mean, _ in found) + QUANTILE * math.sqrt(sum(variance for _, variance in found))
    if arrivals.pattern is Pattern.BURST:
        return sum(
            folded_peak(holds(profile), period_s=arrivals.period_s, group=arrivals.burst * share)
            for profile, share in shares
        )
    return sum(folded_peak(holds(profile), period_s=1 / (arrivals.rate.value * share)) for profile, share in shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """All rows, and their numbers as arrays with one element for each row.

    Attributes:
        columns: numbers of `Row` by name.
        path_s, chance: times of a task and their probabilities, by row, class and possibility.
        quality: share that passes, by row and class.
        slot_limit: calls that one replica serves; infinite where nothing limits them.
        calls_limit, tokens_limit: of the service, in a second.
        unit_usd_per_s: what one replica or seat costs by being there.
        is_kept: whether the policy keeps environments.
    """

    rows: tuple[Row, ...]
    columns: dict[str, Floats]
    path_s: Floats
    chance: Floats
    quality: Floats
    slot_limit: Floats
    calls_limit: Floats
    tokens_limit: Floats
    unit_usd_per_s: Floats
    is_kept: Any


_COLUMNS = (
    "path_s", "cpu_s", "memory_byte_s", "model_usd", "cores", "memory_bytes", "slots", "cores_peak",
    "memory_peak_bytes", "slots_peak", "calls_per_s", "made_per_s", "tokens_per_s", "prepare_cores", "call_s",
    "call_variation", "tool_s", "tool_variation", "tool_cores",
)  # fmt: skip


def numeric() -> Any:
    """Return numpy.

    Raises:
        CapabilityMissingError: it, or scipy, is not installed.
    """
    try:
        import numpy
        import scipy.special  # noqa: F401
    except ModuleNotFoundError as error:
        raise missing_library(error) from error
    return numpy


def make_outer(workload: Workload, keys: Sequence[Key]) -> Outer:
    """Return rows as arrays.

    Raises:
        InvalidRequestError: a formula refuses an input.
    """
    numpy = numeric()
    rows = tuple(make_row(workload, key) for key in keys)
    services = [workload.services[row.key.service] for row in rows]
    paths = [[profile.phases.paths for profile in row.profiles] for row in rows]
    most = max(len(path) for by_class in paths for path in by_class)
    padded = [[(*path, *(((0.0, 0.0),) * (most - len(path)))) for path in by_class] for by_class in paths]
    both = numpy.array(padded, dtype=float)
    classes: list[TaskClass] = list(workload.classes.values())
    return Outer(
        rows=rows,
        columns={name: numpy.array([getattr(row, name) for row in rows], dtype=float) for name in _COLUMNS},
        chance=both[..., 0],
        path_s=both[..., 1],
        quality=numpy.array([[item.quality_with(service.name).value for item in classes] for service in services]),
        slot_limit=numpy.array([_slots_of(item, row.key.sessions) for item, row in zip(services, rows, strict=True)]),
        calls_limit=numpy.array([_limit(service, "calls") for service in services]),
        tokens_limit=numpy.array([_limit(service, "tokens") for service in services]),
        unit_usd_per_s=numpy.array([unit_usd_per_s(service) for service in services]),
        is_kept=numpy.array([workload.policies[row.key.policy].kind is PolicyKind.KEPT for row in rows]),
    )


def _slots_of(service: Service, sessions: int) -> float:
    return _limit(service, "concurrency") if service.billing is Billing.TOKENS else float(sessions)


def _limit(service: Service, name: str) -> float:
    figure = service.limits.get(name)
    return math.inf if figure is None else figure.value


def unit_usd_per_s(service: Service) -> float:
    """Return what one replica or seat costs by being there."""
    if service.price is None or service.billing in (Billing.USED, Billing.TOKENS):
        return 0.0
    gpus = service.gpus.value if service.gpus is not None and service.billing is Billing.RESERVED else 1.0
    return service.price.value * gpus
