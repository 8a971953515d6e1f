"""How much is in use on average: Little's law for environments, cores, memory and model slots.

The mean number of things in a system is the rate at which they come times the mean time that each stays:

    N = λ T

It holds for every arrival pattern and every distribution of stays, as long as the system is stable (all that comes
also leaves) and the means are taken over a long time. It says nothing about peaks: 30 cores in use on average can be
80 wanted at one moment. The same product with a *demand* of a task instead of a stay gives the mean use of any
resource:

    demand of a task                                unit        mean use
    environments' stay                T_env         s           environments
    memory over time                  ∫ M(t) dt     GiB s       GiB
    busy cores over time              ∫ n(t) dt     CPU s       CPU
    model calls · their time          R T_model     s           model slots in use
    model calls, creations            R             1           per second

Turned round it gives the rate that a capacity sustains: with room for N environments that stay T seconds, at most N /
T tasks can start in a second, and the rest queue without bound.

Source: the chapter, section 11.1.2 and example 11-1. J. D. C. Little, "A proof for the queuing formula L = λW",
Operations Research 9(3), 1961.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.costs.checks import check_count, check_not_negative, check_positive


def mean_in_system(*, arrivals_per_s: float, stay_s: float) -> float:
    """Return how many are inside on average.

    Args:
        arrivals_per_s: arrivals.
        stay_s: mean time that each stays.

    Raises:
        InvalidRequestError: the rate is not above zero, or the time is negative.

    Formula:
        N = λ · T

    Source:
        Little's law; the chapter, section 11.1.2
    """
    check_positive("arrivals_per_s", arrivals_per_s, "1/s")
    return arrivals_per_s * check_not_negative("stay_s", stay_s, "s")


def mean_memory_gib(*, arrivals_per_s: float, task_gib_s: float) -> float:
    """Return the memory in use on average.

    Args:
        arrivals_per_s: tasks that arrive.
        task_gib_s: a task's memory over time, the area below its memory curve.

    Raises:
        InvalidRequestError: the rate is not above zero, or the area is negative.

    Formula:
        mean memory = λ · ∫ M(t) dt

    Source:
        Little's law; the chapter, section 11.1.2
    """
    check_positive("arrivals_per_s", arrivals_per_s, "1/s")
    return arrivals_per_s * check_not_negative("task_gib_s", task_gib_s, "GiB·s")


def mean_busy_cores(*, arrivals_per_s: float, task_cpu_s: float) -> float:
    """Return how many cores are busy on average.

    Args:
        arrivals_per_s: tasks that arrive.
        task_cpu_s: a task's CPU time, over all cores.

    Raises:
        InvalidRequestError: the rate is not above zero, or the CPU time is negative.

    Formula:
        mean cores = λ · CPU time of a task

    Source:
        Little's law; the chapter, section 11.1.2
    """
    check_positive("arrivals_per_s", arrivals_per_s, "1/s")
    return arrivals_per_s * check_not_negative("task_cpu_s", task_cpu_s, "CPU·s")


def event_rate_per_s(*, arrivals_per_s: float, events_per_task: float) -> float:
    """Return how often something happens that each task does a number of times on average.

    Raises:
        InvalidRequestError: the rate is not above zero, or the number is negative.

    Formula:
        rate = λ · events of a task

    Source:
        the chapter, section 11.1.2
    """
    check_positive("arrivals_per_s", arrivals_per_s, "1/s")
    return arrivals_per_s * check_not_negative("events_per_task", events_per_task)


def arrival_rate_per_s(*, interval_s: float) -> float:
    """Return the rate of arrivals that come `interval_s` apart.

    Raises:
        InvalidRequestError: the interval is not above zero.

    Formula:
        λ = 1 / interval

    Source:
        the chapter, opening
    """
    return 1.0 / check_positive("interval_s", interval_s, "s")


def sustained_arrivals_per_s(*, places: int, stay_s: float) -> float:
    """Return the highest arrival rate that a number of places can serve.

    Args:
        places: how many can be inside at the same time.
        stay_s: how long each place is taken.

    Raises:
        InvalidRequestError: there are no places, or the stay is not above zero.

    Formula:
        λ = N / T

    Source:
        Little's law; the chapter, example 11-1
    """
    return check_count("places", places) / check_positive("stay_s", stay_s, "s")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformDemand:
    """What a stream of equal tasks needs on average.

    Attributes:
        tasks: tasks in progress.
        environments: environments resident.
        memory_gib: memory of those environments.
        tool_cores: cores busy with tools.
        prepare_cores: cores busy making environments.
        model_slots: model calls in progress.
        model_calls_per_s: model calls begun in a second.
        tool_calls_per_s: tools begun in a second.
        creations_per_s: environments made in a second.
    """

    tasks: float
    environments: float
    memory_gib: float
    tool_cores: float
    prepare_cores: float
    model_slots: float
    model_calls_per_s: float
    tool_calls_per_s: float
    creations_per_s: float

    @property
    def cores(self) -> float:
        """Cores busy altogether."""
        return self.tool_cores + self.prepare_cores


def platform_demand(
    *,
    arrivals_per_s: float,
    rounds: float,
    model_s: float,
    tool_s: float,
    task_s: float,
    resident_s: float,
    memory_gib: float,
    creations_per_task: float,
    tool_width_cores: float = 1.0,
    prepare_cpu_s: float = 0.0,
) -> PlatformDemand:
    """Return what one class of tasks needs of every resource, by Little's law.

    Args:
        arrivals_per_s: tasks that arrive.
        rounds: mean number of rounds of a task.
        model_s: mean time of a model call.
        tool_s: mean time of a tool.
        task_s: mean time of a whole task.
        resident_s: mean time that environments of a task are resident, all rounds together.
        memory_gib: memory of one environment.
        creations_per_task: environments made for a task.
        tool_width_cores: cores that one tool keeps busy.
        prepare_cpu_s: CPU time of one preparation.

    Raises:
        InvalidRequestError: the arrival rate or the rounds are not above zero, or another input is negative.

    Formula:
        each mean use = λ · what one task takes of it

    Source:
        Little's law; the chapter, section 11.1.2
    """
    rate = check_positive("arrivals_per_s", arrivals_per_s, "1/s")
    check_positive("rounds", rounds)
    for name, value in (("model_s", model_s), ("tool_s", tool_s), ("task_s", task_s), ("resident_s", resident_s)):
        check_not_negative(name, value, "s")
    check_not_negative("memory_gib", memory_gib, "GiB")
    check_not_negative("creations_per_task", creations_per_task)
    check_not_negative("tool_width_cores", tool_width_cores, "CPU")
    check_not_negative("prepare_cpu_s", prepare_cpu_s, "CPU·s")
    return PlatformDemand(
        tasks=rate * task_s,
        environments=rate * resident_s,
        memory_gib=rate * resident_s * memory_gib,
        tool_cores=rate * rounds * tool_s * tool_width_cores,
        prepare_cores=rate * creations_per_task * prepare_cpu_s,
        model_slots=rate * rounds * model_s,
        model_calls_per_s=rate * rounds,
        tool_calls_per_s=rate * rounds,
        creations_per_s=rate * creations_per_task,
    )
