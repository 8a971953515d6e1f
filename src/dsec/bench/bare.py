"""The OCI runtime alone as a reference: what the least wrapper around the same program takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dsec.base.errors import CapabilityMissingError
from dsec.linux import mounts
from dsec.linux.userns import UserNamespaces
from dsec.runtimes.container.bundle import (
    CAPABILITIES,
    BundleRequest,
    ProcessIdentity,
    process_document,
    runtime_config,
)
from dsec.runtimes.container.command import RuntimeProgram, find_program
from dsec.runtimes.container.flavour import flavour_of
from dsec.runtimes.container.overlay import OverlayMounter, OverlayRequest
from dsec.runtimes.container.paths import InstancePaths
from dsec.runtimes.container.runtime import INIT_PROGRAM, PROGRAM_DIRECTORIES
from dsec.runtimes.container.seccomp import load_profile, specialise

_FIRST_HOST_ID = 1 << 30
_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}


def _found(name: str) -> str:
    path = find_program(name, PROGRAM_DIRECTORIES)
    if path is None:
        raise CapabilityMissingError(f"{name} is not installed", resolution=f"apt-get install {name}")
    return path


class BareExec:
    """`crun exec` in a live instance of a node, started and awaited by `subprocess.run` with both outputs captured.

    The flags are those the node uses: no cgroup manager, a log of its own, and a process document from a file.

    Args:
        run_directory: the node's, with the bundles.
        instance_id: the instance.
        scratch: for the document and the log.
    """

    def __init__(self, run_directory: Path, instance_id: str, scratch: Path) -> None:
        program = RuntimeProgram(flavour=flavour_of("crun"), path=_found("crun"))
        document = scratch / "process.json"
        identity = ProcessIdentity(uid=0, gid=0)
        document.write_bytes(
            msgspec.json.encode(process_document(("true",), _ENV, "/home/user", identity, open_files=16_384))
        )
        arguments = program.exec_arguments(
            InstancePaths(run_directory / instance_id).runtime_state,
            instance_id,
            document=str(document),
            log=str(scratch / "log"),
        )
        self.argv = [program.path, *arguments]

    def run(self) -> None:
        """Run `true` once."""
        subprocess.run(self.argv, input=b"", capture_output=True, check=True)


class BareContainers:
    """`crun run --detach` with the same configuration on a root that is mounted beforehand; crun makes its own groups
    and compiles its own filter.

    Args:
        scratch: for bundles, writable layers and crun's state.
        layers: of the image, from the lowest up.
    """

    def __init__(self, scratch: Path, layers: Sequence[Path]) -> None:
        self._scratch = scratch
        self._layers = tuple(layers)
        self._crun = _found("crun")
        self._init = _found(INIT_PROGRAM)
        self._filter = specialise(load_profile(), os.uname().machine, CAPABILITIES)
        self._mounter = OverlayMounter()
        self._namespaces = UserNamespaces()
        self._number = 0
        scratch.mkdir(mode=0o711)

    def prepare(self) -> str:
        """Mount a root and write a bundle; return the name of the container to be."""
        self._number += 1
        name = f"{self._scratch.parent.name}-{self._number}"
        paths = InstancePaths(self._scratch / name)
        for directory in (paths.directory, paths.rootfs, paths.directory / "layer"):
            directory.mkdir(mode=0o755)
        for directory in (paths.directory / "layer" / "upper", paths.directory / "layer" / "work"):
            directory.mkdir(mode=0o755)
        self._mounter.mount(
            OverlayRequest(
                target=paths.rootfs,
                layer_paths=self._layers,
                upper=paths.directory / "layer" / "upper",
                work=paths.directory / "layer" / "work",
                user_namespace_fd=self._namespaces.get(_FIRST_HOST_ID),
                first_host_id=_FIRST_HOST_ID,
            )
        )
        request = BundleRequest(
            rootfs=str(paths.rootfs),
            hostname="bare",
            init=self._init,
            first_host_id=_FIRST_HOST_ID,
            open_files=16_384,
            seccomp=self._filter,
            cgroups_path=f"/dsec-bench/{name}",
        )
        paths.config.write_bytes(msgspec.json.encode(runtime_config(request)))
        return name

    def _argv(self, *arguments: str) -> list[str]:
        return [self._crun, "--cgroup-manager=cgroupfs", "--root", str(self._scratch / "state"), *arguments]

    def start(self, name: str) -> None:
        """Create and start a prepared container."""
        bundle = str(self._scratch / name)
        argv = self._argv("run", "--detach", "--bundle", bundle, name)
        # A detached init keeps the outputs it was given, so that a captured one would never end; and runtimes give
        # their standard streams to the guest's root, so that they may not be the host's /dev/null.
        with tempfile.TemporaryFile() as sink, tempfile.TemporaryFile() as empty:
            subprocess.run(argv, check=True, stdin=empty, stdout=sink, stderr=sink)

    def remove(self, name: str) -> None:
        """Kill a container and remove what was prepared for it."""
        subprocess.run(self._argv("delete", "--force", name), check=True, capture_output=True)
        mounts.unmount(self._scratch / name / "rootfs", detach=True)
        shutil.rmtree(self._scratch / name)

    def close(self) -> None:
        """Remove what an interrupted measurement left."""
        for bundle in self._scratch.glob("*/config.json"):
            subprocess.run(self._argv("delete", "--force", bundle.parent.name), check=False, capture_output=True)
            if (bundle.parent / "rootfs").is_mount():
                mounts.unmount(bundle.parent / "rootfs", detach=True)
        self._namespaces.close()
