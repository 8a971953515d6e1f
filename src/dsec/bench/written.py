"""What a guest writes for benchmarks that go by the amount written.

All of it once, and for each sample the last `ANEW_BYTES` of it again: what a guest wrote before those is on the volume
whatever it does, since the node bounds what waits in memory (`unwritten_bytes`, 64 MiB), so that writing 4 GiB anew for
each sample would change nothing but how long the benchmark takes.

All files are new, of 64 MiB: one that is emptied and written again begins to go to disk when it is closed, which would
make the rest easier.
"""

from __future__ import annotations

from dsec.base.errors import RuntimeFailedError
from dsec.base.units import MIB
from dsec.model.process import CommandRequest
from dsec.service.port import SandboxService

ANEW_BYTES = 256 * MIB
"""Four times what may wait in memory."""
WRITTEN = "/home/user/written"
_LAID, _ANEW = f"{WRITTEN}/laid", f"{WRITTEN}/anew"


async def write(service: SandboxService, sandbox_id: str, size_bytes: int) -> None:
    """Let the guest write so many random bytes, all of them."""
    await lay(service, sandbox_id, size_bytes)
    await write_anew(service, sandbox_id, size_bytes)


async def lay(service: SandboxService, sandbox_id: str, size_bytes: int) -> None:
    """Write what is written once, and have it on the volume."""
    await _run(service, sandbox_id, f"{_writing(_LAID, max(0, size_bytes - ANEW_BYTES))}; sync")


async def write_anew(service: SandboxService, sandbox_id: str, size_bytes: int) -> None:
    """Write the rest, again."""
    await _run(service, sandbox_id, _writing(_ANEW, min(size_bytes, ANEW_BYTES)))


def is_laid(size_bytes: int) -> bool:
    """Whether some of an amount is written once."""
    return size_bytes > ANEW_BYTES


def writing_command(size_bytes: int) -> CommandRequest:
    """Return what writes all of it, for who has no sandbox."""
    return _command(_writing(_ANEW, size_bytes))


def _writing(directory: str, size_bytes: int) -> str:
    return f"""set -e; rm -rf {directory}; mkdir -p {directory}; left={size_bytes}; n=0
    while [ $left -gt 0 ]; do part=$((left < {64 * MIB} ? left : {64 * MIB}))
    head -c $part /dev/urandom > {directory}/$n; left=$((left - part)); n=$((n + 1)); done"""


async def _run(service: SandboxService, sandbox_id: str, script: str) -> None:
    result = await service.run(sandbox_id, _command(script))
    if result.status.exit_code != 0:
        raise RuntimeFailedError("the guest could not write", detail=result.stderr.decode(errors="replace"))


def _command(script: str) -> CommandRequest:
    return CommandRequest(argv=("sh", "-c", script), timeout_s=600)
