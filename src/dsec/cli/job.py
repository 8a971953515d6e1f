"""`dsec job`: pause and resume all sandboxes of a job (those labelled `job=NAME`) at once."""

from __future__ import annotations

import click

from dsec.base.errors import CapabilityMissingError, PlatformError, SwapFullError
from dsec.base.units import format_size
from dsec.cli.context import Options, pass_options
from dsec.cli.output import note, print_json, print_table, printable
from dsec.cli.parameters import json_option, keep_memory_option
from dsec.model.state import JobAction, JobInfo, JobProgress, JobReport
from dsec.sdk._async.reported import report_of
from dsec.sdk.state import state_of
from dsec.service.port import SandboxService

_COLUMNS = ("JOB", "SANDBOXES", "MEMORY", "SWAP")


@click.group(name="job")
def job() -> None:
    """Pause and resume the sandboxes of a job, those labelled job=NAME."""


@job.command(name="ls")
@json_option
@pass_options
def ls(options: Options, as_json: bool) -> None:
    """List the jobs with their sandboxes, by state, and what these hold."""
    found = options.run(lambda service: state_of(service).list_jobs())
    if as_json:
        print_json(list(found))
    else:
        print_table(_COLUMNS, (_row(info) for info in found))


def _row(info: JobInfo) -> tuple[str, str, str, str]:
    counts = ", ".join(f"{len(ids)} {state}" for state, ids in sorted(info.sandboxes.items()))
    return printable(info.job), counts, format_size(info.memory_bytes), format_size(info.swap_bytes)


@job.command(name="pause")
@click.argument("name", metavar="JOB")
@keep_memory_option
@json_option
@pass_options
def pause(options: Options, name: str, keep_memory: bool, as_json: bool) -> None:
    """Pause every sandbox of a job and give its memory back; asking again does what is left."""
    _change(options, name, JobAction.PAUSE, as_json, keep_memory=keep_memory)


@job.command(name="resume")
@click.argument("name", metavar="JOB")
@json_option
@pass_options
def resume(options: Options, name: str, as_json: bool) -> None:
    """Resume every sandbox of a job; asking again does what is left."""
    _change(options, name, JobAction.RESUME, as_json)


def _change(options: Options, name: str, action: JobAction, as_json: bool, *, keep_memory: bool = False) -> None:
    report = options.run(lambda service: _follow(service, name, action, keep_memory))
    if as_json:
        print_json(report)
    else:
        click.echo(f"{len(report.changed)} changed, {len(report.unchanged)} already so, {len(report.failed)} failed")
    if report.released_bytes:
        note(f"{format_size(report.released_bytes)} of memory given back")
    for failure in report.failed:
        note(f"{failure.sandbox_id}: {failure.code}: {printable(failure.brief)}")
    if any(failure.code in (CapabilityMissingError.code, SwapFullError.code) for failure in report.failed):
        note("--keep-memory only freezes, and needs no room in swap")
    if report.failed:
        click.get_current_context().exit(PlatformError.exit_code)


async def _follow(service: SandboxService, name: str, action: JobAction, keep_memory: bool) -> JobReport:
    """Show how far it is and return the report."""
    tenths = 0

    def show(event: JobProgress) -> None:
        nonlocal tenths
        if _tenths(event) > tenths:  # At most ten lines, however many sandboxes a job has.
            tenths = _tenths(event)
            note(f"{event.done} of {event.total}")

    work = state_of(service).change_job(name, action, keep_memory=keep_memory)
    return await report_of(f"job {name}", work, JobReport, JobProgress, show)


def _tenths(event: JobProgress) -> int:
    return event.done * 10 // event.total if event.total else 10
