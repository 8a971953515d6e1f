"""The copy of a sandbox in the making: what came in rounds becomes layers, and at last an instance that is fenced.

Every name is drawn here and none comes from the source, so that whatever is half done is claimed by nobody at the next
start. Checkpoints and the clean state are received on a scratch layer and frozen; the present state is received in
place, in the layer that the sandbox will write to: so it is charged for what it holds, as on the source.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from dsec.base.errors import InvalidRequestError, LimitExceededError
from dsec.base.units import format_size
from dsec.model.sandbox import SandboxState
from dsec.node.core import Core
from dsec.node.sandbox import Sandbox, instance_name, instance_of
from dsec.node.state import hooks
from dsec.node.state.piping import CountedBytes, Passed, pour
from dsec.node.state.saved_layers import frozen_name
from dsec.service.migration import ORIGIN, PRESENT, MigrationOffer, MigrationRound, Part
from dsec.stores.port import CheckpointRecord, SandboxRecord

Progress = Callable[[], None]


def import_name(record: SandboxRecord) -> str:
    """Name under which it is kept what the export hook gave for a sandbox that is not yet served."""
    return f"{record.layer}-import"


class Copy:
    """A copy that is received.

    Attributes:
        rounds: how many came.
    """

    def __init__(self, core: Core, offer: MigrationOffer, slot: int, layer_paths: tuple[Path, ...]) -> None:
        self._core = core
        self._offer = offer
        self.record = _record(core, offer, slot, layer_paths)
        self.rounds = 0
        self._began = False
        self._names = {each.checkpoint_id: self._fresh() for each in offer.checkpoints}
        if offer.has_origin:
            self._names[ORIGIN] = self._fresh()
            self.record = msgspec.structs.replace(self.record, origin=self._names[ORIGIN])
        self._received: set[str] = set()
        for name in self._claims():
            core.saved.claim(name)

    def _fresh(self) -> str:
        return frozen_name(self._offer.sandbox_id, self._core.parts.random_bytes)

    def _claims(self) -> list[str]:
        return [*self._names.values(), import_name(self.record)]

    @property
    def is_whole(self) -> bool:
        """Whether everything that the offer names has come."""
        return self._began and self._received == set(self._names)

    async def receive(self, head: MigrationRound, content: AsyncIterable[bytes], progress: Progress) -> Passed:
        """Take one round. After an error the copy is spoilt."""
        if head.of not in (*self._names, PRESENT):
            raise InvalidRequestError(f"the offer says nothing of {head.of[:80]!r}")
        if head.part is Part.EXPORT:
            passed = await self._receive_export(head, content, progress)
        elif head.of == PRESENT:
            passed = await self._receive_present(head, content, progress)
        else:
            passed = await self._receive_frozen(head, content, progress)
        self.rounds += 1
        return passed

    def _base(self, head: MigrationRound) -> str | None:
        if head.base is None:
            return None
        if head.base not in self._received:
            raise InvalidRequestError(f"round {head.number} begins from {head.base[:80]!r}, which has not come")
        return self._names[head.base]

    async def _receive_present(self, head: MigrationRound, content: AsyncIterable[bytes], progress: Progress) -> Passed:
        base = None if self._began else self._base(head)
        self._began = True
        return await self._pour(self.record.layer, base, content, progress)

    async def _receive_frozen(self, head: MigrationRound, content: AsyncIterable[bytes], progress: Progress) -> Passed:
        if head.of in self._received:
            raise InvalidRequestError(f"{head.of} came twice")
        layers, scratch = self._core.parts.layers, self._fresh()
        base = self._base(head)
        try:
            passed = await self._pour(scratch, base, content, progress)
            await anyio.to_thread.run_sync(layers.settle, scratch)
            layers.checkpoint(scratch, self._names[head.of])
        finally:
            layers.discard(scratch)
        self._received.add(head.of)
        return passed

    async def _pour(self, layer: str, base: str | None, content: AsyncIterable[bytes], progress: Progress) -> Passed:
        quota_bytes = self.record.spec.resources.disk_bytes

        def take(fd: int) -> None:
            self._core.parts.layers.receive(layer, fd, base=base, quota_bytes=quota_bytes)

        return await pour(self._core, content, take, progress=progress)

    async def _receive_export(self, head: MigrationRound, content: AsyncIterable[bytes], progress: Progress) -> Passed:
        name = import_name(self.record) if head.of == PRESENT else self._names[head.of]
        most = min(self.record.image_config.hooks.maximum_bytes, self._core.settings.maximum_exported_bytes)
        counted, held = CountedBytes(b""), bytearray()
        async for data in content:
            progress()
            held += counted.count(data)
            if len(held) > most:
                raise LimitExceededError(
                    f"what a hook exported is more than {format_size(most)}", resolution="raise maximum_exported_bytes"
                )
        await anyio.to_thread.run_sync(self._core.parts.exports.put, name, bytes(held))
        return counted.passed()

    def sandbox(self) -> Sandbox:
        """Return what the copy becomes."""
        sandbox = Sandbox(self.record, self._core.now_boot_s())
        sandbox.settled.set()
        sandbox.arrival = anyio.Event()
        sandbox.checkpoints = {record.checkpoint_id: record for record in self.checkpoints()}
        sandbox.holds_origin = bool(self.record.origin)
        return sandbox

    def checkpoints(self) -> list[CheckpointRecord]:
        """What the journal is to say of the checkpoints that came along."""
        return [
            CheckpointRecord(
                sandbox_id=self._offer.sandbox_id,
                layer=self._names[each.checkpoint_id],
                saved=True,
                **{name: getattr(each, name) for name in each.__struct_fields__},
            )
            for each in self._offer.checkpoints
        ]

    async def discard(self) -> None:
        """Leave nothing of what came. Idempotent, as everything that it calls."""
        await self._core.parts.runtime.discard(instance_of(self.record))
        self._core.parts.layers.discard(self.record.layer)
        for name in self._claims():
            self._core.saved.release(name)
        self._names = {}


async def launch(core: Core, sandbox: Sandbox) -> None:
    """Launch the instance of a sandbox that came, and give it what its hook exported on the source."""
    await anyio.to_thread.run_sync(core.parts.layers.renew, sandbox.record.layer)
    sandbox.generation = await core.launch(sandbox.record)
    await hooks.import_state(core, sandbox.record, sandbox.generation, import_name(sandbox.record))


def _record(core: Core, offer: MigrationOffer, slot: int, layer_paths: tuple[Path, ...]) -> SandboxRecord:
    generation = offer.generation + 1  # Its processes began anew, as after a rollback.
    return SandboxRecord(
        sandbox_id=offer.sandbox_id,
        state=SandboxState.MIGRATING,
        requested=offer.requested,
        spec=offer.spec,
        image_config=offer.image_config,
        layer_paths=tuple(map(str, layer_paths)),
        generation=generation,
        slot=slot,
        layer=instance_name(offer.sandbox_id, generation),
        created_wall_s=offer.created_wall_s,
        boot_id=core.parts.boot_id,
        deadline_boot_s=None if offer.remaining_s is None else core.now_boot_s() + offer.remaining_s,
        first_generation=offer.first_generation,
        current=offer.current,
        parent=offer.parent,
        forked_from=offer.forked_from,
        snapshot=offer.snapshot,
    )
