"""The sending half of a migration: a running sandbox is copied, stands still for the last difference, and is let go.

Order (docs/formats/migration.md): the journal says `copying`; the target is asked; checkpoints and the clean state
travel, which never change; then the present state, round after round, each an increment on the one before, while the
sandbox runs. When another round would shorten the pause no more (`dsec.lifecycle.precopy`), the export hook runs,
requests are held, writers from outside are waited for, processes are frozen, the last difference travels, and the
target prepares. Then the journal says `released`, which decides. Whatever happens before is undone: processes are
thawed, requests go on, the rounds are discarded, the journal forgets the migration, and the target is told.

The sandbox's transition is held throughout: checkpoints, rollbacks, pauses and forks of the present wait. Commands and
files do not, but for the pause. A stop ends the migration and then the sandbox. A paused sandbox stays paused, on
either node; who needs it running ends the migration.
"""

from __future__ import annotations

import anyio
import anyio.to_thread
import msgspec
import structlog

from dsec.base.errors import (
    CapabilityMissingError,
    DsecError,
    InvalidRequestError,
    MigrationFailedError,
    PlatformError,
    SandboxExitedError,
    SandboxNotFoundError,
    UnknownOutcomeError,
)
from dsec.base.ids import new_id
from dsec.lifecycle.machine import Event, next_state
from dsec.lifecycle.migration import SourceEvent, SourcePhase, source_after
from dsec.lifecycle.precopy import Next, Round, decide
from dsec.model.capability import Capability
from dsec.model.event import EventKind
from dsec.model.sandbox import SandboxState
from dsec.model.state import MigrationReport, MigrationRequest
from dsec.node.core import Core, shielded
from dsec.node.sandbox import Sandbox
from dsec.node.state import checkpoints, hooks
from dsec.node.state import migration_records as records
from dsec.node.state import migration_release as release
from dsec.node.state.migration_offer import in_order, offer_of
from dsec.node.state.piping import Counted, CountedBytes, sending
from dsec.node.state.saved_layers import frozen_name
from dsec.node.together import together
from dsec.node.validation import require_capability
from dsec.service.migration import (
    ID_LENGTH,
    ORIGIN,
    PREFIX,
    PRESENT,
    MigrationCommit,
    MigrationOffer,
    MigrationRound,
    Part,
    ReleaseAnswer,
)
from dsec.service.peers import Peer
from dsec.stores.port import MigrationRecord

_log = structlog.get_logger(__name__)
WRITERS_S = 2.0
"""Requests that begin meanwhile wait: rather give up than hold them for as long as somebody uploads a gigabyte."""
LONGEST_PAUSE_S = 30.0
"""Rather give up than let a sandbox stand still for as long as a slow network or a guest's deep trees take."""
ACKNOWLEDGE_S = 15.0
"""How long a caller waits for the target's word after the decision; it is told until it has heard in any case."""
_MOST_ROUNDS = 100
_BEATS_PER_LEASE = 3
_SHORTEST_BEAT_S = 0.1


async def migrate(core: Core, sandbox: Sandbox, request: MigrationRequest) -> MigrationReport:
    """Move a sandbox. A stop ends it early; cancelling it, too, until the decision.

    Raises:
        MigrationFailedError: it went on here as before; the error says why it could not be moved.
        CapabilityMissingError, ImageNotFoundError, AlreadyExistsError, HostDiskFullError, ...: the target's refusal, in
            its own words. Nothing changed.
        HookFailedError: the export hook failed here, or the import hook there. It goes on here.
        UnknownOutcomeError: it was handed over, and the target has not acknowledged that yet.
    """
    _check(core, request)
    peer = await core.parts.peers.find(request.node)
    if peer.node == core.parts.node_id:
        raise InvalidRequestError(f"{sandbox.sandbox_id} is on {peer.node} already", resolution="name another node")
    async with sandbox.transition:
        sandbox.running()
        next_state(sandbox.state, Event.MIGRATION_BEGAN, sandbox_id=sandbox.sandbox_id)
        return await _Migration(core, sandbox, peer, request).run()


def _check(core: Core, request: MigrationRequest) -> None:
    if not 1 <= request.maximum_rounds <= _MOST_ROUNDS or not 0 <= request.downtime_s <= 3600:
        raise InvalidRequestError(
            f"maximum_rounds is {request.maximum_rounds} and downtime_s {request.downtime_s}",
            resolution=f"give 1 to {_MOST_ROUNDS} rounds and a downtime of 0 to 3600 s",
        )
    require_capability(Capability.CHECKPOINT, "a migration", core.reports)
    if not core.parts.layers.encoding:
        raise CapabilityMissingError(
            f"layers of the driver {core.parts.layers.driver} cannot be sent",
            resolution="run the node as root on a host with btrfs",
        )


class _Migration:
    """One attempt. Its caller holds the sandbox's transition."""

    def __init__(self, core: Core, sandbox: Sandbox, peer: Peer, request: MigrationRequest) -> None:
        self._core = core
        self._sandbox = sandbox
        self._peer = peer
        self._request = request
        self._record = MigrationRecord(
            migration_id=new_id(PREFIX, core.parts.random_bytes, length=ID_LENGTH),
            sandbox_id=sandbox.sandbox_id,
            source=source_after(None, SourceEvent.BEGUN),
            peer=peer.node,
            url=peer.url,
            paused=sandbox.state is SandboxState.PAUSED,
            began_wall_s=core.parts.clock.wall_s(),
        )
        self._rounds = 0
        self._copied: list[int] = []
        self._last = ""
        self._frozen = False
        self._stood_still_s = 0.0
        self._decided = False
        self._why = "it was cancelled"
        self._heartbeat: anyio.CancelScope | None = None

    async def run(self) -> MigrationReport:
        core, sandbox = self._core, self._sandbox
        began_s = anyio.current_time()
        try:
            with anyio.CancelScope(deadline=began_s + core.settings.migration_timeout_s) as scope:
                sandbox.transition_scope = scope
                if self._record.paused:
                    sandbox.release_scope = scope  # Who needs it running need not wait until it is elsewhere.
                await self._copy()
                await self._stand_still()
                with anyio.CancelScope(shield=True):
                    await self._decide()
            if not self._decided:
                raise self._interrupted(timed_out=anyio.current_time() >= scope.deadline)
        except DsecError as error:
            self._why = error.brief
            raise
        finally:
            sandbox.transition_scope = sandbox.release_scope = None
            if self._heartbeat is not None:
                self._heartbeat.cancel()
            if not self._decided:
                await self._give_up()
        answers: list[tuple[ReleaseAnswer, float]] = []
        with anyio.CancelScope(shield=True):
            await self._hand_over(answers)
        core.recorder.add(
            EventKind.MOVED_AWAY,
            sandbox_id=sandbox.sandbox_id,
            duration_s=anyio.current_time() - began_s,
            text=f"to {self._record.peer}, {self._request.reason}",
        )
        return self._report(answers, began_s)

    def _interrupted(self, *, timed_out: bool) -> DsecError:
        if timed_out:
            return MigrationFailedError(
                f"{self._sandbox.sandbox_id} could not be moved within {self._core.settings.migration_timeout_s:g} s",
                resolution="raise migration_timeout_s, or move it when it writes less",
            )
        if self._record.paused and self._sandbox.awaited:
            return MigrationFailedError(
                f"{self._sandbox.sandbox_id} was paused, and is needed now", resolution="try again later"
            )
        return SandboxExitedError(f"{self._sandbox.sandbox_id} was stopped while it was moved")

    # -- copying ----------------------------------------------------------------------------------------------------

    async def _copy(self) -> None:
        """Announce, ask, and copy while the sandbox runs."""
        core, sandbox = self._core, self._sandbox
        with shielded(core.settings.end_timeout_s, "recording a migration"):
            await records.write(core, self._record)
        offer = offer_of(core, sandbox, self._record.migration_id)
        accepted = await self._peer.offer(offer)
        if self._peer.node and accepted.node != self._peer.node:
            raise MigrationFailedError(f"the node that answers as {self._peer.node} is {accepted.node}")
        self._record = msgspec.structs.replace(self._record, peer=accepted.node)
        self._heartbeat = core.supervisor.start(
            f"heartbeat of {self._record.migration_id}", lambda: self._beat(accepted.lease_s / _BEATS_PER_LEASE)
        )
        await self._send_saved(offer)
        await self._send_rounds()
        if hooks.has_export(sandbox):
            await self._send_export(offer)

    async def _beat(self, interval_s: float) -> None:
        """Let the target hear of us also while a disk or a hook takes its time. What fails here is not missed: the
        next round fails, too."""
        while True:
            await anyio.sleep(max(interval_s, _SHORTEST_BEAT_S))
            try:
                await self._peer.status(self._record.migration_id)
            except DsecError as error:
                _log.info("heartbeat_not_heard", migration_id=self._record.migration_id, error=str(error))

    async def _send_saved(self, offer: MigrationOffer) -> None:
        """Send what does not change: the clean state, and checkpoints, each as an increment on what it began from."""
        origin = self._sandbox.record.origin
        layers: dict[str | None, str | None] = {None: None}
        if offer.has_origin:
            await self._send_frozen(ORIGIN, origin, None, None)
            layers[None] = origin
        root = ORIGIN if offer.has_origin else None
        for each in in_order(self._sandbox):
            base = root if each.parent is None else each.parent
            await self._send_frozen(each.checkpoint_id, each.layer, base, layers[each.parent])
            layers[each.checkpoint_id] = each.layer

    async def _send_frozen(self, of: str, layer: str, base: str | None, base_layer: str | None) -> None:
        await self._send_layer(of, layer, base, base_layer)
        exported = await anyio.to_thread.run_sync(self._core.parts.exports.get, layer)
        if exported is not None:
            await self._send(MigrationRound(number=self._rounds, part=Part.EXPORT, of=of), CountedBytes(exported))

    async def _send_rounds(self) -> None:
        """Send the present state until what changes meanwhile takes no longer than the pause may."""
        rounds: list[Round] = []
        while True:
            began_s = anyio.current_time()
            copied = await self._send_present()
            rounds.append(Round(copied_bytes=copied, duration_s=anyio.current_time() - began_s))
            decision = decide(rounds, maximum_rounds=self._request.maximum_rounds, downtime_s=self._request.downtime_s)
            if decision.next is Next.PAUSE:
                return

    async def _send_present(self) -> int:
        """Freeze a copy of the layer as it is, and send what it changes on the one before. A copy of one instant is
        enough: nobody begins from it until the last, for which the processes stand still."""
        core, sandbox = self._core, self._sandbox
        layer = frozen_name(sandbox.sandbox_id, core.parts.random_bytes)
        before, (base, base_layer) = self._last, self._base()
        core.saved.claim(layer)
        self._last = layer
        try:
            await anyio.to_thread.run_sync(core.parts.layers.settle, sandbox.record.layer)
            await anyio.to_thread.run_sync(core.parts.layers.checkpoint, sandbox.record.layer, layer)
            return await self._send_layer(PRESENT, layer, base, before or base_layer)
        finally:
            if before:
                core.saved.release(before)

    def _base(self) -> tuple[str | None, str | None]:
        """What the present state began from: for the target, and as a layer here."""
        record = self._sandbox.record
        if record.current is not None:
            return record.current, self._sandbox.checkpoints[record.current].layer
        return (ORIGIN, record.origin) if record.origin else (None, None)

    async def _send_export(self, offer: MigrationOffer) -> None:
        """Run the export hook while the processes it speaks for still run, and send what it gives."""
        core, sandbox = self._core, self._sandbox
        await hooks.export_state(core, sandbox, self._last)
        exported = await anyio.to_thread.run_sync(core.parts.exports.get, self._last)
        await self._send(
            MigrationRound(number=self._rounds, part=Part.EXPORT, of=PRESENT), CountedBytes(exported or b"")
        )

    async def _send_layer(self, of: str, layer: str, base: str | None, base_layer: str | None) -> int:
        async with sending(self._core, layer, base_layer) as stream:
            size_bytes = await self._send(
                MigrationRound(number=self._rounds, part=Part.LAYER, of=of, base=base), stream
            )
        self._copied.append(size_bytes)
        return size_bytes

    async def _send(self, head: MigrationRound, content: Counted) -> int:
        """Send a round; what arrived must be what was sent."""
        receipt = await self._peer.round(self._record.migration_id, head, content)
        passed = content.passed()
        if (receipt.number, receipt.size_bytes, receipt.digest) != (head.number, passed.size_bytes, passed.digest):
            raise MigrationFailedError(
                f"round {head.number} of {self._record.migration_id} arrived as something else",
                detail=f"{passed.size_bytes} bytes were sent, {receipt.size_bytes} arrived",
                resolution="look at the network between the nodes",
            )
        self._rounds += 1
        return passed.size_bytes

    # -- the pause, and the decision --------------------------------------------------------------------------------

    async def _stand_still(self) -> None:
        """Hold everything that could still write, send the last difference, and have the target prepare."""
        core, sandbox = self._core, self._sandbox
        await anyio.to_thread.run_sync(core.parts.layers.settle, sandbox.record.layer)
        with shielded(core.settings.end_timeout_s, f"holding the requests of {sandbox.sandbox_id}"):
            await core.move(sandbox, Event.MIGRATION_BEGAN)
        self._stood_still_s = anyio.current_time()
        with anyio.move_on_after(WRITERS_S) as scope:
            await sandbox.wait_unwritten()
        if scope.cancelled_caught:
            raise MigrationFailedError(
                f"files of {sandbox.sandbox_id} are being written from outside, for longer than {WRITERS_S:g} s",
                resolution="try again when the upload is over",
            )
        if not self._record.paused:
            self._frozen = True
            await checkpoints.freeze(sandbox)
        with anyio.move_on_after(LONGEST_PAUSE_S) as scope:
            await self._send_present()
            await self._peer.commit(self._record.migration_id, MigrationCommit(rounds=self._rounds))
        if scope.cancelled_caught:
            raise MigrationFailedError(
                f"{sandbox.sandbox_id} would have stood still for longer than {LONGEST_PAUSE_S:g} s",
                resolution="try again when it writes less, or over a faster network",
            )

    async def _decide(self) -> None:
        """Write that the sandbox is the target's: the one instruction before which it is ours and after which not."""
        released = msgspec.structs.replace(
            self._record, source=source_after(self._record.source, SourceEvent.TARGET_PREPARED)
        )
        await records.write(self._core, released)
        self._record = released
        self._decided = True

    # -- the two ends -----------------------------------------------------------------------------------------------

    async def _give_up(self) -> None:
        """Let the sandbox go on as before, and leave nothing of the attempt."""
        core, sandbox = self._core, self._sandbox
        await self._thaw()
        failure: DsecError | None = None
        try:
            with shielded(core.settings.end_timeout_s, f"giving up the migration of {sandbox.sandbox_id}"):
                try:
                    await self._go_on()
                finally:
                    self._drop_last()
                    await records.forget(core, self._record)
        except DsecError as error:
            failure = error
        core.supervisor.start(f"abort {self._record.migration_id}", self._abort)
        core.recorder.add(
            EventKind.NOT_MOVED,
            sandbox_id=sandbox.sandbox_id,
            text=f"to {self._record.peer}, {self._request.reason}: {self._why}",
        )
        if failure is not None:
            raise failure

    async def _thaw(self) -> None:
        """Let processes go on. Where there are none any more, whoever watches them fails the sandbox."""
        if not self._frozen:
            return
        try:
            with shielded(self._core.settings.end_timeout_s, f"thawing {self._sandbox.sandbox_id}"):
                await checkpoints.thaw(self._sandbox.running().instance)
        except DsecError as error:
            _log.error("not_thawed", sandbox_id=self._sandbox.sandbox_id, error=str(error))

    async def _go_on(self) -> None:
        """Let requests through again, also when the journal cannot be written: it says `copying` still, so that a
        restart comes to the same."""
        sandbox = self._sandbox
        if sandbox.state is not SandboxState.MIGRATING:
            return
        event = Event.PAUSED if self._record.paused else Event.MIGRATED
        try:
            await self._core.move(sandbox, event)
        except PlatformError as error:
            _log.error("going_on_not_journalled", sandbox_id=sandbox.sandbox_id, error=str(error))
            state = next_state(sandbox.state, event, sandbox_id=sandbox.sandbox_id)
            sandbox.record = msgspec.structs.replace(sandbox.record, state=state)

    def _drop_last(self) -> None:
        if self._last:
            self._core.saved.release(self._last)
            self._last = ""

    async def _abort(self) -> None:
        """Best effort: a target that does not hear it asks, or lets its lease end."""
        try:
            with anyio.move_on_after(self._core.settings.migration_lease_s):
                await self._peer.abort(self._record.migration_id)
        except DsecError as error:
            _log.info("abort_not_heard", migration_id=self._record.migration_id, error=str(error))

    async def _hand_over(self, answers: list[tuple[ReleaseAnswer, float]]) -> None:
        """Tell the target, and take apart what is left here meanwhile; what cannot be done now is done later."""
        core, sandbox, record = self._core, self._sandbox, self._record
        assert record.source is SourcePhase.RELEASED
        release.send_away(core, sandbox, record)

        async def tell() -> None:
            with anyio.move_on_after(ACKNOWLEDGE_S):
                answers.append((await release.tell(core, self._peer, record), anyio.current_time()))

        async def leave() -> None:
            self._drop_last()
            await release.leave_behind(core, sandbox, record)

        try:
            await together(tell, leave)
            if answers:
                await release.acknowledge(core, record)
                return
        except DsecError as error:
            _log.error("not_left_behind", sandbox_id=sandbox.sandbox_id, error=str(error))
        release.start(core, record, sandbox)

    def _report(self, answers: list[tuple[ReleaseAnswer, float]], began_s: float) -> MigrationReport:
        sandbox_id, node = self._sandbox.sandbox_id, self._record.peer
        if not answers:
            raise UnknownOutcomeError(
                f"{sandbox_id} was handed over to {node}, which has not acknowledged it yet",
                resolution=f"ask for it at {self._record.url or node}; this node keeps telling that one",
            )
        answer, ready_s = answers[0]
        if answer.sandbox is None:
            raise SandboxNotFoundError(f"{sandbox_id} was handed over to {node} and removed there at once")
        return MigrationReport(
            sandbox=answer.sandbox,
            source=self._core.parts.node_id,
            target=node,
            rounds=len(self._copied),
            copied_bytes=tuple(self._copied),
            downtime_s=ready_s - self._stood_still_s,
            duration_s=anyio.current_time() - began_s,
        )
