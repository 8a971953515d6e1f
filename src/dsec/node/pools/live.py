"""One pool at work: every event goes to the pure `Pool`, every action it answers with is carried out here.

The machine is only ever told what has happened, and only from the event loop's thread, so that its decisions and
what is carried out never overlap: giving a berth to a waiting task is one step, without an await in between.
Creations, recycles and destructions are background tasks; each ends by telling the machine how it went, whatever
happened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import msgspec
import structlog

from dsec.base.errors import DsecError, NodeUnavailableError, RuntimeFailedError, error_from_code
from dsec.images.port import MountedImage
from dsec.model.event import EventKind
from dsec.model.image import ImageConfig
from dsec.model.pool import PoolInfo, PoolPolicy
from dsec.model.retry import RetryPolicy
from dsec.model.sandbox import SandboxState
from dsec.node.core import Core
from dsec.node.ending import take_apart
from dsec.node.pools.berth import make_berth
from dsec.node.pools.recorder import Recorder
from dsec.node.rollback import rollback
from dsec.node.sandbox import Sandbox
from dsec.node.state import fingerprints
from dsec.pools import actions, events
from dsec.pools.actions import PoolAction
from dsec.pools.pool import Pool
from dsec.stores.port import PoolRecord, SandboxRecord, Tenancy

_log = structlog.get_logger(__name__)
_RETRIES = RetryPolicy()


class _Waiter:
    """A task that waits for a berth."""

    __slots__ = ("berth", "error", "told")

    def __init__(self) -> None:
        self.told = anyio.Event()
        self.berth: Sandbox | None = None
        self.error: DsecError | None = None


class LivePool:
    """One pool of a node.

    Args:
        core: the node's state.
        record: the pool as the journal has it.
        recorder: keeps events.
        load_image: makes the image's layers readable, building it if need be.
    """

    def __init__(
        self,
        core: Core,
        record: PoolRecord,
        recorder: Recorder,
        load_image: Callable[[], Awaitable[MountedImage]],
    ) -> None:
        self.record = record
        self._core = core
        self.machine = Pool(self._policy(record), retries=_RETRIES)
        self.closed = False
        self._recorder = recorder
        self._load_image = load_image
        self._waiters: dict[str, _Waiter] = {}
        self._busy: set[str] = set()
        self._given_boot_s: dict[str, float] = {}
        self._running = 0
        self._finished = anyio.Event()
        self._image: tuple[tuple[str, ...], ImageConfig] | None = None

    @property
    def pool_id(self) -> str:
        return self.record.pool_id

    def info(self) -> PoolInfo:
        statistics = self.machine.statistics(self._core.now_boot_s())
        return PoolInfo(pool_id=self.pool_id, spec=self.record.spec, policy=self.record.policy, statistics=statistics)

    # -- what happens to it -----------------------------------------------------------------------------------------

    async def obtain(self, task: str, group: str) -> Sandbox | None:
        """Return a clean berth that is the caller's alone from now on; None when the pool was taken away meanwhile.

        Cancellation gives up the place in the queue, and a berth that was just given.

        Raises:
            DsecError: creations fail, or too many wait.
        """
        waiter = self._waiters[task] = _Waiter()
        try:
            self.tell(events.TaskArrived(task, group))
            await waiter.told.wait()
        except BaseException:
            self.tell(events.TaskLeft(task))
            if waiter.berth is not None:
                self.lose(waiter.berth)
            raise
        finally:
            self._waiters.pop(task, None)
        if waiter.error is not None:
            raise waiter.error
        return waiter.berth

    def lose(self, berth: Sandbox) -> None:
        """A berth was given to somebody who is gone: nothing ran in it, but whether its name was set nobody knows.

        One that died meanwhile was told as gone while it was nobody's: only what stands of it is left to end.
        """
        carrier = berth.sandbox_id
        self._core.vacant[carrier] = berth
        if self.closed or berth.generation is None:
            reason = "the pool was removed" if self.closed else "it died while it was given to a task"
            self._start(f"destroy {carrier}", partial(self.destroy, carrier, reason))
            return
        self.tell(events.Returned(carrier))

    def held_s(self, carrier: str) -> float | None:
        """Return how long a tenant has had a berth; None when an earlier node gave it. Forgets it."""
        given_s = self._given_boot_s.pop(carrier, None)
        return None if given_s is None else self._core.now_boot_s() - given_s

    def see_image(self, image: MountedImage) -> None:
        """Take note of what the image's name means now. Ready sandboxes of another image are given up."""
        meant = (tuple(map(str, image.layer_paths)), image.info.config)
        if meant == self._image:
            return
        self._image = meant
        old = tuple(
            carrier
            for carrier, berth in self._core.vacant.items()
            if berth.record.pool == self.pool_id and not self._is_of_the_image(berth.record)
        )
        if old:
            self.tell(events.Spoiled(old, f"{self.record.spec.image} names another image now"))

    def _is_of_the_image(self, record: SandboxRecord) -> bool:
        return self._image is None or (record.layer_paths, record.image_config) == self._image

    def can_recycle(self, record: SandboxRecord) -> bool:
        """Whether a sandbox that comes back could be given to somebody: its image is the present one, and it is known
        what a clean one looks like."""
        if self.closed or not self._is_of_the_image(record):
            return False
        return self._core.clean_states.find(msgspec.structs.replace(record, spec=self.record.spec)) is not None

    async def adopt(self, ready: tuple[str, ...], in_use: tuple[str, ...]) -> None:
        """Count what an earlier node left, and learn from what stands ready what a clean one looks like, unless that
        node wrote it down."""
        for carrier in ready:
            try:
                berth = self._core.vacant[carrier]
                await fingerprints.learn(self._core, berth.record, berth.running())
                break
            except DsecError as error:
                _log.warning("berth_not_seen", carrier=carrier, error=str(error))
        self.tell(events.Adopted(ready, in_use))

    def change(self, record: PoolRecord) -> None:
        """Go on with another policy, and other limits for sandboxes that nobody has yet."""
        self.record = record
        self.refresh()

    def refresh(self) -> None:
        """Go on with what is set about it, or with none ready while the node is drained."""
        self.tell(events.PolicyChanged(self._policy(self.record)))

    def _policy(self, record: PoolRecord) -> PoolPolicy:
        if not self._core.admission.draining:
            return record.policy
        return msgspec.structs.replace(record.policy, fixed_level=0, maximum_ready=0, shrink_after_s=0.0)

    async def close(self) -> None:
        """Give up everything that nobody has, and return when it is gone. Who waits is told that there is no pool."""
        self.give_up()
        while self._running:
            self._finished = anyio.Event()
            await self._finished.wait()

    def turn_away(self) -> None:
        """Serve nobody any more; who waits is told so."""
        self.closed = True
        for waiter in self._waiters.values():
            waiter.told.set()

    def give_up(self) -> None:
        """Begin to destroy what nobody has; what is in flight is destroyed when it ends."""
        self.turn_away()
        for carrier, berth in list(self._core.vacant.items()):
            if berth.record.pool == self.pool_id and carrier not in self._busy:
                self._start(f"destroy {carrier}", partial(self.destroy, carrier, "the pool was removed"))

    def tell(self, event: events.PoolEvent) -> None:
        """Let the machine know, and do what it says. Nothing once the pool or the node is closed."""
        if self.closed or self._core.closing:
            return
        for action in self.machine.handle(event, self._core.now_boot_s()):
            self._do(action)

    def gone(self, carrier: str) -> None:
        """A sandbox of this pool was taken apart, whoever had it, and not by the pool itself."""
        self._given_boot_s.pop(carrier, None)
        if carrier in self._busy:
            return
        self.tell(events.Gone(carrier))
        if carrier in self._core.vacant:
            self._start(f"forget {carrier}", partial(self._forget, carrier))

    # -- what it does -----------------------------------------------------------------------------------------------

    def _do(self, action: PoolAction) -> None:
        match action:
            case actions.HandOut(task=task, sandbox=carrier):
                # From here on nobody else can be given it.
                waiter = self._waiters[task]
                self._given_boot_s[carrier] = self._core.now_boot_s()
                waiter.berth = self._core.vacant.pop(carrier)
                waiter.told.set()
            case actions.Refuse():
                self._refuse(action)
            case actions.Create(count=count):
                for _ in range(count):
                    self._start("create for a pool", self._create)
            case actions.Recycle(sandbox=carrier):
                self._busy.add(carrier)
                self._start(f"recycle {carrier}", partial(self._recycle, carrier))
            case actions.Destroy(sandbox=carrier, reason=reason):
                self._start(f"destroy {carrier}", partial(self.destroy, carrier, reason))
            case actions.Warn():
                self._warn(action)

    def _start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        async def counted() -> None:
            try:
                await work()
            finally:
                self._running -= 1
                self._finished.set()

        self._running += 1
        self._core.supervisor.start(name, counted)

    def _refuse(self, action: actions.Refuse) -> None:
        waiter = self._waiters[action.task]
        again = "" if action.retry_after_s is None else f"ask again in {action.retry_after_s:.0f} s"
        resolution = action.resolution or again
        waiter.error = error_from_code(action.code, action.reason, detail=action.detail, resolution=resolution)
        waiter.error.retry_after_s = action.retry_after_s
        waiter.told.set()

    def _warn(self, action: actions.Warn) -> None:
        text = f"{action.kind.value}{' is over' if action.over else ''}: {action.reason}"
        self._recorder.add(EventKind.WARNED, pool=self.pool_id, text=text)
        (_log.info if action.over else _log.warning)("pool", pool=self.pool_id, what=text)

    async def _create(self) -> None:
        outcome: events.PoolEvent = events.CreationFailed("it was interrupted")
        try:
            outcome = events.Created(await self._fresh())
        except DsecError as error:
            self._recorder.add(EventKind.CREATION_FAILED, pool=self.pool_id, text=f"{error.code}: {error.brief}")
            outcome = events.CreationFailed(
                error.brief, error.code, error.detail, error.resolution, retry_after_s=error.retry_after_s
            )
        finally:
            self.tell(outcome)

    async def _fresh(self) -> str:
        """Make a berth, and see what a clean one looks like."""
        self._core.admit(for_pool=True)
        berth: Sandbox | None = None
        image = await self._load_image()
        self.see_image(image)
        began_s = self._core.now_boot_s()
        with anyio.move_on_after(_RETRIES.create_timeout_s):
            berth = await make_berth(self._core, self.record, image)
        if berth is None:
            raise NodeUnavailableError(f"a creation took longer than {_RETRIES.create_timeout_s:g} s")
        carrier, duration_s = berth.sandbox_id, self._core.now_boot_s() - began_s
        self._recorder.add(EventKind.CREATED, pool=self.pool_id, sandbox_id=carrier, duration_s=duration_s)
        try:
            if self.closed:
                raise NodeUnavailableError("the pool was removed")
            await fingerprints.learn(self._core, berth.record, berth.running())
        except DsecError as error:
            await self.destroy(carrier, error.brief)
            raise
        return carrier

    async def _recycle(self, carrier: str) -> None:
        began_s = self._core.now_boot_s()
        outcome = events.Recycled(carrier, clean=False, reason="it was interrupted")
        try:
            reason = await self._made_clean(self._core.vacant[carrier])
            outcome = events.Recycled(carrier, clean=not reason, reason=reason)
        except DsecError as error:
            exists = self._core.vacant[carrier].generation is not None
            outcome = events.Recycled(carrier, clean=False, reason=error.brief, exists=exists)
            if not exists:
                await self._forget(carrier)
        finally:
            self._busy.discard(carrier)
            duration_s = self._core.now_boot_s() - began_s
            kind = EventKind.RECYCLED if outcome.clean else EventKind.NOT_CLEAN
            self._recorder.add(kind, pool=self.pool_id, sandbox_id=carrier, duration_s=duration_s, text=outcome.reason)
            self.tell(outcome)
        if self.closed and carrier in self._core.vacant:
            await self.destroy(carrier, "the pool was removed")

    async def _made_clean(self, berth: Sandbox) -> str:
        """Roll a berth back, and say in which way it is not clean."""
        await rollback(self._core, berth, None)
        async with berth.transition:
            generation = berth.running()
            if not self._is_of_the_image(berth.record):
                return f"{self.record.spec.image} names another image since"
            reason = await fingerprints.describe(self._core, berth.record, generation)
            if reason:
                return reason
            record = berth.record
            if record.state is not SandboxState.READY:
                raise RuntimeFailedError(f"{berth.sandbox_id} is {record.state.value} after its rollback")
            await self._core.put(berth, tenancy=Tenancy.CLEAN)
            return ""

    async def destroy(self, carrier: str, reason: str) -> None:
        """Take a berth apart, however often that takes; until it is gone it counts against the cap."""
        berth = self._core.vacant.get(carrier)
        self._busy.add(carrier)
        failures = 0
        while berth is not None:
            try:
                async with berth.transition:
                    await take_apart(self._core, berth, RuntimeFailedError(reason))
                await self._forget(carrier)
                break
            except DsecError as error:
                failures += 1
                _log.error("berth_not_destroyed", carrier=carrier, failures=failures, error=str(error))
                await anyio.sleep(_RETRIES.steady_pause_s(failures))
        self._busy.discard(carrier)
        self._recorder.add(EventKind.DESTROYED, pool=self.pool_id, sandbox_id=carrier, text=reason)
        self.tell(events.Gone(carrier, reason))

    async def _forget(self, carrier: str) -> None:
        await self._core.parts.journal.exchange(erased=carrier)
        self._core.vacant.pop(carrier, None)
