"""`dsec rollout`: run a batch of tasks, go on with one, report."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.lazy import Lazy, LazyGroup
from dsec.cli.parameters import json_option
from dsec.cli.rollout_agent import AgentOptions, agent_options

if TYPE_CHECKING:
    import anyio

    from dsec.service.port import SandboxService
    from dsec.service.prefetch import PrefetchService
    from dsec.verification.outcome import Outcome
    from dsec.worker.job import JobEnd, RolloutRequest

_OUTCOMES = ["passed", "failed"]


_COMMANDS = {
    "rounds": Lazy("dsec.cli.rollout_rounds:rounds", "Show what the episodes of a rollout have done so far."),
}


@click.group(name="rollout", cls=LazyGroup, lazy=_COMMANDS)
def rollout() -> None:
    """Run a batch of tasks and report."""


@rollout.command(name="run")
@click.argument("tasks", type=click.Path(path_type=Path))
@click.option(
    "--policy",
    required=True,
    help="agent, scaffold:COMMAND, episode:NAME, oracle, nop, script:FILE, replay:DIR, a plug-in, module:attribute.",
)
@click.option("--attempts", default=1, show_default=True, help="Attempts at each task.")
@click.option("--concurrency", type=int, help="Attempts at once.  [twice the processors]")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Results.  [rollouts/ID]")
@click.option("--limit", type=click.IntRange(min=1), help="Run only so many tasks, in the order of their names.")
@click.option("--filter", "pattern", default="*", metavar="GLOB", help="Run only tasks with such names.")
@click.option("--verify-in", type=click.Choice(["same", "clean"]), default="same", help="Sandbox of the tests.  [same]")
@click.option("--network", type=click.Choice(["declared", "none"]), default="declared", help="What tasks get.")
@click.option("--limits", type=click.Choice(["declared", "available"]), default="declared", help="Which tasks get.")
@click.option("--skip-broken", is_flag=True, help="Leave out tasks that are broken or cannot run here.")
@click.option("--expect", type=click.Choice(_OUTCOMES), help="Exit with 1 unless every attempt ends so.")
@click.option("--create-timeout", default=30.0, show_default=True, help="Seconds a sandbox may take to come up.")
@agent_options
@json_option
@pass_options
@click.pass_context
def run(
    ctx: click.Context,
    options: Options,
    /,
    tasks: Path,
    policy: str,
    attempts: int,
    concurrency: int | None,
    out: Path | None,
    limit: int | None,
    pattern: str,
    verify_in: str,
    network: str,
    limits: str,
    skip_broken: bool,
    expect: str | None,
    create_timeout: float,
    as_json: bool,
    **agent: Any,
) -> None:
    """Run every task under TASKS with a policy, verify each attempt, and report.

    TASKS is a task folder in the Harbor format or a directory of them. Running the same command again goes on where an
    interrupted one was; an agent's attempt goes on with its last saved round. Exits with 0 when every attempt has a
    verdict.
    """
    from dsec.base.ids import new_id
    from dsec.cli.output import note
    from dsec.cli.rollout_output import note_report, print_summary
    from dsec.verification.outcome import Outcome
    from dsec.worker.job import RolloutRequest
    from dsec.worker.output import read_results
    from dsec.worker.settings import RolloutSettings, VerifyIn

    given = AgentOptions(**agent)
    rollout_id = new_id("rol", os.urandom)
    request = RolloutRequest(
        tasks=tasks,
        policy=policy,
        out=out or Path("rollouts") / rollout_id,
        rollout_id=rollout_id,
        pattern=pattern,
        limit=limit,
        skip_broken=skip_broken,
        settings=RolloutSettings(
            attempts=attempts,
            concurrency=2 * (os.cpu_count() or 1) if concurrency is None else concurrency,
            verify_in=VerifyIn(verify_in),
            without_network=network == "none",
            available_limits=limits == "available",
            create_timeout_s=create_timeout,
            maximum_rounds=given.max_rounds,
            environ=dict(os.environ),
        ),
    )
    end = options.run(_Job(options, request, given).run, node_inside=True)
    print_summary(end.summary, read_results(request.out)[1], as_json=as_json)
    note_report(request.out)
    if end.interrupted:
        note(f"interrupted; run the same command with --out {request.out} to go on")
    ctx.exit(_exit_code(end, Outcome(expect) if expect else None))


def _exit_code(end: JobEnd, expect: Outcome | None) -> int:
    """Return the exit code, and say in words why it is not 0."""
    from dsec.cli.output import note
    from dsec.worker.summary import exit_code, shortfall

    if end.interrupted:
        return 130
    if said := shortfall(end.summary, expect=expect):
        note(said)
    return exit_code(end.summary, expect=expect)


@dataclass(frozen=True, slots=True)
class _Job:
    """Runs a rollout against a service, until it is done or the first interrupt."""

    options: Options
    request: RolloutRequest
    agent: AgentOptions

    async def run(self, service: SandboxService) -> JobEnd:
        import anyio

        from dsec.base.clock import SystemClock
        from dsec.cli.output import note
        from dsec.cli.rollout_agent import episode_options
        from dsec.cli.rollout_images import ensure_recipes, image_builder, image_names
        from dsec.cli.rollout_progress import ProgressObserver
        from dsec.cli.rollout_watching import open_watched_worker, open_worker_elsewhere
        from dsec.worker.job import run_rollout

        request = replace(self.request, episodes=await episode_options(self.agent))
        names = image_names(self.request.tasks, self.request.pattern, self.request.limit)
        await ensure_recipes(self.options, service, names)
        there = partial(open_worker_elsewhere, self.agent.worker or "", self.options.worker_token)
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(_stop_on_signal, stop)
            with ProgressObserver() as observer:
                end = await run_rollout(
                    request,
                    service=service,
                    clock=SystemClock(),
                    warn=lambda text: note(f"warning: {text}"),
                    builder=image_builder(self.options),
                    observer=observer,
                    stop=stop,
                    open_episodes=open_watched_worker if self.agent.worker is None else there,
                    prefetches=_prefetches(service),
                )
            group.cancel_scope.cancel()
        return end


def _prefetches(service: SandboxService) -> PrefetchService | None:
    from dsec.base.errors import CapabilityMissingError
    from dsec.sdk.prefetch import prefetches_of

    try:
        return prefetches_of(service)
    except CapabilityMissingError:
        return None


async def _stop_on_signal(stop: anyio.Event) -> None:
    """Set `stop` at the first interrupt or termination; a second one has its usual effect."""
    import anyio

    from dsec.cli.output import note

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            note("stopping: ending the attempts in flight and removing their sandboxes; episodes stay as they are")
            stop.set()
            break


@rollout.command(name="show")
@click.argument("out", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--results", "with_results", is_flag=True, help="With --json: every attempt too.")
@json_option
def show(out: Path, with_results: bool, as_json: bool) -> None:
    """Show what a rollout has come to so far; it may still be running."""
    from dsec.cli.output import print_json
    from dsec.cli.rollout_output import print_summary
    from dsec.worker.output import recorded_summary

    summary, results = recorded_summary(out)
    if as_json and with_results:
        print_json({"summary": summary, "results": results})
    else:
        print_summary(summary, results, as_json=as_json)


@rollout.command(name="report")
@click.argument("out", type=click.Path(path_type=Path, exists=True, file_okay=False))
def report(out: Path) -> None:
    """Write the HTML report of a rollout again, from what is recorded."""
    from dsec.cli.rollout_output import note_report
    from dsec.worker.layout import REPORT_NAME
    from dsec.worker.manifest import write_durably
    from dsec.worker.output import read_rounds, recorded_summary
    from dsec.worker.report.page import render_report

    summary, results = recorded_summary(out)
    page = render_report(summary, results, rounds=partial(read_rounds, out))
    write_durably(out / REPORT_NAME, page.encode(errors="replace"))
    note_report(out)
