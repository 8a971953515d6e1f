"""What a source tells of its sandbox, and what a target checks of that before it believes it."""

from __future__ import annotations

from pathlib import Path

from dsec.base.errors import (
    AlreadyExistsError,
    CapabilityMissingError,
    HostDiskFullError,
    InvalidRequestError,
    LimitExceededError,
)
from dsec.base.ids import check_sandbox_id
from dsec.images.port import layer_digest
from dsec.model.capability import Capability
from dsec.model.sandbox import SandboxState
from dsec.node.core import Core
from dsec.node.sandbox import Sandbox
from dsec.node.validation import check_spec, require_capability, resolve_spec
from dsec.service.migration import ID_LENGTH, PREFIX, PROTOCOL_VERSION, MigrationOffer, MovedCheckpoint
from dsec.stores.port import CheckpointRecord

_LONGEST_TEXT = 4096


def offer_of(core: Core, sandbox: Sandbox, migration_id: str) -> MigrationOffer:
    """Describe a sandbox to a node that is to take it."""
    record = sandbox.record
    deadline = record.deadline_boot_s
    checkpoints = in_order(sandbox)
    used = core.parts.layers.used_bytes(record.layer)
    return MigrationOffer(
        version=PROTOCOL_VERSION,
        migration_id=migration_id,
        source=core.parts.node_id,
        sandbox_id=record.sandbox_id,
        requested=record.requested,
        spec=record.spec,
        image_config=record.image_config,
        layers=tuple(layer_digest(Path(path)) for path in record.layer_paths),
        encoding=core.parts.layers.encoding,
        generation=record.generation,
        first_generation=record.first_generation,
        created_wall_s=record.created_wall_s,
        remaining_s=None if deadline is None else max(0.0, deadline - core.now_boot_s()),
        written_bytes=used + sum(each.written_bytes for each in checkpoints),
        checkpoints=tuple(map(_moved, checkpoints)),
        paused=sandbox.state is SandboxState.PAUSED,
        has_origin=bool(record.origin),
        current=record.current,
        parent=record.parent,
        forked_from=record.forked_from,
        snapshot=record.snapshot,
    )


def in_order(sandbox: Sandbox) -> list[CheckpointRecord]:
    """Return a sandbox's checkpoints, each after the one it began from."""
    left = dict(sandbox.checkpoints)
    found: list[CheckpointRecord] = []
    while left:
        ready = [each for each in left.values() if each.parent not in left]
        found += ready
        for each in ready:
            del left[each.checkpoint_id]
    return found


def _moved(record: CheckpointRecord) -> MovedCheckpoint:
    return MovedCheckpoint(**{name: getattr(record, name) for name in MovedCheckpoint.__struct_fields__})


def check_offer(core: Core, offer: MigrationOffer) -> None:
    """Raise the reason why this node does not take a sandbox; nothing was done.

    What is in an offer comes from another machine: ids and names end up in paths, numbers in limits.
    """
    if offer.version != PROTOCOL_VERSION:
        raise InvalidRequestError(
            f"the offer is of version {offer.version}; this node speaks version {PROTOCOL_VERSION}",
            resolution="bring both nodes to the same version",
        )
    body = offer.migration_id.removeprefix(f"{PREFIX}-")
    if len(body) != ID_LENGTH or not body.isalnum() or not body.isascii() or body == offer.migration_id:
        raise InvalidRequestError(f"{offer.migration_id[:80]!r} is not the id of a migration")
    _check_known(core, offer)
    check_spec(offer.requested)
    check_spec(offer.spec)
    require_capability(Capability.CHECKPOINT, "a sandbox that moves", core.reports)
    if not core.parts.layers.encoding or offer.encoding != core.parts.layers.encoding:
        raise CapabilityMissingError(
            f"this node does not read layers in the encoding {offer.encoding[:80]!r}",
            detail=f"it reads {core.parts.layers.encoding or 'none'}",
            resolution="move it to a node whose writable layers are kept as they are on the source",
        )
    resolve_spec(offer.spec, offer.sandbox_id, core.settings, core.reports)
    if offer.paused:
        require_capability(Capability.PAUSE, "a paused sandbox", core.reports)
    _check_numbers(offer)
    _check_checkpoints(core, offer)
    core.admit()
    _check_room(core, offer)


def _check_known(core: Core, offer: MigrationOffer) -> None:
    check_sandbox_id(offer.sandbox_id)
    if offer.migration_id in core.migrations:
        raise AlreadyExistsError(f"the migration {offer.migration_id} is known here", resolution="draw a new id")
    under_way = any(record.sandbox_id == offer.sandbox_id and not record.is_over for record in core.migrations.values())
    if under_way or core.registry.get(offer.sandbox_id) is not None:
        raise AlreadyExistsError(
            f"this node has {offer.sandbox_id} already, or is about to", resolution="remove it there, or wait"
        )


def _check_numbers(offer: MigrationOffer) -> None:
    first, generation = offer.first_generation, offer.generation
    if not 0 <= first <= generation < 1 << 31 or offer.written_bytes < 0:
        raise InvalidRequestError("the offer holds a number that is out of range")
    if offer.remaining_s is not None and not 0 <= offer.remaining_s < 1e10:
        raise InvalidRequestError(f"remaining_s is {offer.remaining_s}; it must be 0 or more")
    for text in (offer.source, offer.parent, offer.forked_from, offer.snapshot):
        if len(text) > _LONGEST_TEXT or "\0" in text:
            raise InvalidRequestError("the offer holds a text that is too long or holds a NUL")


def _check_checkpoints(core: Core, offer: MigrationOffer) -> None:
    if len(offer.checkpoints) > core.settings.maximum_checkpoints:
        raise LimitExceededError(
            f"{offer.sandbox_id} has {len(offer.checkpoints)} checkpoints, more than are allowed here",
            resolution="remove some, or raise maximum_checkpoints on the target",
        )
    others = {key for sandbox in core.registry for key in sandbox.checkpoints}
    known: set[str] = set()
    names: set[str] = set()
    for each in offer.checkpoints:
        if not _is_checkpoint_id(each.checkpoint_id) or each.checkpoint_id in known | others:
            raise InvalidRequestError(f"{each.checkpoint_id[:80]!r} cannot be the id of a checkpoint here")
        if each.parent is not None and each.parent not in known:
            raise InvalidRequestError(f"{each.checkpoint_id} comes before the checkpoint that it began from")
        if each.name and (each.name in names or len(each.name) > _LONGEST_TEXT):
            raise InvalidRequestError(f"two checkpoints are named {each.name[:80]!r}")
        known.add(each.checkpoint_id)
        names.add(each.name)
    if offer.current is not None and offer.current not in known:
        raise InvalidRequestError("the offer's present state begins from a checkpoint that it does not have")


def _is_checkpoint_id(value: str) -> bool:
    body = value.removeprefix("ckp-")
    return body != value and 1 <= len(body) <= 32 and body.isalnum() and body.isascii()


def _check_room(core: Core, offer: MigrationOffer) -> None:
    free = core.parts.host.free_disk_bytes()
    if free - offer.written_bytes < core.settings.minimum_free_disk_bytes:
        raise HostDiskFullError(
            f"there is too little room for {offer.sandbox_id} on the node {core.parts.node_id}",
            detail=f"{free} bytes are free, it has written {offer.written_bytes}, "
            f"{core.settings.minimum_free_disk_bytes} are kept in reserve",
            resolution="move it to another node",
        )
