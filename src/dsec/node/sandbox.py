"""A sandbox as the node holds it in memory: its record, the generation that runs, and who uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIGKILL
from typing import TYPE_CHECKING

import anyio

from dsec.base.errors import DsecError, InvalidStateError, NodeUnavailableError, error_from_code
from dsec.model.image import STANDARD_PATH
from dsec.model.sandbox import SandboxInfo, SandboxState
from dsec.node.running_time import RunningTime
from dsec.runtimes.port import Instance
from dsec.stores.port import CheckpointRecord, SandboxRecord

_NEWS_OF_DEATH_S = 0.05

if TYPE_CHECKING:
    from dsec.node.processes import BackgroundProcess
    from dsec.node.sessions import Session


def instance_name(sandbox_id: str, generation: int) -> str:
    """Name of an instance and of its writable layer."""
    return f"{sandbox_id}-g{generation}"


def instance_of(record: SandboxRecord) -> str:
    """Name of the instance that a record describes, and of the writable layer of its generation."""
    return instance_name(record.carrier or record.sandbox_id, record.generation)


class Operation:
    """A foreground operation that the end of its generation ends."""

    __slots__ = ("error", "scope")

    def __init__(self, scope: anyio.CancelScope) -> None:
        self.scope = scope
        self.error: DsecError | None = None

    def interrupt(self, error: DsecError) -> None:
        self.error = error
        self.scope.cancel()


class Generation:
    """One launched instance with the settings that its commands start from."""

    __slots__ = ("ended", "env", "error", "instance", "number", "operations", "reading", "time", "user", "workdir")

    def __init__(self, record: SandboxRecord, instance: Instance) -> None:
        self.number = record.generation
        self.instance = instance
        self.env = command_environment(record)
        self.user = record.spec.user if record.spec.user is not None else record.image_config.user
        self.workdir = record.spec.workdir if record.spec.workdir is not None else record.image_config.workdir
        self.operations: set[Operation] = set()
        self.time = RunningTime(stands=record.state is SandboxState.PAUSED)
        self.reading: anyio.CancelScope | None = None
        """Ends the reading ahead of its memory after a pause."""
        self.error: DsecError | None = None
        self.ended = anyio.Event()

    @contextmanager
    def operation(self, scope: anyio.CancelScope) -> Iterator[Operation]:
        """Register a foreground operation while it runs in `scope`."""
        operation = Operation(scope)
        if self.error is not None:
            raise self.error
        self.operations.add(operation)
        try:
            yield operation
        finally:
            self.operations.discard(operation)

    def interrupt(self, error: DsecError) -> None:
        """End every foreground operation with `error`; the generation lives on."""
        for operation in tuple(self.operations):
            operation.interrupt(error)

    def end(self, error: DsecError) -> None:
        """End every foreground operation, and refuse new ones, with `error`."""
        self.error = error
        self.ended.set()
        self.interrupt(error)

    async def check_killed(self, signal: int | None) -> None:
        """Tell a command that was killed from one that died with its sandbox.

        The kernel ends the commands before it lets anyone see that the init is gone, so that after a SIGKILL we wait a
        moment for that news.

        Raises:
            DsecError: what ended the generation.
        """
        if signal == SIGKILL and self.error is None:
            with anyio.move_on_after(_NEWS_OF_DEATH_S):
                await self.ended.wait()
        if self.error is not None:
            raise self.error


def command_environment(record: SandboxRecord) -> dict[str, str]:
    """Return the environment of every command of a sandbox."""
    env = {"PATH": STANDARD_PATH, **record.image_config.env, **record.spec.env}
    if record.spec.seed is not None:
        env["DSEC_SEED"] = str(record.spec.seed)
        env["PYTHONHASHSEED"] = str(record.spec.seed % 2**32)
    return env


class Sandbox:
    """One sandbox.

    Attributes:
        record: what the journal says of it, but for a pause under way.
        generation: the instance that runs; None while there is none.
        transition: held by whoever changes the state.
        transition_scope: cancelled by a stop, which waits for no other change of state.
        release_scope: cancelled by whoever needs the sandbox running while its memory is given back.
        awaited: how many wait for it to run again.
        settled: set once a creation ended, either way.
        arrival: set once it has come from another node, or is not to come; None: it is nobody's copy.
        processes, sessions: background processes and shell sessions of this generation, by id.
        checkpoints: those that are saved, by id, the oldest first.
        holds_origin: it has a claim on the frozen layer that is its clean state.
        instances, layers: names of what may exist of it on the host, the current generation's included.
        active: operations under way; while there is one the sandbox is not idle.
        idle_since_boot_s: when the last operation ended.
        next_check_boot_s: when the timer looks at it next.
        holds_slot: its range of host ids is its own; once freed it may be somebody else's.
        forgotten: it was removed, or its creation was undone.
        moved: what operations on it raise since it is another node's.
        writers: operations under way that write its files from outside; a move waits for them.
        watch_scope: ends the task that waits for the death of its init.
    """

    def __init__(self, record: SandboxRecord, now_boot_s: float) -> None:
        self.record = record
        self.generation: Generation | None = None
        self.transition = anyio.Lock(fast_acquire=True)
        self.transition_scope: anyio.CancelScope | None = None
        self.release_scope: anyio.CancelScope | None = None
        self.awaited = 0
        self.settled = anyio.Event()
        self.arrival: anyio.Event | None = None
        self.processes: dict[str, BackgroundProcess] = {}
        self.sessions: dict[str, Session] = {}
        self.checkpoints: dict[str, CheckpointRecord] = {}
        self.holds_origin = False
        self.instances = {instance_of(record)}
        self.layers = {record.layer}
        self.active = 0
        self.idle_since_boot_s = now_boot_s
        self.next_check_boot_s: float | None = None
        self.holds_slot = True
        self.forgotten = False
        self.moved: DsecError | None = None
        self.writers = 0
        self._no_writers = anyio.Event()
        self.watch_scope: anyio.CancelScope | None = None

    @property
    def sandbox_id(self) -> str:
        return self.record.sandbox_id

    @property
    def state(self) -> SandboxState:
        return self.record.state

    def running(self) -> Generation:
        """Return the generation that runs. Raises what an operation on a sandbox without one raises."""
        if self.generation is None:
            raise self.unusable()
        return self.generation

    def unusable(self) -> DsecError:
        """The error of an operation that needs the sandbox running."""
        if self.moved is not None:
            return self.moved
        record = self.record
        if record.state is SandboxState.MIGRATING:
            return NodeUnavailableError(
                f"{record.sandbox_id} is on its way to this node, which waits for the word of the one it was on",
                resolution="try again; while it lasts the other node still answers for it",
            )
        if record.state is SandboxState.FAILED:
            return error_from_code(
                record.cause_code,
                f"{record.sandbox_id} has failed: {record.cause}",
                resolution="stop it and create another",
            )
        return InvalidStateError(
            f"{record.sandbox_id} is {record.state.value}", detail=record.cause, resolution="create another sandbox"
        )

    @contextmanager
    def needed_running(self) -> Iterator[None]:
        """Ask, while the block runs, that the sandbox be left to the caller soon, with the memory that it has."""
        self.awaited += 1
        if self.release_scope is not None:
            self.release_scope.cancel()
        try:
            yield
        finally:
            self.awaited -= 1

    def running_s(self, now_boot_s: float) -> float:
        """Return boot time without the time in which it was paused: what deadlines of its processes are told in."""
        paused = self.state is SandboxState.PAUSED and self.record.paused_boot_s is not None
        return (self.record.paused_boot_s or 0.0 if paused else now_boot_s) - self.record.paused_s

    @contextmanager
    def written_from_outside(self) -> Iterator[None]:
        """Count an operation that writes files while it runs."""
        self.writers += 1
        try:
            yield
        finally:
            self.writers -= 1
            if not self.writers:
                self._no_writers.set()

    async def wait_unwritten(self) -> None:
        """Wait until no operation writes files from outside. New ones must be kept from beginning."""
        while self.writers:
            self._no_writers = anyio.Event()
            await self._no_writers.wait()

    def idle_due_boot_s(self) -> float | None:
        timeout_s = self.record.spec.lifetime.idle_timeout_s
        if timeout_s is None or self.state is SandboxState.PAUSED:
            return None
        return self.idle_since_boot_s + timeout_s

    def due_boot_s(self) -> float | None:
        """When its lifetime ends if nothing happens; None: never."""
        dues = [due for due in (self.idle_due_boot_s(), self.record.deadline_boot_s) if due is not None]
        return min(dues) if dues else None

    def info(self, *, node: str, runtime: str, now_boot_s: float) -> SandboxInfo:
        record = self.record
        due = self.due_boot_s() if self.generation is not None else None
        if due is not None and self.active and due != record.deadline_boot_s:
            due = now_boot_s + (record.spec.lifetime.idle_timeout_s or 0.0)
        return SandboxInfo(
            sandbox_id=record.sandbox_id,
            state=record.state,
            spec=record.spec,
            created_at_s=record.created_wall_s,
            expires_in_s=None if due is None else max(0.0, due - now_boot_s),
            generation=record.generation - record.first_generation,
            cause=record.cause,
            node=node,
            runtime=runtime,
            parent=record.parent,
            snapshot=record.snapshot,
            paused_s=now_boot_s - self.running_s(now_boot_s),
        )
