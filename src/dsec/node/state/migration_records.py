"""What this node's journal says of migrations, on either side; memory follows the journal."""

from __future__ import annotations

from collections.abc import Sequence

from dsec.base.errors import InvalidStateError
from dsec.lifecycle.migration import Verdict, verdict
from dsec.node.core import Core
from dsec.service.migration import MigrationStatus
from dsec.stores.port import REMEMBERED_IDS, CheckpointRecord, MigrationRecord, SandboxRecord


async def write(
    core: Core, record: MigrationRecord, *sandboxes: SandboxRecord, checkpoints: Sequence[CheckpointRecord] = ()
) -> None:
    """Write how a migration stands, in one transaction with what changes with it. The caller shields."""
    await core.parts.journal.exchange(*sandboxes, checkpoints=checkpoints, migrations=[record])
    remember(core, record)


def remember(core: Core, record: MigrationRecord) -> None:
    """Know of a migration that the journal knows."""
    core.migrations[record.migration_id] = record
    if len(core.migrations) > REMEMBERED_IDS:
        over = next((each for each in core.migrations.values() if each.is_over), None)
        if over is not None:
            del core.migrations[over.migration_id]


async def forget(core: Core, record: MigrationRecord, *, erased: str | None = None) -> None:
    """Give a migration up: not to know it is to have given it up. What there was of it is gone already.

    Should the journal not take it, a restart gives it up as well; so memory may say so at once.
    """
    core.migrations.pop(record.migration_id, None)
    await core.parts.journal.exchange(erased=erased, given_up=[record])


def status_of(core: Core, migration_id: str) -> MigrationStatus:
    """Answer how a migration stands here."""
    record = core.migrations.get(migration_id)
    if record is None:
        return MigrationStatus(source=None, target=None, verdict=Verdict.GIVEN_UP)
    decided = Verdict.OPEN if record.target is not None else verdict(record.source)
    return MigrationStatus(source=record.source, target=record.target, verdict=decided)


def unknown(migration_id: str) -> InvalidStateError:
    """The error of a message about a migration that is not under way here."""
    return InvalidStateError(
        f"the migration {migration_id[:80]!r} is not under way on this node",
        resolution="it was given up, or never accepted; offer the sandbox again under a new id",
    )
