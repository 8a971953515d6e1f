"""The check that an image brings itself: one command, run in a generation that nobody has used.

It is a command like any other: in the sandbox, as its user, under its limits. One that hangs or never stops writing
ends with its whole tree, costs no more memory than its bound, and what became of it is a fact like any other: in a
fresh sandbox it has to end well, or no sandbox of the image is made; later it has to be the same.
"""

from __future__ import annotations

import blake3

from dsec.base.errors import (
    HookFailedError,
    NotFoundError,
    PermissionDeniedError,
    SandboxOutOfMemoryError,
    SandboxProcessLimitError,
)
from dsec.base.units import format_size
from dsec.model.image import FingerprintRules
from dsec.model.process import CommandRequest, ExitEvent, ExitStatus, OutputEvent, Stream
from dsec.node.commands import stream
from dsec.node.core import Core
from dsec.node.sandbox import Generation

_CANNOT_START = (NotFoundError, PermissionDeniedError, SandboxOutOfMemoryError, SandboxProcessLimitError)
_GOOD = "exit status 0, "
_SHOWN_BYTES = 120


async def ask(core: Core, generation: Generation, rules: FingerprintRules) -> str:
    """Run the check and say what became of it. What it started has ended when this returns.

    Raises:
        SandboxExitedError: the generation ended meanwhile.
    """
    try:
        said = await _run(core, generation, rules)
    except _CANNOT_START as error:
        said = f"cannot start: {error.brief}"
    await generation.instance.kill_processes()
    return said


async def _run(core: Core, generation: Generation, rules: FingerprintRules) -> str:
    request = CommandRequest(argv=rules.command, timeout_s=rules.timeout_s)
    output, complaints = bytearray(), 0
    status: ExitStatus | None = None
    async with stream(core, generation, request) as events:
        async for event in events:
            if isinstance(event, ExitEvent):
                status = event.status
            elif isinstance(event, OutputEvent) and event.stream is Stream.STDOUT:
                output += event.data
            elif isinstance(event, OutputEvent):
                complaints += len(event.data)
            if max(len(output), complaints) > rules.maximum_bytes:
                # Leaving the block kills whatever is writing.
                return f"wrote more than {format_size(rules.maximum_bytes)}"
    assert status is not None, "a foreground command's events end with its exit"
    if status.timed_out:
        return f"did not end within {rules.timeout_s:g} s"
    digest = blake3.blake3(output).hexdigest()[:32]
    shown = bytes(output[:_SHOWN_BYTES]).decode(errors="backslashreplace")
    return f"exit status {status.exit_code}, output {len(output)} bytes blake3:{digest} {shown}".rstrip()


def require_good(said: tuple[str, ...]) -> None:
    """Refuse a check by which no sandbox would be clean, or that is not clean itself.

    Args:
        said: what it said in a fresh sandbox, and then what it left behind there.

    Raises:
        HookFailedError: it failed, hung, wrote too much or left something.
    """
    words, *left = said
    if words.startswith(_GOOD) and not left:
        return
    what = f"leaves something behind in a fresh sandbox: {left[0]}" if words.startswith(_GOOD) else words
    raise HookFailedError(
        f"the check of the image: {what}",
        detail="; ".join(left),
        resolution="correct the command in the image's fingerprint rules, or name what it may leave under `ignored`",
    )
