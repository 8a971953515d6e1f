"""The simulator against queueing theory, where its assumptions hold."""

from __future__ import annotations

from math import factorial

import pytest

from dsec.sim import Arrivals, Result, RoundsScenario, constant, exponential, run


def erlang_c(servers: int, offered: float) -> float:
    """The chance that an arrival waits in M/M/c."""
    last = offered**servers / factorial(servers) * servers / (servers - offered)
    return last / (sum(offered**n / factorial(n) for n in range(servers)) + last)


def queue(servers: int, rate_per_s: float, service: object, *, duration_s: float) -> Result:
    return run(
        RoundsScenario(
            arrivals=Arrivals(kind="poisson", rate_per_s=rate_per_s),
            duration_s=duration_s,
            warmup_s=duration_s / 50,
            tool_s=service,  # type: ignore[arg-type]
            cores=servers,
            seed=3,
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize(("servers", "rate"), [(1, 0.5), (4, 2.0)])
def test_mean_wait_of_m_m_c_is_that_of_erlang(servers: int, rate: float) -> None:
    result = queue(servers, rate, exponential(1.0), duration_s=200_000 / rate)
    expected = erlang_c(servers, rate) / (servers - rate)
    assert result.figures["tool_wait_s"].mean == pytest.approx(expected, rel=0.02)


@pytest.mark.slow
def test_mean_wait_of_m_d_1_is_that_of_pollaczek_and_khinchine() -> None:
    result = queue(1, 0.6, constant(1.0), duration_s=200_000)
    assert result.figures["tool_wait_s"].mean == pytest.approx(0.6 / (2 * (1 - 0.6)), rel=0.02)


@pytest.mark.slow
def test_littles_law_holds_for_every_station() -> None:
    result = queue(8, 6.0, exponential(1.0), duration_s=5_000)
    rate = result.counts["arrived"] / (5_000 * 0.98)
    assert result.levels["tasks"].mean == pytest.approx(rate * result.figures["task_s"].mean, rel=0.02)
    assert result.levels["tool_queue"].mean == pytest.approx(rate * result.figures["tool_wait_s"].mean, rel=0.02)


def repair(**changes: object) -> Result:
    """The chapter's platform, as far as given: ten tasks a second, three rounds of 9 s and 1 s."""
    values = {
        "arrivals": Arrivals(kind="uniform", rate_per_s=10),
        "duration_s": 200.0,
        "warmup_s": 60.0,
        "rounds": 3,
        "model_call_s": constant(9.0),
        "tool_s": constant(1.0),
        "cores": 48,
        **changes,
    }
    return run(RoundsScenario(**values))  # type: ignore[arg-type]


def test_resident_environments_number_what_littles_law_says() -> None:
    result = repair(model_slots=320)
    assert result.levels["environments"].mean == pytest.approx(300, rel=0.001)
    assert result.levels["model_calls"].mean == pytest.approx(270, rel=0.001)
    assert result.levels["tool_cores"].mean == pytest.approx(30, rel=0.001)
    assert result.figures["task_s"].mean == pytest.approx(30)


def test_environments_made_for_each_round_are_there_three_seconds_of_ten() -> None:
    result = repair(environment="per_round", prepare_s=2.0, prepare_cpu_s=0.1)
    assert result.levels["environments"].mean == pytest.approx(90, rel=0.001)
    assert result.counts["prepare_cores"] == pytest.approx(3, rel=0.01)
    assert result.figures["late_environment_s"].maximum == 0.0


def test_rebuilding_each_round_takes_the_chapters_task_from_60_to_18_gib_s() -> None:
    """Memory over time of one task: the mean of all, by the tasks that arrive in a second."""

    def gib_s(**changes: object) -> float:
        return repair(**changes).levels["memory_bytes"].mean / (10 << 30)

    assert gib_s() == pytest.approx(60, rel=0.001)
    assert gib_s(environment="per_round", prepare_s=2.0) == pytest.approx(18, rel=0.001)


def test_an_environment_that_is_written_out_takes_memory_until_it_is() -> None:
    """The chapter's pause: 2 GiB at 4 s a GiB to save, 1 s to resume; of each round's 10 s none is left over."""
    paused = repair(environment="per_round", prepare_s=1.0, release_s=8.0)
    assert paused.levels["environments"].mean == pytest.approx(300, rel=0.001)
    snapshot = repair(environment="per_round", prepare_s=1.0, release_s=2.0)
    assert snapshot.levels["environments"].mean == pytest.approx(10 * 3 * (2 + 1 + 1), rel=0.001)


def test_a_preparation_longer_than_the_call_delays_the_tool() -> None:
    result = repair(environment="per_round", model_call_s=constant(1.0), prepare_s=2.7)
    assert result.figures["late_environment_s"].mean == pytest.approx(1.7)


def test_a_task_that_ends_at_its_deadline_is_on_time() -> None:
    result = repair(model_call_s=constant(6.0), deadline_s=21.0)
    assert result.counts["on_time"] == result.figures["task_s"].count


def test_a_burst_waits_for_the_cores_it_lacks() -> None:
    result = repair(
        arrivals=Arrivals(kind="bursts", every_s=1000, group=constant(80)),
        rounds=1,
        model_call_s=constant(0),
        warmup_s=0.0,
    )
    assert result.figures["tool_wait_s"].mean == pytest.approx(0.4)


def test_a_closed_loop_keeps_its_number() -> None:
    result = repair(arrivals=Arrivals(kind="closed", concurrency=7), warmup_s=0.0)
    assert result.levels["tasks"].maximum == 7
    assert result.counts["arrived"] == result.counts["completed"]


def test_environments_never_exceed_their_places() -> None:
    result = repair(environments=25, model_slots=0)
    assert result.levels["environments"].maximum == 25


def test_every_task_that_arrives_is_done_in_the_end() -> None:
    result = repair(warmup_s=0.0, arrivals=Arrivals(kind="poisson", rate_per_s=3))
    assert result.counts["arrived"] == result.counts["completed"] > 0
