"""When work arrives: evenly, at random, in bursts, in a closed loop, or as a trace says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy
from msgspec import DecodeError, Meta, json

from dsec.base.errors import InvalidRequestError, NotFoundError
from dsec.model.unit_names import file_key
from dsec.model.value import Value
from dsec.sim.distributions import Distribution, constant
from dsec.sim.quantities import UNITS

Kind = Literal["uniform", "poisson", "bursts", "closed", "trace"]
MAXIMUM_ARRIVALS = 50_000_000
"""More do not fit into a run's memory; a limit on everything."""


class Arrivals(Value, frozen=True):
    """When groups of work arrive, and how their members follow each other.

    Attributes:
        kind: uniform (`rate`), poisson (`rate`, `profile`), bursts (one group each `every`), closed (`concurrency` at
            all times), trace (`file`).
        rate_per_s: groups per second.
        every_s: time between bursts.
        first_s: when the first burst comes.
        concurrency: of closed: how many are in the system at all times.
        group: members of a group.
        group_rate_per_s: how fast members follow each other; 0: all at once.
        profile: relative rates of equal parts of the run, such as 24 hours of a day; their mean is made 1.
        file: a rollout's ``results.jsonl``: each attempt arrives when it started and lasts as long as it did.
    """

    kind: Kind
    rate_per_s: Annotated[float, Meta(ge=0)] = 0.0
    every_s: Annotated[float, Meta(ge=0)] = 0.0
    first_s: Annotated[float, Meta(ge=0)] = 0.0
    concurrency: Annotated[int, Meta(ge=0)] = 0
    group: Distribution = constant(1)
    group_rate_per_s: Annotated[float, Meta(ge=0)] = 0.0
    profile: tuple[Annotated[float, Meta(ge=0)], ...] = ()
    file: str = ""

    def __post_init__(self) -> None:
        needed = {
            "uniform": "rate_per_s",
            "poisson": "rate_per_s",
            "bursts": "every_s",
            "closed": "concurrency",
            "trace": "file",
        }
        name = needed[self.kind]
        if not getattr(self, name):
            raise ValueError(f"{self.kind} arrivals need `{file_key(name, UNITS)}`")
        if self.profile and not sum(self.profile):
            raise ValueError("a profile needs at least one rate above 0")


class ArrivalPlan:
    """Times of arrival in order, and which group each belongs to.

    Attributes:
        times_s: sorted.
        groups: number of the group of each.
        durations_s: how long each lasts, from a trace; None: the scenario says.
    """

    __slots__ = ("durations_s", "groups", "times_s")

    def __init__(self, times_s: numpy.ndarray, groups: numpy.ndarray, durations_s: numpy.ndarray | None = None) -> None:
        self.times_s, self.groups, self.durations_s = times_s, groups, durations_s


def plan_arrivals(
    arrivals: Arrivals, horizon_s: float, generator: numpy.random.Generator, *, directory: Path = Path()
) -> ArrivalPlan:
    """Return all arrivals before `horizon_s` (of a closed loop: the first ones, at 0)."""
    if arrivals.kind == "trace":
        return _trace(directory / arrivals.file, horizon_s)
    starts_s = _starts(arrivals, horizon_s, generator)
    sizes = numpy.maximum(1, numpy.rint(arrivals.group.sample(generator, len(starts_s)))).astype(numpy.int64)
    if sizes.sum() > MAXIMUM_ARRIVALS:
        raise InvalidRequestError(
            f"{sizes.sum()} arrivals are more than {MAXIMUM_ARRIVALS}", resolution="lower the rate or the duration"
        )
    groups = numpy.repeat(numpy.arange(len(starts_s)), sizes)
    times_s = numpy.repeat(starts_s, sizes)
    if arrivals.group_rate_per_s:
        firsts = numpy.repeat(numpy.cumsum(sizes) - sizes, sizes)
        times_s = times_s + (numpy.arange(len(times_s)) - firsts) / arrivals.group_rate_per_s
    order = numpy.argsort(times_s, kind="stable")
    times_s, groups = times_s[order], groups[order]
    kept = int(numpy.searchsorted(times_s, horizon_s))
    return ArrivalPlan(times_s[:kept], groups[:kept])


def _starts(arrivals: Arrivals, horizon_s: float, generator: numpy.random.Generator) -> numpy.ndarray:
    if arrivals.kind == "closed":
        return numpy.zeros(arrivals.concurrency)
    if arrivals.kind == "bursts":
        return numpy.arange(arrivals.first_s, horizon_s, arrivals.every_s)
    expected = arrivals.rate_per_s * horizon_s
    if expected > MAXIMUM_ARRIVALS:
        raise InvalidRequestError(
            f"{expected:.0f} arrivals are more than {MAXIMUM_ARRIVALS}", resolution="lower the rate"
        )
    if arrivals.kind == "uniform":
        return numpy.arange(int(numpy.ceil(expected))) / arrivals.rate_per_s
    places = numpy.sort(generator.random(generator.poisson(expected)))
    return _warped(places, arrivals.profile) * horizon_s


def _warped(places: numpy.ndarray, profile: tuple[float, ...]) -> numpy.ndarray:
    """Move uniform places in [0, 1) so that their density follows the profile."""
    if not profile:
        return places
    heights = numpy.concatenate(([0.0], numpy.cumsum(profile)))
    return numpy.asarray(numpy.interp(places, heights / heights[-1], numpy.linspace(0, 1, len(heights))))


class _Attempt(Value, frozen=True, forbid_unknown_fields=False):
    """The fields of a line of ``results.jsonl`` that a trace needs (docs/formats/results.md)."""

    task: str
    started_at_s: float
    duration_s: float


def _trace(path: Path, horizon_s: float) -> ArrivalPlan:
    decoder = json.Decoder(_Attempt)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise NotFoundError(
            f"trace {path} cannot be read: {error.strerror}",
            resolution="name a rollout's results.jsonl, from the scenario's directory",
        ) from error
    attempts: list[_Attempt] = []
    for number, line in enumerate(lines, start=1):
        try:
            attempts.append(decoder.decode(line))
        except DecodeError as error:
            raise InvalidRequestError(f"{path}:{number}: not a line of a rollout's results: {error}") from error
    if not attempts:
        raise InvalidRequestError(f"trace {path} is empty")
    attempts.sort(key=lambda attempt: attempt.started_at_s)
    tasks = {name: at for at, name in enumerate(dict.fromkeys(attempt.task for attempt in attempts))}
    times_s = numpy.array([attempt.started_at_s - attempts[0].started_at_s for attempt in attempts])
    groups = numpy.array([tasks[attempt.task] for attempt in attempts])
    durations_s = numpy.array([attempt.duration_s for attempt in attempts])
    kept = int(numpy.searchsorted(times_s, horizon_s))
    return ArrivalPlan(times_s[:kept], groups[:kept], durations_s[:kept])
