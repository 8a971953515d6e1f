"""The container runtime: launches instances through an OCI runtime. docs/container-backend.md tells how and why."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread
import msgspec

from dsec.base.errors import (
    AlreadyExistsError,
    CapabilityMissingError,
    InvalidStateError,
    RuntimeFailedError,
    SandboxExitedError,
)
from dsec.linux import mounts
from dsec.linux.cgroups import CgroupLimits, CgroupMounts, Cgroups
from dsec.linux.sealed import sealed_program
from dsec.linux.userns import UserNamespaces
from dsec.model.capability import Capability, CapabilityReport
from dsec.model.sandbox import QosClass
from dsec.runtimes.container.bundle import CAPABILITIES, BundleRequest, runtime_config
from dsec.runtimes.container.capabilities import report_capabilities, require
from dsec.runtimes.container.command import USER_NAMESPACE_DESCRIPTOR, RuntimeProgram, find_program
from dsec.runtimes.container.failures import host_error
from dsec.runtimes.container.flavour import flavour_of
from dsec.runtimes.container.groups import Groups
from dsec.runtimes.container.hierarchies import own_hierarchies, remove_everywhere
from dsec.runtimes.container.instance import ContainerInstance
from dsec.runtimes.container.launch import Configuration, Launch, compiled_filter, read_pid, was_launched
from dsec.runtimes.container.masks import EMPTY_DIRECTORY, masked_directories, open_empty_directory
from dsec.runtimes.container.ordinary import SHARED_ID_MAP, OrdinaryUser, open_groups
from dsec.runtimes.container.overlay import OverlayMounter, OverlayRequest
from dsec.runtimes.container.paths import InstancePaths
from dsec.runtimes.container.record import InstanceRecord
from dsec.runtimes.container.run_directory import open_run_directory
from dsec.runtimes.container.seccomp import load_profile, specialise
from dsec.runtimes.container.waiting import wait_empty
from dsec.runtimes.port import Instance, LaunchRequest

PROGRAM_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")
INIT_PROGRAM = "catatonit"
RUN_DIRECTORY = Path("/run/dsec")
"""Holds a run directory for each node."""
_LIMITS = {
    "memory_bytes": Capability.MEMORY_LIMIT,
    "swap_bytes": Capability.SWAP_LIMIT,
    "cpu_millis": Capability.CPU_LIMIT,
    "pids": Capability.PIDS_LIMIT,
}
OPEN_FILES = 1 << 20
"""Linux's own ceiling (fs.nr_open) on an ordinary host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRuntimeSettings:
    """Where and how instances run.

    Attributes:
        node_id: names the node's control groups, ``dsec/<node id>``, and its run directory.
        run_directory: for bundles and runtime state. Everybody must be able to pass through it and its parents, because
            the OCI runtime sets the root up with the sandbox's host ids; None is ``/run/dsec/<node id>``.
        owner: by which the host's table of mounts names the run directory's file system: where the node's state is.
        runtime: name or path of the OCI runtime.
        launches_at_once: OCI runtimes that start instances side by side; more only queue for the processor.
        file_threads: threads that read and write files of sandboxes from outside.
        ordinary_user: how to run as root of a user namespace only; None: as root of the host.
    """

    node_id: str
    run_directory: Path | None = None
    owner: str = ""
    runtime: str = "crun"
    launches_at_once: int = 2 * (os.cpu_count() or 1)
    file_threads: int = 16
    ordinary_user: OrdinaryUser | None = None


class ContainerRuntime:
    """See `dsec.runtimes.port.Runtime`."""

    def __init__(self, settings: ContainerRuntimeSettings) -> None:
        self.name = flavour_of(settings.runtime).name
        self._settings = settings
        self._run_directory = settings.run_directory or RUN_DIRECTORY / settings.node_id
        self._flavour = flavour_of(settings.runtime)
        self._mounter = OverlayMounter()
        self._namespaces = UserNamespaces()
        self._launching = anyio.CapacityLimiter(settings.launches_at_once)
        self._file_limiter = anyio.CapacityLimiter(settings.file_threads)
        self._kernel_limiter = anyio.CapacityLimiter(settings.launches_at_once)
        self._instances: dict[str, ContainerInstance] = {}
        self._filter: dict[str, Any] | None = None
        self._compiled_filter: str | None = None
        self._open: _OpenHost | None = None
        self._open_files = 0

    async def open(self) -> None:
        if self._open is not None:
            return
        program = require(_find(self._settings.runtime), self._settings.runtime, f"apt-get install {self.name}")
        init = require(_find(INIT_PROGRAM), INIT_PROGRAM, f"apt-get install {INIT_PROGRAM}")
        self._open_files = _allow_open_files(OPEN_FILES)
        cgroups = self._groups()
        cgroups.open()
        in_memory = self._settings.ordinary_user is None
        open_run_directory(self._run_directory, in_memory=in_memory, owner=self._settings.owner)
        self._filter = specialise(load_profile(), platform.machine(), CAPABILITIES)
        ordinary = self._settings.ordinary_user is not None
        self._open = _OpenHost(
            cgroups=cgroups,
            program=RuntimeProgram(
                flavour=self._flavour,
                path=program,
                sealed=sealed_program(program) if self._flavour.takes_sealed_program else None,
            ),
            init=init,
            has_empty_directory=self._flavour.masks_by_mounts and not ordinary and open_empty_directory(),
            reports=report_capabilities(cgroups, self._flavour, ordinary_user=ordinary),
        )

    def _groups(self) -> Groups:
        user = self._settings.ordinary_user
        if user is not None:
            if self.name != "crun":
                raise CapabilityMissingError(
                    f"{self.name} is not run for ordinary users",
                    resolution="use crun, or run the node as root",
                )
            return open_groups(user, self._settings.node_id, self._run_directory)
        found = require(CgroupMounts.find(), "cgroup v2", "mount -t cgroup2 none /sys/fs/cgroup (or .../unified)")
        own_hierarchies(found)
        return Cgroups(found, f"dsec/{self._settings.node_id}")

    async def close(self) -> None:
        for instance in list(self._instances.values()):
            instance.close()
        self._instances.clear()
        self._namespaces.close()
        if self._open is not None and self._open.program.sealed is not None:
            os.close(self._open.program.sealed)
        self._open = None

    @property
    def _host(self) -> _OpenHost:
        if self._open is None:
            raise InvalidStateError("the runtime is not open")
        return self._open

    def capabilities(self) -> tuple[CapabilityReport, ...]:
        return self._host.reports

    def _paths(self, instance_id: str) -> InstancePaths:
        return InstancePaths(self._run_directory / instance_id)

    # -- launching ------------------------------------------------------------------------------------------------

    async def launch(self, request: LaunchRequest) -> Instance:
        if self._settings.ordinary_user is not None:
            request = replace(request, first_host_id=0)
        self._refuse_unenforceable(request)
        async with self._launching:
            self._claim(request.instance_id)
            try:
                return await self._launch(request)
            except OSError as error:
                await self._undo(request.instance_id)
                raise host_error(error, f"cannot launch {request.instance_id}") from error
            except BaseException:
                await self._undo(request.instance_id)
                raise

    def _refuse_unenforceable(self, request: LaunchRequest) -> None:
        reports = {report.capability: report for report in self.capabilities()}
        for name, capability in _LIMITS.items():
            report = reports[capability]
            if getattr(request.resources, name) is not None and not report.available:
                raise CapabilityMissingError(
                    f"{name} cannot be enforced: {capability.value} is missing",
                    detail=report.reason,
                    resolution=report.resolution or f"leave {name} open",
                )
        cpu = reports[Capability.CPU_LIMIT]
        if request.qos is QosClass.BEST_EFFORT and not cpu.available:
            raise CapabilityMissingError(
                f"best effort needs {cpu.capability.value}, which is missing",
                detail=cpu.reason,
                resolution=cpu.resolution,
            )
        if (request.resources.open_files or 0) > self._open_files:
            raise CapabilityMissingError(
                f"open_files: this host lets a process open at most {self._open_files} files",
                resolution="ask for fewer, or raise the hard limit (ulimit -Hn) of whoever starts the node",
            )

    def _claim(self, instance_id: str) -> None:
        """Take the id; what exists under it is not touched."""
        try:
            self._paths(instance_id).directory.mkdir(mode=0o711)
        except FileExistsError as error:
            raise AlreadyExistsError(f"instance {instance_id} exists", resolution="discard it first") from error
        except OSError as error:
            raise host_error(error, f"cannot launch {instance_id}") from error

    async def _undo(self, instance_id: str) -> None:
        with anyio.CancelScope(shield=True):
            await self.discard(instance_id)

    async def _launch(self, request: LaunchRequest) -> ContainerInstance:
        paths = self._paths(request.instance_id)
        record, configuration = await self._in_thread(self._prepare, request, paths)
        await Launch(
            instance_id=request.instance_id,
            paths=paths,
            program=self._host.program,
            cgroups=self._host.cgroups,
            configuration=configuration,
            user_namespace=self._namespaces.get(request.first_host_id) if self._joins_user_namespace else None,
        ).run()
        if not self._flavour.own_kernel:
            await self._in_thread(_detach, paths.rootfs)
        if self._flavour.takes_compiled_filter and self._compiled_filter is None:
            self._compiled_filter = compiled_filter(paths)
        return self._take(request.instance_id, paths, record)

    async def _in_thread(self, function: Callable[[*_Arguments], _Result], *arguments: *_Arguments) -> _Result:
        """Call what waits for the kernel (mounts and control groups: RCU grace periods) beside the event loop.

        Cancellation waits for its end: what it makes has to be undone after it.
        """
        return await anyio.to_thread.run_sync(function, *arguments, limiter=self._kernel_limiter)

    @property
    def _joins_user_namespace(self) -> bool:
        return self._flavour.joins_user_namespace and self._settings.ordinary_user is None

    def _prepare(self, request: LaunchRequest, paths: InstancePaths) -> tuple[InstanceRecord, Configuration]:
        """Make everything that the OCI runtime needs; return what to remember, and its configuration."""
        record = InstanceRecord(
            runtime=self._settings.runtime,
            first_host_id=request.first_host_id,
            open_files=request.resources.open_files,
        )
        paths.rootfs.mkdir()
        paths.record.write_bytes(msgspec.json.encode(record))
        self._host.cgroups.create(request.instance_id, _limits(request))
        self._mount_root(request, paths)
        configuration = self._configuration(self._bundle(request, paths))
        if not self._flavour.config_pipe:
            paths.config.write_bytes(configuration.run)
        return record, configuration

    def _mount_root(self, request: LaunchRequest, paths: InstancePaths) -> None:
        ordinary = self._settings.ordinary_user is not None
        self._mounter.mount(
            OverlayRequest(
                target=paths.rootfs,
                layer_paths=request.layer_paths,
                upper=request.upper,
                work=request.work,
                user_namespace_fd=None if ordinary else self._namespaces.get(request.first_host_id),
                first_host_id=request.first_host_id,
            )
        )

    def _configuration(self, bundle: BundleRequest) -> Configuration:
        kept = msgspec.json.encode(runtime_config(bundle))
        if not self._joins_user_namespace:
            return Configuration(run=kept, kept=kept)
        joining = replace(bundle, user_namespace=f"/proc/self/fd/{USER_NAMESPACE_DESCRIPTOR}")
        return Configuration(run=msgspec.json.encode(runtime_config(joining)), kept=kept)

    def _bundle(self, request: LaunchRequest, paths: InstancePaths) -> BundleRequest:
        compiled = self._compiled_filter
        group = f"/dsec/{self._settings.node_id}/{request.instance_id}"
        masked = masked_directories() if self._host.has_empty_directory else ()
        return BundleRequest(
            rootfs=str(paths.rootfs),
            hostname=request.hostname,
            init=self._host.init,
            first_host_id=request.first_host_id,
            open_files=request.resources.open_files,
            seccomp=self._filter if compiled is None else None,
            seccomp_program=compiled,
            cgroups_path=group if self._flavour.manages_cgroups else None,
            id_map=None if self._settings.ordinary_user is None else SHARED_ID_MAP,
            masks=dict.fromkeys(masked, str(EMPTY_DIRECTORY)),
        )

    def _take(self, instance_id: str, paths: InstancePaths, record: InstanceRecord) -> ContainerInstance:
        host = self._host
        instance = ContainerInstance(
            instance_id,
            read_pid(paths),
            paths,
            record,
            host.program,
            host.cgroups,
            self.discard,
            self._file_limiter,
        )
        self._instances[instance_id] = instance
        return instance

    # -- finding, adopting, discarding ----------------------------------------------------------------------------

    async def instances(self) -> frozenset[str]:
        directories = (entry.name for entry in os.scandir(self._run_directory) if entry.is_dir())
        return frozenset(directories) | self._host.cgroups.names()

    async def adopt(self, instance_id: str) -> Instance | None:
        if instance_id in self._instances:
            return self._instances[instance_id]
        paths = self._paths(instance_id)
        try:
            record = msgspec.json.decode(paths.record.read_bytes(), type=InstanceRecord)
            pid = read_pid(paths)
        except (FileNotFoundError, msgspec.DecodeError, RuntimeFailedError):
            return None
        # A pid says little after a restart; standing in the instance's own group says that it is ours.
        if record.runtime != self._settings.runtime or not self._host.cgroups.contains(pid, instance_id):
            return None
        if not was_launched(paths, self._host.program):
            return None
        try:
            instance = self._take(instance_id, paths, record)
        except (ProcessLookupError, SandboxExitedError):
            return None
        if paths.rootfs.is_mount() and not self._flavour.own_kernel:
            mounts.unmount(paths.rootfs, detach=True)
        return instance

    async def discard(self, instance_id: str) -> None:
        """Remove an instance in the order that leaves it findable until nothing is left: processes, mounts, files,
        groups."""
        cgroups, paths = self._host.cgroups, self._paths(instance_id)
        instance = self._instances.pop(instance_id, None)
        if instance is not None:
            instance.close()
        cgroups.kill(instance_id)
        await wait_empty(cgroups, instance_id)
        await self._in_thread(self._remove, instance_id, paths)

    def _remove(self, instance_id: str, paths: InstancePaths) -> None:
        """Remove what an instance without processes has left on the host."""
        for entry in mounts.mounts_under(paths.directory) if _may_hold_mounts(paths) else ():
            mounts.unmount(entry.target, detach=True)
        shutil.rmtree(paths.directory, ignore_errors=True)
        if self._flavour.manages_cgroups:
            # Before our own groups, by which the instance is found.
            remove_everywhere(f"dsec/{self._settings.node_id}/{instance_id}")
        if not self._host.cgroups.remove(instance_id):
            raise RuntimeFailedError(f"{instance_id}: its control group cannot be removed")


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenHost:
    """What `open` found on the host."""

    cgroups: Groups
    program: RuntimeProgram
    init: str
    has_empty_directory: bool
    reports: tuple[CapabilityReport, ...]


def _detach(target: Path) -> None:
    mounts.unmount(target, detach=True)


def _allow_open_files(count: int) -> int:
    """Raise this process's own limit as far as the host lets it, and return it: sandboxes inherit it as their ceiling,
    and each live one holds descriptors here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), max(hard, count)))
    except (ValueError, PermissionError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def _find(program: str) -> str | None:
    return find_program(program, PROGRAM_DIRECTORIES)


def _limits(request: LaunchRequest) -> CgroupLimits:
    resources = request.resources
    return CgroupLimits(
        memory_bytes=resources.memory_bytes,
        swap_bytes=resources.swap_bytes,
        pids=resources.pids,
        cpu_millis=resources.cpu_millis,
        idle=request.qos is QosClass.BEST_EFFORT,
    )


def _may_hold_mounts(paths: InstancePaths) -> bool:
    """Whether it is worth reading the mount table: an instance holds mounts only when its launch, or a runtime that
    entered it, was killed on the way."""
    if paths.rootfs.is_mount() or (paths.directory / "layers").exists():
        return True
    try:
        return any(name.startswith("crun.") for name in os.listdir(paths.directory))
    except FileNotFoundError:
        return False
