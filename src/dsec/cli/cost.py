"""`dsec cost`: what a run cost, and where the money went."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.lazy import HELP_OPTIONS
from dsec.cli.parameters import duration, json_option, size

if TYPE_CHECKING:
    from dsec.worker.ledger_reading import RecordedRun
    from dsec.worker.ledger_report import CostReport

_LOGS_A_LINE = 1000
_BY = ("task", "attempt", "job", "model")


@click.command(name="cost", context_settings=HELP_OPTIONS)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--by", type=click.Choice(_BY), default="task", show_default=True, help="What rows are made for.")
@click.option("--prices", metavar="FILE", help="Price table: a file, or `chapter`.  [what episodes' specs say]")
@click.option("--deadline", type=duration, metavar="TIME", help="Passed in time means within TIME.  [the specs']")
@click.option("--memory", type=size, metavar="SIZE", help="Take a sandbox that was not measured to have held so much.")
@click.option("--worker", metavar="WORKER", help="Directory or URL.  [DSEC_WORKER_URL; none: this host's]")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Draw it as SVG.")
@json_option
@pass_options
def cost(
    options: Options,
    runs: tuple[str, ...],
    by: str,
    prices: str | None,
    deadline: float | None,
    memory: int | None,
    worker: str | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Say what a run cost: for a submitted task, for one that passed, and for one that passed in time.

    RUN is a job or an episode of this host's worker, or a directory: the --out of `dsec rollout run`, a worker's, or
    the log of one episode. Every attempt counts, whatever became of it. What has no known price is named, and every
    sum that lacks it is shown as at least so much.
    """
    from dsec.cli.cost_output import print_cost
    from dsec.cli.output import note, print_json
    from dsec.cli.prices import read_price_table
    from dsec.worker.ledger_pricing import price_run, price_source
    from dsec.worker.ledger_report import By, cost_report

    table = read_price_table(prices)
    run = _read(options, runs, worker, memory, deadline)
    report = cost_report(
        price_run(run, table), run=run.name, prices=price_source(table), by=By(by), problems=run.problems
    )
    print_json(report) if as_json else print_cost(report)
    if plot is not None:
        _draw(plot, report)
        note(f"picture: {plot}")


def _read(
    options: Options, runs: tuple[str, ...], worker: str | None, memory: int | None, deadline: float | None
) -> RecordedRun:
    """Read runs from where they are: directories, or a worker behind a URL."""
    from dsec.sdk.workers import worker_endpoint, worker_state_dir
    from dsec.worker.ledger_reading import read_runs
    from dsec.worker.ledger_remote import read_remote_runs

    is_url = worker is not None and (":" in worker.partition("/")[0])
    there = worker_endpoint(worker if is_url else None, options.worker_token)
    if there is not None and (is_url or worker is None) and not any(Path(run).is_dir() for run in runs):
        from dsec.cli.worker_connection import run_episodes

        options.worker_url = there.url
        return run_episodes(options, lambda episodes: read_remote_runs(episodes, runs, deadline_s=deadline))
    place = Path(worker) if worker is not None and not is_url else worker_state_dir(options.state_dir)
    return read_runs(runs, worker=place, memory_bytes=memory, deadline_s=deadline, on_progress=_tell)


def _tell(done: int, total: int) -> None:
    """Say now and then how far the reading of many logs has come."""
    from dsec.cli.output import note

    if total > _LOGS_A_LINE and (done % _LOGS_A_LINE == 0 or done == total):
        note(f"{done} of {total} logs looked at")


def _draw(path: Path, report: CostReport) -> None:
    from dsec.base.errors import InvalidRequestError
    from dsec.worker.report.money import money_svg

    try:
        path.write_text(money_svg(report), encoding="utf8", errors="replace")
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be written", detail=error.strerror or "") from error
