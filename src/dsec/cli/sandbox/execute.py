"""`dsec sandbox exec` and `dsec sandbox shell`: run a command and be it, as far as streams and exit code go."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

import anyio
import click
import msgspec

from dsec.base.errors import (
    CommandNotFoundError,
    InvalidRequestError,
    SandboxExitedError,
    error_from_code,
)
from dsec.base.ids import check_sandbox_id
from dsec.base.units import format_duration
from dsec.cli.context import Options, pass_options
from dsec.cli.output import note, print_json
from dsec.cli.parameters import duration, id_parameters, json_option, one_id, pairs_option
from dsec.cli.sandbox import terminal
from dsec.model.process import CommandRequest, CommandResult, ErrorEvent, ExitStatus, OutputEvent
from dsec.service.port import CommandStream, SandboxService

_SHELL_TIMEOUT_S = 86_400.0
_SHELLS = ("bash", "zsh", "ash", "sh")
"""From the most comfortable down; found through the sandbox's own PATH."""
TIMED_OUT = 124
"""Exit code when the timeout passed; as timeout(1)."""


@click.command(name="exec", context_settings={"allow_interspersed_args": False})
@click.option("--id", "id_option", metavar="ID", help="The sandbox (instead of naming it in place).")
@click.option("-i", "--interactive", is_flag=True, help="Forward the standard input even from a terminal.")
@click.option("-t", "--tty", is_flag=True, help="Run on a terminal.")
@pairs_option("-e", "--env", help="Variable; may be repeated.")
@click.option("-u", "--user", help="As this user: name, uid or uid:gid.")
@click.option("-w", "--workdir", help="In this directory.")
@click.option("--timeout", type=duration, default="1h", show_default=True, help="Kill its whole tree after this time.")
@click.option("-d", "--detach", is_flag=True, help="Run in the background and print the process's id.")
@json_option
@click.argument("words", metavar="[ID] COMMAND [ARGUMENT]...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
@pass_options
def execute(
    options: Options, ctx: click.Context, /, id_option: str | None, words: tuple[str, ...], as_json: bool, **given: Any
) -> None:
    """Run a command in a sandbox and exit with its exit code (124 when the timeout passed).

    Options of dsec come before the sandbox's ID. Input is forwarded when it is piped, or with -i. No shell is
    involved: write `sh -c '...'` for one. With --json the output is collected and printed with the exit status.
    """
    sandbox_id, argv = _split(id_option, words)
    request = _request(argv, **given)
    if given["detach"]:
        info = options.run(
            lambda service: service.start_process(sandbox_id, msgspec.structs.replace(request, timeout_s=None))
        )
        print_json(info) if as_json else click.echo(info.process_id)
        return
    if as_json:
        result = options.run(lambda service: _collect(service, sandbox_id, request))
        print_json(_result_as_json(result))
        status = result.status
    else:
        status = options.run(lambda service: _be(service, sandbox_id, request))
    ctx.exit(_exit_code(status))


def _split(id_option: str | None, words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    if id_option is None:
        if not words:
            raise click.UsageError("Missing the sandbox's ID and the command.")
        id_option, words = words[0], words[1:]
        if words and words[0].startswith("-") and words[0] != "--":
            raise click.UsageError(f"Options such as {words[0]} come before the sandbox's ID.")
    words = words[1:] if words[:1] == ("--",) else words
    if not words:
        raise click.UsageError("Missing the command.")
    return check_sandbox_id(id_option), words


def _request(
    argv: tuple[str, ...],
    *,
    interactive: bool,
    tty: bool,
    env: tuple[tuple[str, str], ...],
    user: str | None,
    workdir: str | None,
    timeout: float,
    detach: bool,
) -> CommandRequest:
    if tty and (detach or not terminal.stdin_is_terminal()):
        raise InvalidRequestError("-t needs a terminal on the standard input", resolution="leave -t out")
    forwards = not detach and (interactive or tty or not terminal.stdin_is_terminal())
    return CommandRequest(
        argv=argv,
        cwd=workdir,
        env={**_terminal_env(tty), **dict(env)},
        user=user,
        keep_stdin_open=forwards,
        timeout_s=timeout,
        terminal=terminal.size() if tty else None,
    )


def _terminal_env(tty: bool) -> dict[str, str]:
    return {"TERM": os.environ.get("TERM", "xterm")} if tty else {}


async def _be(service: SandboxService, sandbox_id: str, request: CommandRequest) -> ExitStatus:
    """Run a command with our streams as its streams."""
    async with service.stream(sandbox_id, request) as stream, anyio.create_task_group() as group:
        with ExitStack() as stack:
            if request.terminal is not None:
                stack.enter_context(terminal.raw_mode())
                group.start_soon(terminal.forward_resizes, stream)
            if request.keep_stdin_open:
                group.start_soon(_forward_quietly, stream)
            status = await _pass_on(stream)
        group.cancel_scope.cancel()
    return status


async def _forward_quietly(stream: CommandStream) -> None:
    """A command may end, or close its input, before ours has: that is its business."""
    try:
        await terminal.forward_input(stream)
    except SandboxExitedError:
        return


async def _pass_on(stream: CommandStream) -> ExitStatus:
    async for event in stream:
        if isinstance(event, OutputEvent):
            terminal.write_output(event.stream, event.data)
        elif isinstance(event, ErrorEvent):
            raise error_from_code(event.code, event.brief, detail=event.detail, resolution=event.resolution)
        else:
            return event.status
    raise SandboxExitedError("the command's stream ended without an exit status")


async def _collect(service: SandboxService, sandbox_id: str, request: CommandRequest) -> CommandResult:
    piped = b""
    if request.keep_stdin_open:
        piped = b"".join([data async for data in terminal.stdin_chunks()])
    return await service.run(sandbox_id, msgspec.structs.replace(request, stdin=piped, keep_stdin_open=False))


def _result_as_json(result: CommandResult) -> dict[str, Any]:
    """Return a result with its output as text (undecodable bytes become U+FFFD) for reading by people's scripts."""
    return {
        "status": result.status,
        "stdout": result.stdout.decode(errors="replace"),
        "stderr": result.stderr.decode(errors="replace"),
        "stdout_dropped_bytes": result.stdout_dropped_bytes,
        "stderr_dropped_bytes": result.stderr_dropped_bytes,
    }


def _exit_code(status: ExitStatus) -> int:
    if status.timed_out:
        note(f"timed out after {format_duration(status.duration_s)}: everything it started was killed")
        return TIMED_OUT
    if status.oom_killed:
        note("a process of the sandbox was killed for memory while the command ran")
    return status.exit_code


@click.command(name="shell")
@id_parameters
@click.option("-u", "--user", help="As this user: name, uid or uid:gid.")
@click.option("-w", "--workdir", help="In this directory.")
@pairs_option("-e", "--env", help="Variable; may be repeated.")
@click.pass_context
@pass_options
def shell(
    options: Options,
    ctx: click.Context,
    id_option: str | None,
    id_argument: str | None,
    user: str | None,
    workdir: str | None,
    env: tuple[tuple[str, str], ...],
) -> None:
    """Open the best shell that the image has, on a terminal; piped input is run as a script."""
    sandbox_id = one_id(id_option, id_argument)
    tty = terminal.stdin_is_terminal()

    async def act(service: SandboxService) -> ExitStatus:
        request = _request(
            (await find_shell(service, sandbox_id),),
            interactive=True, tty=tty, env=env, user=user, workdir=workdir, timeout=_SHELL_TIMEOUT_S, detach=False,
        )  # fmt: skip
        return await _be(service, sandbox_id, request)

    ctx.exit(_exit_code(options.run(act)))


async def find_shell(service: SandboxService, sandbox_id: str) -> str:
    """Return the best shell of a sandbox.

    Raises:
        CommandNotFoundError: it has none.
    """
    for name in _SHELLS:
        try:
            await service.run(sandbox_id, CommandRequest(argv=(name, "-c", ":")))
        except CommandNotFoundError:
            continue
        return name
    raise CommandNotFoundError(
        f"{sandbox_id} has no shell",
        detail=f"looked for {', '.join(_SHELLS)}",
        resolution="run programs with `dsec sandbox exec`",
    )
