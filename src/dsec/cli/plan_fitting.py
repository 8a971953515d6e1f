"""`dsec plan --from-run`: fit a rollout's results, and plan for a multiple of its load."""

from __future__ import annotations

from pathlib import Path

import click

from dsec.base.errors import NotFoundError
from dsec.cli.output import print_table
from dsec.cli.plan_reading import read_text
from dsec.episode.frames import scan_frames
from dsec.planner.from_run import Case, RunPlan, plan_from_run
from dsec.verification.attempt_result import AttemptResult, decode_results

RESULTS_NAME = "results.jsonl"
_DEFAULT_NAME = "the default offers"


def make_run_plan(file: Path | None, directory: Path, times: float) -> RunPlan:
    """Read the results of a rollout and plan.

    Raises:
        NotFoundError: the directory holds no results.
        StateCorruptedError: they do not verify.
        InvalidRequestError: they are too few, or the file of offers is not right.
    """
    return plan_from_run(
        read_results(directory),
        offers=None if file is None else read_text(file),
        name=_DEFAULT_NAME if file is None else str(file),
        run=str(directory),
        times=times,
    )


def read_results(directory: Path) -> list[AttemptResult]:
    """Return the results in a rollout's output directory; errors are those of `make_run_plan`."""
    path = directory / RESULTS_NAME
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotFoundError(
            f"{path} cannot be read: {error.strerror}", resolution="name the output directory of `dsec rollout run`"
        ) from error
    return list(decode_results(scan_frames(data, name=str(path)).documents, name=str(path)).values())


def print_fit(found: RunPlan) -> None:
    """Print what was fitted, and the three ways to read it."""
    fit = found.fit
    click.echo(
        f"{fit.attempts} attempts in {fit.span_s:,.4g} s, {fit.in_flight:.3g} at the same time"
        + (f"; {fit.left_out} left out" if fit.left_out else "")
        + "\n"
    )
    intervals = [fit.rate, *(item for group in fit.groups for item in group.intervals)]
    rows = [
        (item.name, f"{item.middle:.4g} {item.unit}", f"{item.low:.4g} to {item.high:.4g}", str(item.count), item.how)
        for item in intervals
    ]
    print_table(("input", "fitted", "95 % interval", "from", "by"), rows)
    click.echo(f"\n{found.times:g} times the load")
    cases = [_cells(case) for case in found.cases]
    print_table(("reading", "combination", "replicas", "hosts", "time", "USD/1000", "in time"), cases)
    click.echo()


def _cells(case: Case) -> tuple[str, ...]:
    if not case.chosen:
        return (case.name, "none reaches the goal", "-", "-", "-", "-", "-")
    return (
        case.name,
        case.chosen,
        str(case.units),
        str(case.hosts),
        f"{case.completion_s:.4g} s",
        f"{case.usd_per_thousand:.4g}",
        f"{case.share_in_time:.1%}",
    )
