"""Run a scenario.

This is what other code calls::

    from dsec.sim import Arrivals, RoundsScenario, constant, run

    result = run(RoundsScenario(
        arrivals=Arrivals(kind="uniform", rate_per_s=10), duration_s=3600, warmup_s=60,
        rounds=3, model_call_s=constant(9), tool_s=constant(1),
        model_slots=320, cores=48, environments=178, environment="resident",
    ))
    result.levels["environments"].mean       # over time, from the warm-up to the last arrival
    result.figures["task_s"].p99             # of the tasks that arrived after the warm-up
    result.counts["on_time"]

A result is determined by the scenario and the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dsec.sim.distribution.model import DistributionModel
from dsec.sim.distribution.scenario import DistributionScenario
from dsec.sim.fleet.model import FleetModel
from dsec.sim.fleet.scenario import FleetScenario
from dsec.sim.levels import LevelsModel, LevelsScenario
from dsec.sim.result import Result
from dsec.sim.rounds import RoundsModel
from dsec.sim.scenario_file import Scenario, ScenarioFile

Report = Callable[[float], None]
"""Told from time to time which share of a run is done."""


def run(
    scenario: Scenario,
    *,
    seed: int | None = None,
    case: str = "",
    directory: Path = Path(),
    progress: Report | None = None,
) -> Result:
    """Run one scenario to its end.

    Args:
        scenario: what to simulate.
        seed: another one than the scenario's.
        case: a name for the result.
        directory: where a trace's path begins.
        progress: is told the share that is done, between 0 and 1.

    Raises:
        InvalidRequestError: the scenario cannot be: more arrivals than fit, for example.
    """
    chosen = scenario.seed if seed is None else seed
    if isinstance(scenario, FleetScenario):
        return FleetModel(scenario, chosen, directory=directory).run(case, progress)
    if isinstance(scenario, LevelsScenario):
        return LevelsModel(scenario, chosen, directory=directory).run(case)
    if isinstance(scenario, DistributionScenario):
        return DistributionModel(scenario, chosen).run(case, progress)
    return RoundsModel(scenario, chosen, directory=directory).run(case)


def run_cases(
    file: ScenarioFile, *, seed: int | None = None, progress: Callable[[str], Report] | None = None
) -> list[Result]:
    """Run every case of a scenario file, in order.

    Args:
        file: the scenario.
        seed: another one than the scenario's.
        progress: makes a progress callback for each case's name.
    """
    return [
        run(
            scenario,
            seed=seed,
            case=case.name,
            directory=file.directory,
            progress=progress(case.name) if progress else None,
        )
        for case, scenario in file.cases
    ]
