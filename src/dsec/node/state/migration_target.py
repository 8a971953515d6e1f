"""The receiving half of a migration: what this node answers its peers.

Order (docs/formats/migration.md): the journal says `receiving`, a place is taken, and the offer is accepted; rounds are
applied to layers that nobody is served from; at the commit the copy is launched, fenced, and the journal says
`prepared`; at the release it says `done`, in one transaction with the sandbox that is ready then. Before `prepared` an
error, a silence longer than the lease or a restart discards everything. After it only the source's decision does, and
it is asked for that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import msgspec
import structlog

from dsec.base.errors import AlreadyExistsError, DsecError, InvalidStateError, MigrationFailedError, SandboxExitedError
from dsec.lifecycle.machine import Event, next_state
from dsec.lifecycle.migration import TargetEvent, TargetPhase, event_of, target_after
from dsec.model.event import EventKind
from dsec.model.sandbox import SandboxState
from dsec.node.core import Core, shielded
from dsec.node.ending import take_apart, watch
from dsec.node.lifetimes import Lifetimes
from dsec.node.sandbox import Sandbox, instance_of
from dsec.node.state import migration_records as records
from dsec.node.state.migration_copy import Copy, import_name, launch
from dsec.node.state.migration_offer import check_offer
from dsec.node.view import view_of
from dsec.placement.view import NodeView
from dsec.service.content import ByteStream
from dsec.service.migration import (
    MigrationAccepted,
    MigrationCommit,
    MigrationOffer,
    MigrationRound,
    MigrationStatus,
    ReleaseAnswer,
    RoundReceipt,
)
from dsec.stores.port import MigrationRecord, SandboxRecord

_log = structlog.get_logger(__name__)
_LOOKS_PER_LEASE = 4


class Incoming:
    """One migration to this node that is not over.

    Attributes:
        record: what the journal says.
        copy: what is received; None after a restart, when there is a sandbox or nothing.
        sandbox: the copy, once it is prepared; None also when its owner removed it.
        turn: held by the message that is answered.
        scope: of the round under way; cancelled by whoever gives the migration up.
        began_boot_s: when it was offered, or taken up after a restart.
        heard_boot_s: when the source was heard, or asked, last.
    """

    def __init__(self, record: MigrationRecord, now_boot_s: float) -> None:
        self.record = record
        self.copy: Copy | None = None
        self.sandbox: Sandbox | None = None
        self.turn = anyio.Lock()
        self.scope: anyio.CancelScope | None = None
        self.began_boot_s = self.heard_boot_s = now_boot_s


class Migrations:
    """What a node lets its peers do: implements `dsec.service.peers.Peer`, whose docstrings are the contract.

    A server hands the messages of authenticated peers to these methods, one call each. Messages of one migration are
    answered in the order of their arrival; those of several run side by side. Cancelling `round` breaks the migration
    off; the other methods finish although their caller is gone.

    Attributes:
        node: this node's id.
        url: empty: a node does not know under which name its peers reach it.
    """

    def __init__(self, core: Core, lifetimes: Lifetimes) -> None:
        self._core = core
        self._lifetimes = lifetimes
        self._incoming: dict[str, Incoming] = {}
        self.node = core.parts.node_id
        self.url = ""

    # -- messages ---------------------------------------------------------------------------------------------------

    async def offer(self, offer: MigrationOffer) -> MigrationAccepted:
        core = self._core
        core.check_open()
        check_offer(core, offer)
        await core.mounts.ready_layers(offer.layers)
        check_offer(core, offer)
        paths = core.parts.images.mount_layers(offer.layers)
        # Nothing is awaited until the place is taken.
        record = MigrationRecord(
            migration_id=offer.migration_id,
            sandbox_id=offer.sandbox_id,
            target=target_after(None, TargetEvent.OFFERED),
            peer=offer.source,
            paused=offer.paused,
            began_wall_s=core.parts.clock.wall_s(),
        )
        incoming = Incoming(record, core.now_boot_s())
        incoming.copy = Copy(core, offer, core.slots.take(), paths)
        incoming.turn.acquire_nowait()
        self._incoming[offer.migration_id] = incoming
        accepted = False
        try:
            core.migrations[offer.migration_id] = record
            with shielded(core.settings.end_timeout_s, "recording an offer"):
                await records.write(core, record)
            accepted = True
        finally:
            try:
                if not accepted:
                    await self._give_up(incoming)
            finally:
                incoming.turn.release()
        return MigrationAccepted(node=self.node, lease_s=core.settings.migration_lease_s)

    async def round(self, migration_id: str, head: MigrationRound, content: ByteStream) -> RoundReceipt:
        try:
            async with self._turn(migration_id) as incoming:
                return await self._receive(incoming, head, content)
        finally:
            with anyio.CancelScope(shield=True):
                await content.aclose()

    async def commit(self, migration_id: str, commit: MigrationCommit) -> None:
        async with self._turn(migration_id) as incoming:
            if incoming.record.target is not TargetPhase.PREPARED:
                await self._or_give_up(incoming, lambda: self._prepare(incoming, commit))

    async def release(self, migration_id: str) -> ReleaseAnswer:
        record = self._core.migrations.get(migration_id)
        if record is None or record.target is None:
            # Its owner removed the copy, and whoever sent it asked again before that was known there.
            return ReleaseAnswer(sandbox=None)
        if record.target is TargetPhase.DONE:
            return self._answer(record.sandbox_id)
        incoming = self._incoming.get(migration_id)
        if incoming is not None:
            async with incoming.turn:
                if self._incoming.get(migration_id) is incoming:
                    with shielded(self._core.settings.end_timeout_s, f"taking over {record.sandbox_id}"):
                        await self._take_over(incoming)
        return self._answer(record.sandbox_id)

    async def abort(self, migration_id: str) -> None:
        record = self._core.migrations.get(migration_id)
        if record is None or record.target is None:
            return
        target_after(record.target, TargetEvent.ABORT_HEARD)
        await self._break_off(migration_id, TargetEvent.ABORT_HEARD)

    async def status(self, migration_id: str) -> MigrationStatus:
        incoming = self._incoming.get(migration_id)
        if incoming is not None:
            self._hear(incoming)  # A source that has nothing to send for a while asks, so as not to seem dead.
        return records.status_of(self._core, migration_id)

    async def view(self) -> NodeView:
        return view_of(self._core)

    # -- receiving --------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _turn(self, migration_id: str) -> AsyncIterator[Incoming]:
        """Answer one message of a migration after the other."""
        incoming = self._incoming.get(migration_id)
        if incoming is None:
            raise records.unknown(migration_id)
        async with incoming.turn:
            if self._incoming.get(migration_id) is not incoming:
                raise records.unknown(migration_id)
            self._hear(incoming)
            yield incoming
            self._hear(incoming)

    def _hear(self, incoming: Incoming) -> None:
        incoming.heard_boot_s = self._core.now_boot_s()

    async def _receive(self, incoming: Incoming, head: MigrationRound, content: ByteStream) -> RoundReceipt:
        copy = incoming.copy
        if copy is None or incoming.record.target is not TargetPhase.RECEIVING or head.number != copy.rounds:
            raise InvalidStateError(
                f"round {head.number} of {incoming.record.migration_id} is not the next one",
                resolution="give the migration up, and offer the sandbox again under a new id",
            )
        receipts: list[RoundReceipt] = []

        async def receive() -> None:
            passed = await copy.receive(head, content, lambda: self._hear(incoming))
            receipts.append(RoundReceipt(number=head.number, size_bytes=passed.size_bytes, digest=passed.digest))

        await self._or_give_up(incoming, receive)
        return receipts[0]

    async def _or_give_up(self, incoming: Incoming, work: Callable[[], Awaitable[None]]) -> None:
        """Do a part of the receiving, whose failure in any way is the end of the migration."""
        done = False
        try:
            with anyio.CancelScope() as scope:
                incoming.scope = scope
                await work()
                done = True
            if not done:
                raise MigrationFailedError(f"{incoming.record.migration_id} was given up meanwhile")
        finally:
            incoming.scope = None
            if not done:
                await self._give_up(incoming)

    async def _prepare(self, incoming: Incoming, commit: MigrationCommit) -> None:
        """Launch the copy, and write down that it waits for the source's word."""
        core, copy = self._core, incoming.copy
        phase = target_after(incoming.record.target, TargetEvent.COMMITTED)
        if copy is None or commit.rounds != copy.rounds or not copy.is_whole:
            raise InvalidStateError(
                f"rounds of {incoming.record.migration_id} are missing", detail=f"{commit.rounds} were sent"
            )
        core.check_open()
        if core.registry.get(incoming.record.sandbox_id) is not None:
            raise AlreadyExistsError(f"{incoming.record.sandbox_id} was created here meanwhile")
        sandbox = copy.sandbox()
        core.registry.add(sandbox)
        prepared = False
        try:
            async with sandbox.transition:
                with shielded(core.settings.rollback_timeout_s, f"preparing {sandbox.sandbox_id}"):
                    await launch(core, sandbox)
                    record = msgspec.structs.replace(incoming.record, target=phase)
                    await records.write(core, record, sandbox.record, checkpoints=copy.checkpoints())
                    incoming.record, incoming.sandbox, incoming.copy = record, sandbox, None
                    prepared = True
                self._follow(sandbox)
        finally:
            if not prepared:
                core.registry.leave_out(sandbox)

    # -- the two ends -----------------------------------------------------------------------------------------------

    async def _take_over(self, incoming: Incoming) -> None:
        """Let the sandbox be this node's. Should its init have died while it waited, it is launched again."""
        core, sandbox = self._core, incoming.sandbox
        done = msgspec.structs.replace(
            incoming.record, target=target_after(incoming.record.target, TargetEvent.RELEASE_HEARD)
        )
        if sandbox is None or sandbox.forgotten:
            await records.write(core, done)
            self._over(incoming)
            return
        async with sandbox.transition:
            if sandbox.state is not SandboxState.MIGRATING:  # Its owner stopped it while it waited.
                await records.write(core, done)
                self._over(incoming)
                return
            await self._revive(sandbox)
            if done.paused:
                await sandbox.running().instance.pause()
            ready = self._ready(sandbox, paused=done.paused)
            await records.write(core, done, ready)
            core.registry.forget_moved(sandbox.sandbox_id)
            sandbox.record = ready
            if done.paused:
                sandbox.running().time.stop()
            sandbox.idle_since_boot_s = core.now_boot_s()
            self._over(incoming)
        watch(core, sandbox)
        self._lifetimes.watch(sandbox)
        core.recorder.add(EventKind.MOVED_HERE, sandbox_id=sandbox.sandbox_id, text=f"from {done.peer}")

    def _ready(self, sandbox: Sandbox, *, paused: bool) -> SandboxRecord:
        """What the journal is to say of a sandbox that is served. One that is paused holds an init and nothing that
        were worth giving back."""
        core, record = self._core, sandbox.record
        event = Event.PAUSED if paused else Event.MIGRATED
        state = next_state(sandbox.state, event, sandbox_id=sandbox.sandbox_id)
        if paused:
            record = msgspec.structs.replace(record, paused_boot_s=core.now_boot_s(), keeps_memory=True)
        maximum_s = record.spec.lifetime.maximum_s
        if record.boot_id != core.parts.boot_id and maximum_s is not None:
            # It waited over a boot, whose time means nothing here: let the maximum begin again.
            deadline_s = core.now_boot_s() + maximum_s
            record = msgspec.structs.replace(record, deadline_boot_s=deadline_s, boot_id=core.parts.boot_id)
        return msgspec.structs.replace(record, state=state)

    async def _revive(self, sandbox: Sandbox) -> None:
        """Stop following the copy; launch it again if its init has died. Should the import hook fail then, the release
        that comes again finds the copy launched: after the decision it has to be served by somebody."""
        if sandbox.watch_scope is not None:
            sandbox.watch_scope.cancel()
            sandbox.watch_scope = None
        if sandbox.generation is None:
            await self._core.parts.runtime.discard(instance_of(sandbox.record))
            await launch(self._core, sandbox)

    def _follow(self, sandbox: Sandbox) -> None:
        """Notice when the init of a copy that waits dies. That is no failure of the sandbox: its files are what
        counts, and its processes begin anew in any case."""
        generation = sandbox.running()

        async def work() -> None:
            with suppress(SandboxExitedError):
                cause = await generation.instance.wait_exited()
                _log.warning("copy_died", sandbox_id=sandbox.sandbox_id, cause=cause)
                async with sandbox.transition:
                    if sandbox.generation is generation and sandbox.state is SandboxState.MIGRATING:
                        sandbox.generation = None

        sandbox.watch_scope = self._core.supervisor.start(f"follow the copy {sandbox.sandbox_id}", work)

    def _over(self, incoming: Incoming) -> None:
        self._incoming.pop(incoming.record.migration_id, None)
        if incoming.sandbox is not None:
            self._core.saved.release(import_name(incoming.sandbox.record))
            if incoming.sandbox.arrival is not None:  # One whose files were gone after a restart has failed already.
                incoming.sandbox.arrival.set()

    async def _break_off(self, migration_id: str, event: TargetEvent) -> None:
        """Give a migration up on the source's word, or without it after its lease.

        Raises:
            InvalidStateError: it came so far meanwhile that it cannot be given up for this.
        """
        incoming = self._incoming.get(migration_id)
        if incoming is None:
            return
        if incoming.scope is not None:
            incoming.scope.cancel()
        with anyio.CancelScope(shield=True):
            async with incoming.turn:
                if self._incoming.get(migration_id) is incoming:
                    target_after(incoming.record.target, event)
                    await self._give_up(incoming)

    async def _give_up(self, incoming: Incoming) -> None:
        """Leave nothing of a migration; last the journal forgets it, so that whatever is left goes at the next start.
        The caller has the turn."""
        core, record = self._core, incoming.record
        with shielded(core.settings.end_timeout_s, f"giving up {record.migration_id}"):
            if incoming.copy is not None:
                await incoming.copy.discard()
                core.slots.release(incoming.copy.record.slot)
                incoming.copy = None
            erased = None
            if incoming.sandbox is not None:
                async with incoming.sandbox.transition:
                    erased = await self._unmake(incoming.sandbox)
            await records.forget(core, record, erased=erased)
            self._over(incoming)

    async def _unmake(self, sandbox: Sandbox) -> str | None:
        """Take a prepared copy apart; return the id that the journal has to forget, unless its owner was faster."""
        if sandbox.forgotten:
            return None
        await take_apart(self._core, sandbox, SandboxExitedError(f"{sandbox.sandbox_id} stays where it was"))
        self._core.registry.leave_out(sandbox)
        return sandbox.sandbox_id

    def _answer(self, sandbox_id: str) -> ReleaseAnswer:
        sandbox = self._core.registry.get(sandbox_id)
        return ReleaseAnswer(sandbox=None if sandbox is None else self._core.info(sandbox))

    # -- leases and doubt -------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Take up, after a start, what is prepared; the recovery has kept it."""
        for record in tuple(self._core.migrations.values()):
            if record.target is TargetPhase.PREPARED:
                # It may have waited for long: the source is asked at the first look.
                incoming = Incoming(record, self._core.now_boot_s() - self._core.settings.migration_lease_s)
                incoming.sandbox = sandbox = self._core.registry.get(record.sandbox_id)
                if sandbox is not None and sandbox.generation is not None:
                    self._follow(sandbox)
                self._incoming[record.migration_id] = incoming

    async def run(self) -> None:
        """Look now and then at what waits, for ever."""
        while True:
            await self.look()
            await anyio.sleep(self._core.settings.migration_lease_s / _LOOKS_PER_LEASE)

    async def look(self) -> None:
        """Give up what was silent for longer than its lease, and ask the sources of what is prepared."""
        for incoming in tuple(self._incoming.values()):
            if not self._is_overdue(incoming):
                continue
            try:
                if incoming.record.target is TargetPhase.PREPARED:
                    await self._ask(incoming)
                else:
                    _log.warning("migration_lease_ended", migration_id=incoming.record.migration_id)
                    await self._break_off(incoming.record.migration_id, TargetEvent.LEASE_ENDED)
            except DsecError as error:
                _log.warning("migration_waits", migration_id=incoming.record.migration_id, error=str(error))

    def _is_overdue(self, incoming: Incoming) -> bool:
        """Whether the source was silent for too long, or has been sending for longer than any migration may take."""
        now_s, settings = self._core.now_boot_s(), self._core.settings
        silent = now_s - incoming.heard_boot_s >= settings.migration_lease_s
        is_open = incoming.record.target is TargetPhase.RECEIVING
        return silent or (is_open and now_s - incoming.began_boot_s >= settings.migration_timeout_s)

    async def _ask(self, incoming: Incoming) -> None:
        """Ask the source how it decided, and do so."""
        self._hear(incoming)
        record = incoming.record
        peer = await self._core.parts.peers.find(record.peer)
        status = None
        with anyio.move_on_after(self._core.settings.migration_lease_s):
            status = await peer.status(record.migration_id)
        event = None if status is None else event_of(status.verdict)
        if event is TargetEvent.RELEASE_HEARD:
            await self.release(record.migration_id)
        elif event is TargetEvent.ABORT_HEARD:
            await self._break_off(record.migration_id, event)

    def layer_paths(self) -> frozenset[str]:
        """Paths of read-only layers that copies in the making stand on."""
        copies = (incoming.copy for incoming in self._incoming.values())
        return frozenset(path for copy in copies if copy is not None for path in copy.record.layer_paths)
