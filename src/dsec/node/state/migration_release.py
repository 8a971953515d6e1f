"""After the decision: the sandbox is the target's, and it is told until it has heard.

Here nothing can be taken back, and nothing has to wait: a target that does not answer takes the sandbox over as soon
as it does, or when it asks by itself.
"""

from __future__ import annotations

import anyio
import msgspec
import structlog

from dsec.base.errors import DsecError, SandboxExitedError
from dsec.lifecycle.migration import SourceEvent, SourcePhase, source_after
from dsec.node.core import Core, shielded
from dsec.node.ending import take_apart
from dsec.node.registry import Whereabouts, moved_error
from dsec.node.sandbox import Sandbox
from dsec.node.state import migration_records as records
from dsec.service.migration import ReleaseAnswer
from dsec.service.peers import Peer
from dsec.stores.port import MigrationRecord

_log = structlog.get_logger(__name__)
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.1, 30.0


def send_away(core: Core, sandbox: Sandbox, record: MigrationRecord) -> None:
    """From now on whoever asks for the sandbox is told where it is."""
    whereabouts = Whereabouts(record.peer, record.url)
    core.registry.remember_moved(sandbox.sandbox_id, whereabouts)
    sandbox.moved = moved_error(sandbox.sandbox_id, whereabouts)


async def leave_behind(core: Core, sandbox: Sandbox, record: MigrationRecord) -> None:
    """Take apart what is left of a sandbox that was released. Idempotent. The caller holds its transition.

    What runs there ends, as at a rollback: it is not told where the sandbox went, since asking again there would do
    again what may have happened here.
    """
    error = SandboxExitedError(f"{sandbox.sandbox_id} moved to the node {record.peer}; its processes ended with that")
    with shielded(core.settings.end_timeout_s, f"leaving {sandbox.sandbox_id} behind"):
        await take_apart(core, sandbox, error)
        await core.parts.journal.delete_sandbox(sandbox.sandbox_id)
        core.registry.forget(sandbox)


async def tell(core: Core, peer: Peer, record: MigrationRecord) -> ReleaseAnswer:
    """Tell the target that the sandbox is its own, again and again until it acknowledges."""
    delay_s = _FIRST_DELAY_S
    while True:
        try:
            with anyio.move_on_after(core.settings.migration_lease_s):
                return await peer.release(record.migration_id)
        except DsecError as error:
            _log.warning("release_not_heard", migration_id=record.migration_id, peer=record.peer, error=str(error))
        await anyio.sleep(delay_s)
        delay_s = min(2 * delay_s, _LONGEST_DELAY_S)


async def finish(core: Core, record: MigrationRecord, sandbox: Sandbox | None) -> None:
    """Do what is left after the decision, however long it takes; in the background and after a restart.

    Args:
        core: the node.
        record: it says `released`.
        sandbox: what resisted being taken apart; None: nothing is left of it.
    """
    delay_s = _FIRST_DELAY_S
    while True:
        try:
            if sandbox is not None and not sandbox.forgotten:
                async with sandbox.transition:
                    await leave_behind(core, sandbox, record)
            peer = await core.parts.peers.find(record.peer)
            await tell(core, peer, record)
            await acknowledge(core, record)
            return
        except DsecError as error:
            _log.warning("release_waits", migration_id=record.migration_id, peer=record.peer, error=str(error))
        await anyio.sleep(delay_s)
        delay_s = min(2 * delay_s, _LONGEST_DELAY_S)


async def acknowledge(core: Core, record: MigrationRecord) -> None:
    """Write that the target has it, and nothing is left here."""
    moved = msgspec.structs.replace(record, source=source_after(record.source, SourceEvent.ACKNOWLEDGED))
    with shielded(core.settings.end_timeout_s, f"recording the end of {record.migration_id}"):
        await records.write(core, moved)


def resume(core: Core) -> None:
    """Take up after a start what was released and not acknowledged."""
    for record in tuple(core.migrations.values()):
        if record.source is SourcePhase.RELEASED:
            start(core, record, core.registry.get(record.sandbox_id))


def start(core: Core, record: MigrationRecord, sandbox: Sandbox | None) -> None:
    """Go on in the background."""
    core.supervisor.start(f"release {record.sandbox_id}", lambda: finish(core, record, sandbox))
