"""When the last sample of a batch is verified.

Sample i arrives at a_i and needs c_i seconds to compile and g_i to run. No plan ends before

    T >= max_i (a_i + c_i + g_i),

however many verifiers there are; with c of them it also holds that T >= min_i a_i + (sum of all work) / c. The
schedule is first come, first served (`dsec.costs.first_come`). Assumes that a verifier does one sample at a time,
from compiling to running, and that verifiers start at once.

Source: the chapter, section 11.3.4, figures 11-35 and 11-36, exercise 11-6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.costs.checks import check_count, check_not_empty, check_not_negative
from dsec.costs.first_come import serve


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBound:
    """A lower bound on the end of a batch.

    Attributes:
        end_s: no sample set like this is verified before.
        decisive: index of the sample that sets the bound, from 0.
        ends_s: for each sample the earliest end.
    """

    end_s: float
    decisive: int
    ends_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSchedule:
    """A batch verified first come, first served.

    Attributes:
        arrivals_s, starts_s, ends_s: of each sample, in the order of the input.
        waits_s: from a sample's arrival to its start.
        verifiers: which verifier took each sample, from 0.
        end_s: end of the whole batch.
        last: index of the sample that ends last.
        busy_s: work of all verifiers together.
        mean_wait_s: mean of the waits.
    """

    arrivals_s: tuple[float, ...]
    starts_s: tuple[float, ...]
    ends_s: tuple[float, ...]
    waits_s: tuple[float, ...]
    verifiers: tuple[int, ...]
    end_s: float
    last: int
    busy_s: float
    mean_wait_s: float


def _check_samples(arrivals_s: Sequence[float], works_s: Sequence[float]) -> None:
    check_not_empty("arrivals_s", arrivals_s)
    if len(arrivals_s) != len(works_s):
        raise InvalidRequestError(
            f"there are {len(arrivals_s)} arrivals but {len(works_s)} durations",
            resolution="give one duration for each sample",
        )
    for name, values in (("arrivals_s", arrivals_s), ("durations_s", works_s)):
        for value in values:
            check_not_negative(name, value, "s")


def batch_bound(
    *, arrivals_s: Sequence[float], runs_s: Sequence[float], compiles_s: Sequence[float] = ()
) -> BatchBound:
    """Return before when no batch of these samples can be verified.

    Args:
        arrivals_s: when each sample is generated.
        runs_s: how long each is run.
        compiles_s: how long each is compiled before; empty where nothing is compiled.

    Raises:
        InvalidRequestError: a time is negative, or the lists differ in length.

    Formula:
        T ≥ max_i (a_i + c_i + g_i)

    Source:
        the chapter, section 11.3.4
    """
    _check_samples(arrivals_s, runs_s)
    compiles_s = compiles_s or [0.0] * len(runs_s)
    _check_samples(arrivals_s, compiles_s)
    ends_s = tuple(a + c + g for a, c, g in zip(arrivals_s, compiles_s, runs_s, strict=True))
    end_s = max(ends_s)
    return BatchBound(end_s=end_s, decisive=ends_s.index(end_s), ends_s=ends_s)


def batch_schedule(
    *, arrivals_s: Sequence[float], durations_s: Sequence[float], verifiers: int, collect_first: bool = False
) -> BatchSchedule:
    """Return how a batch is verified first come, first served.

    Args:
        arrivals_s: when each sample is generated.
        durations_s: how long its verification takes.
        verifiers: how many samples are verified at a time.
        collect_first: hand the whole batch over only once its last sample is there.

    Raises:
        InvalidRequestError: a time is negative, the lists differ in length, or there is no verifier.

    Formula:
        start_i = max(submitted_i, earliest free verifier),   end_i = start_i + duration_i

    Source:
        the chapter, section 11.3.4, figures 11-35 and 11-36, exercise 11-6
    """
    _check_samples(arrivals_s, durations_s)
    check_count("verifiers", verifiers)
    submitted_s = [max(arrivals_s)] * len(arrivals_s) if collect_first else list(arrivals_s)
    served = serve(arrivals_s=submitted_s, works_s=durations_s, servers=verifiers)
    waits_s = tuple(start_s - arrival_s for start_s, arrival_s in zip(served.starts_s, arrivals_s, strict=True))
    end_s = max(served.ends_s)
    return BatchSchedule(
        arrivals_s=tuple(arrivals_s),
        starts_s=served.starts_s,
        ends_s=served.ends_s,
        waits_s=waits_s,
        verifiers=served.servers,
        end_s=end_s,
        last=served.ends_s.index(end_s),
        busy_s=sum(durations_s),
        mean_wait_s=sum(waits_s) / len(waits_s),
    )
