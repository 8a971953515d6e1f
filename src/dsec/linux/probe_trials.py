"""The process in which one trial runs: `python -m dsec.linux.probe_trials NAME SCRATCH` prints its finding as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dsec.linux import probe_cgroups, probe_kernel, probe_mounts
from dsec.linux.probe import Finding, missing, refused

Trial = Callable[[Path], Finding]
"""Tries one thing, given an empty scratch directory. An `OSError` means that the kernel refused."""


def _controller(name: str, _: Path) -> Finding:
    return probe_cgroups.try_controller(name)


TRIALS: dict[str, Trial] = {
    "cgroup_writable": probe_cgroups.try_writable,
    "cgroup_kill": probe_cgroups.try_kill,
    "cgroup_freeze": probe_cgroups.try_freeze,
    "controller_memory": partial(_controller, "memory"),
    "controller_pids": partial(_controller, "pids"),
    "controller_cpu": partial(_controller, "cpu"),
    "user_namespace": probe_kernel.try_user_namespace,
    "network_namespace": probe_kernel.try_network_namespace,
    "seccomp": probe_kernel.try_seccomp,
    "core_scheduling": probe_kernel.try_core_scheduling,
}
"""Trials that need no mounts."""

MOUNT_TRIALS: dict[str, Trial] = {
    "overlay": probe_mounts.try_overlay,
    "overlay_detached": probe_mounts.try_overlay_detached,
    "erofs": probe_mounts.try_erofs,
    "idmap_erofs": probe_mounts.try_idmap_erofs,
    "idmap_btrfs": probe_mounts.try_idmap_btrfs,
    "btrfs": probe_mounts.try_btrfs,
    "btrfs_quota": probe_mounts.try_btrfs_quota,
    "loop": probe_mounts.try_loop,
    "fuse": probe_mounts.try_fuse,
    "nftables": probe_kernel.try_nftables,
}
"""Trials that run in a mount namespace of their own, an ordinary user's also in a user namespace."""


def run(name: str, scratch: Path) -> Finding:
    """Run one trial and turn what the kernel or a tool said against it into a finding."""
    try:
        if name in MOUNT_TRIALS:
            probe_mounts.enter_private_mounts(os.geteuid(), os.getegid())
            return MOUNT_TRIALS[name](scratch)
        return TRIALS[name](scratch)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or b"").decode(errors="replace").strip().partition("\n")[0]
        return missing(f"{error.cmd[0]} ended with status {error.returncode}: {said}")
    except OSError as error:
        return refused(error, _place(error, scratch))


def _place(error: OSError, scratch: Path) -> str:
    """Name the file of an error, but not the scratch directory that nobody will find again."""
    name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
    return "" if name.startswith(str(scratch)) else name


def main(name: str, scratch: str) -> None:
    """Run a trial and print its finding."""
    json.dump(dataclasses.asdict(run(name, Path(scratch))), sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
