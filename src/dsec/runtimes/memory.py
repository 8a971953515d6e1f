"""A runtime without a kernel: instances are trees and tasks in this process.

The `MemoryRuntime` plays the host: its instances live on when one node lets go of them and are adopted by the next,
as real ones are. It stands in the node's tests and passes the conformance suite of the port.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from dsec.base.errors import (
    AlreadyExistsError,
    CapabilityMissingError,
    CommandNotFoundError,
    InvalidRequestError,
    InvalidStateError,
    NotADirectoryInSandboxError,
    SandboxExitedError,
    SandboxProcessLimitError,
)
from dsec.model.capability import Capability, CapabilityReport
from dsec.model.files import FileKind
from dsec.model.process import Stream
from dsec.model.sandbox import Resources, SandboxStats
from dsec.runtimes.memory_files import MemoryFiles
from dsec.runtimes.memory_process import MemoryProcess
from dsec.runtimes.memory_shell import find_program
from dsec.runtimes.memory_tree import Tree, resolve_user
from dsec.runtimes.port import Files, Fingerprint, Instance, LaunchRequest, Process, SpawnRequest

_ABSENT = frozenset(
    {
        Capability.NETWORK_ALLOW,
        Capability.DISK_QUOTA,
        Capability.CHECKPOINT,
        Capability.CORE_SCHEDULING,
        Capability.SWAP_FILE,
    }
)
_LIMITS = {
    "memory_bytes": Capability.MEMORY_LIMIT,
    "swap_bytes": Capability.SWAP_LIMIT,
    "cpu_millis": Capability.CPU_LIMIT,
    "pids": Capability.PIDS_LIMIT,
}


class MemoryInstance:
    """One launched generation of a sandbox.

    Attributes:
        memory_bytes, swap_bytes: what it holds in memory and in swap, for tests to set.
        prefetched: how often it was told to read its memory back.
    """

    def __init__(self, runtime: MemoryRuntime, request: LaunchRequest, entries: dict[str, Any]) -> None:
        self.instance_id = request.instance_id
        self.request = request
        self._runtime = runtime
        self.tree = Tree(entries, runtime.quotas.get(request.upper), self.check_alive)
        self._files = MemoryFiles(self.tree)
        self._processes: dict[str, MemoryProcess] = {}
        self._running = asyncio.Event()
        self._running.set()
        self._exited = asyncio.Event()
        self._cause = ""
        self._terminated = False
        self._tasks = 1
        self.host_name = request.hostname
        self.memory_bytes = 0
        self.swap_bytes = 0
        self.prefetched = 0
        self.mounts: tuple[str, ...] = ()

    @property
    def files(self) -> Files:
        return self._files

    @property
    def alive(self) -> bool:
        return not self._exited.is_set() and not self._terminated

    @property
    def paused(self) -> bool:
        return not self._running.is_set()

    def check_alive(self) -> None:
        if not self.alive:
            raise SandboxExitedError(f"{self.instance_id} has ended", detail=self._cause)

    def account(self, change: int) -> None:
        self._tasks += change

    async def gate(self) -> None:
        await self._running.wait()

    async def spawn(self, request: SpawnRequest) -> Process:
        self.check_alive()
        if request.process_id in self._processes:
            raise AlreadyExistsError(f"process {request.process_id} exists")
        pids = self.request.resources.pids
        if pids is not None and self._tasks >= pids:
            raise SandboxProcessLimitError(f"the sandbox holds {self._tasks} processes, as many as its limit allows")
        identity = resolve_user(request.user)
        cwd, entry = self.tree.get(request.cwd)
        if entry.kind is not FileKind.DIRECTORY:
            raise NotADirectoryInSandboxError(f"{request.cwd} is not a directory")
        program = find_program(self.tree, request.argv[0], cwd)
        if program is None:
            raise CommandNotFoundError(f"{request.argv[0]!r} is not a program of the sandbox")
        process = MemoryProcess(self, request, identity)
        self._forget_ended()
        self._processes[request.process_id] = process
        process.start(program)
        return process

    def _forget_ended(self) -> None:
        gone = [key for key, process in self._processes.items() if not process.running and not process.durable]
        for key in gone:
            del self._processes[key]

    async def reattach(self, process_id: str, *, kept: Mapping[Stream, int] | None = None) -> Process | None:
        self.check_alive()
        process = self._processes.get(process_id)
        return process if process is not None and process.durable else None

    async def end_orphans(self, keep: frozenset[str]) -> None:
        self.check_alive()
        for process_id, process in list(self._processes.items()):
            if process_id not in keep:
                await process.kill()
                self._processes.pop(process_id, None)

    async def pause(self) -> None:
        self.check_alive()
        self._running.clear()

    async def resume(self) -> None:
        """Thaw. The guest touches all it has at once."""
        self.check_alive()
        self._running.set()
        self.memory_bytes, self.swap_bytes = self.memory_bytes + self.swap_bytes, 0

    async def release_memory(self) -> int:
        self.check_alive()
        if not self.paused:
            raise InvalidStateError(f"{self.instance_id} is not paused")
        await asyncio.sleep(0)
        released, self.memory_bytes = self.memory_bytes, 0
        self.swap_bytes += released
        return released

    async def swappable_bytes(self) -> int | None:
        self.check_alive()
        return self.memory_bytes

    async def prefetch(self, timeout_s: float) -> None:
        self.check_alive()
        self.prefetched += 1

    async def statistics(self) -> SandboxStats:
        self.check_alive()
        return SandboxStats(
            cpu_s=0.0,
            memory_bytes=self.memory_bytes,
            memory_peak_bytes=self.memory_bytes,
            processes=self._tasks,
            oom_kills=0,
            swap_bytes=self.swap_bytes,
        )

    async def fingerprint(self) -> Fingerprint:
        self.check_alive()
        self._forget_ended()
        return Fingerprint(processes=self._tasks, command_groups=tuple(sorted(self._processes)), mounts=self.mounts)

    async def set_host_name(self, name: str) -> None:
        self.check_alive()
        self.host_name = name

    async def limit(self, resources: Resources) -> None:
        self.check_alive()
        given = {name: value for name in _LIMITS if (value := getattr(resources, name)) is not None}
        self.request = replace(self.request, resources=msgspec.structs.replace(self.request.resources, **given))

    async def wait_exited(self) -> str:
        await self._exited.wait()
        return self._cause

    async def kill_processes(self) -> None:
        self.check_alive()
        await self._kill_all()

    async def _kill_all(self) -> None:
        for process in list(self._processes.values()):
            await process.kill()

    async def end_init(self, cause: str) -> None:
        """Die as an init does that was killed from inside: every process with it."""
        self._cause = cause
        self._exited.set()
        await self._kill_all()

    async def terminate(self) -> None:
        self._terminated = True
        await self._kill_all()
        self._runtime.forget(self.instance_id)


class MemoryRuntime:
    """A `Runtime` in this process.

    Attributes:
        contents: file trees by upper directory, to be shared with `MemoryWritableLayers`, and by layer path where a
            layer has content, with `MemoryImages`. A new writable layer begins with what the layers below have.
        quotas: quotas by upper directory, likewise.
        used_host_ids: first host id by instance, so that tests can see that none is shared.
    """

    name = "memory"

    def __init__(self, *, absent: frozenset[Capability] = _ABSENT) -> None:
        self.contents: dict[Path, dict[str, Any]] = {}
        self.quotas: dict[Path, int] = {}
        self.used_host_ids: dict[str, int] = {}
        self._absent = absent
        self._instances: dict[str, MemoryInstance] = {}

    async def open(self) -> None:
        """Nothing needs to be prepared."""

    async def close(self) -> None:
        """Nothing is held."""

    def capabilities(self) -> tuple[CapabilityReport, ...]:
        return tuple(self._report(capability) for capability in Capability)

    def _report(self, capability: Capability) -> CapabilityReport:
        if capability in self._absent:
            return CapabilityReport(
                capability=capability,
                available=False,
                reason="the in-memory runtime has none",
                resolution="use a container runtime",
            )
        return CapabilityReport(capability=capability, available=True, reason="in memory")

    async def launch(self, request: LaunchRequest) -> Instance:
        if request.instance_id in self._instances:
            raise AlreadyExistsError(f"instance {request.instance_id} exists")
        if not request.layer_paths:
            raise InvalidRequestError("an instance needs at least one layer")
        for name, capability in _LIMITS.items():
            if getattr(request.resources, name) is not None and capability in self._absent:
                raise CapabilityMissingError(f"{name} cannot be enforced: {capability.value} is missing")
        # A real launch takes a while, and is undone when it is cancelled: here it has not begun then.
        await asyncio.sleep(0)
        entries = self.contents.setdefault(request.upper, {})
        if not entries:
            for path in request.layer_paths:
                entries.update(copy.deepcopy(self.contents.get(path, {})))
        instance = MemoryInstance(self, request, entries)
        self._instances[request.instance_id] = instance
        self.used_host_ids[request.instance_id] = request.first_host_id
        return instance

    async def instances(self) -> frozenset[str]:
        return frozenset(self._instances)

    async def adopt(self, instance_id: str) -> Instance | None:
        instance = self._instances.get(instance_id)
        return instance if instance is not None and instance.alive else None

    async def discard(self, instance_id: str) -> None:
        instance = self._instances.get(instance_id)
        if instance is not None:
            await instance.terminate()

    def instance(self, instance_id: str) -> MemoryInstance:
        """Return the fake itself, for tests that look inside."""
        return self._instances[instance_id]

    def swapped_bytes(self) -> int:
        """Return what all instances have in swap."""
        return sum(instance.swap_bytes for instance in self._instances.values())

    def forget(self, instance_id: str) -> None:
        self._instances.pop(instance_id, None)
        self.used_host_ids.pop(instance_id, None)
