"""`dsec sandbox ps`, `logs` and `kill`: background processes."""

from __future__ import annotations

import signal as signals

import click

from dsec.base.errors import InvalidRequestError, ProcessNotFoundError, error_from_code
from dsec.cli.context import Options, pass_options
from dsec.cli.output import age, or_dash, print_json, print_json_line, print_table
from dsec.cli.parameters import id_parameters, json_option, one_id
from dsec.cli.sandbox.terminal import write_output
from dsec.model.process import ErrorEvent, ExitEvent, OutputEvent, ProcessInfo, ProcessState, Stream
from dsec.service.port import CommandStream, SandboxService


@click.command(name="ps")
@id_parameters
@json_option
@pass_options
def ps(options: Options, id_option: str | None, id_argument: str | None, as_json: bool) -> None:
    """List the background processes of a sandbox, ended ones too."""
    sandbox_id = one_id(id_option, id_argument)
    found = options.run(lambda service: service.list_processes(sandbox_id))
    if as_json:
        print_json(list(found))
    else:
        print_table(("id", "state", "exit code", "age", "command"), (_row(info) for info in found))


def _row(info: ProcessInfo) -> tuple[str, ...]:
    exit_code = None if info.status is None else info.status.exit_code
    return info.process_id, info.state.value, or_dash(exit_code), age(info.started_at_s), " ".join(info.argv)


def _named(id_option: str | None, id_argument: str | None, process_id: str | None) -> tuple[str, str | None]:
    """With --id, the only thing named in place is the process."""
    if id_option and id_argument and process_id is None:
        return one_id(id_option, None), id_argument
    return one_id(id_option, id_argument), process_id


@click.command(name="logs")
@id_parameters
@click.argument("process_id", metavar="[PROCESS]", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on as it writes, until it ends.")
@json_option
@pass_options
def logs(
    options: Options,
    id_option: str | None,
    id_argument: str | None,
    process_id: str | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Print what a background process wrote, as far as it is kept. PROCESS may be left out when there is one.

    With --json every piece is one line: stream, offset of its first byte, and data as base64.
    """
    sandbox_id, process_id = _named(id_option, id_argument, process_id)

    async def act(service: SandboxService) -> None:
        info = _choose(sandbox_id, await service.list_processes(sandbox_id), process_id)
        if not follow and info.stdout_bytes == info.stderr_bytes == 0:
            return
        async with service.attach(sandbox_id, info.process_id) as stream:
            await _print(stream, None if follow else info, as_json=as_json)

    options.run(act)


def _choose(sandbox_id: str, found: object, process_id: str | None) -> ProcessInfo:
    infos: list[ProcessInfo] = list(found)  # type: ignore[call-overload]
    chosen = [info for info in infos if process_id in (None, info.process_id)]
    if not chosen:
        what = f"no process {process_id}" if process_id else "no background process"
        raise ProcessNotFoundError(
            f"{sandbox_id} has {what}", resolution=f"list them with `dsec sandbox ps {sandbox_id}`"
        )
    if len(chosen) > 1:
        names = ", ".join(info.process_id for info in chosen)
        raise InvalidRequestError(
            f"{sandbox_id} has {len(chosen)} background processes", resolution=f"name one of {names}"
        )
    return chosen[0]


async def _print(stream: CommandStream, until: ProcessInfo | None, *, as_json: bool) -> None:
    """Print pieces of output until the process ends, or until what it had written when `until` was read is printed."""
    missing = set()
    if until is not None and until.state is ProcessState.RUNNING:
        missing = {s for s, n in ((Stream.STDOUT, until.stdout_bytes), (Stream.STDERR, until.stderr_bytes)) if n}
    bounded = bool(missing)
    async for event in stream:
        if isinstance(event, ExitEvent):
            return
        if isinstance(event, ErrorEvent):
            raise error_from_code(event.code, event.brief, detail=event.detail, resolution=event.resolution)
        if as_json:
            print_json_line({"stream": event.stream, "offset": event.offset, "data": event.data})
        else:
            write_output(event.stream, event.data)
        if bounded and until is not None and _reached(event, until):
            missing.discard(event.stream)
            if not missing:
                return


def _reached(event: OutputEvent, until: ProcessInfo) -> bool:
    wanted = until.stdout_bytes if event.stream is Stream.STDOUT else until.stderr_bytes
    return event.offset + len(event.data) >= wanted


@click.command(name="kill")
@id_parameters
@click.argument("process_id", metavar="PROCESS", required=False)
@click.option("-s", "--signal", "signal_name", default="KILL", show_default=True, help="Name or number.")
@pass_options
def kill(
    options: Options, id_option: str | None, id_argument: str | None, process_id: str | None, signal_name: str
) -> None:
    """Signal a background process. KILL ends its whole tree and returns when all of it is gone."""
    sandbox_id, process_id = _named(id_option, id_argument, process_id)
    number = signal_number(signal_name)

    async def act(service: SandboxService) -> None:
        info = _choose(sandbox_id, await service.list_processes(sandbox_id), process_id)
        await service.signal_process(sandbox_id, info.process_id, number)

    options.run(act)


def signal_number(text: str) -> int:
    """Return a signal's number from its number or its name with or without SIG.

    Raises:
        InvalidRequestError: there is no such signal.
    """
    try:
        return int(
            signals.Signals(int(text)) if text.isdigit() else signals.Signals["SIG" + text.upper().removeprefix("SIG")]
        )
    except (KeyError, ValueError) as error:
        raise InvalidRequestError(f"{text!r} is not a signal", resolution="write TERM, KILL, 15 or the like") from error
