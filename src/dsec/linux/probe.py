"""Probes: try a kernel interface or a tool, and say what was seen.

A probe reports and decides nothing: whether something is needed, and for what, is the caller's to say. Reading a
kernel's configuration tells little (a feature can be compiled in and refused by a security module, a sysctl or an outer
container), so a probe does the real thing on something of its own: it mounts, maps, freezes and kills.

What could hang or leave something behind runs as a *trial*: in a process of its own with a mount namespace of its own,
which the parent kills when its time is up. The kernel then takes the mounts and loop devices away; the scratch
directory and the trial's cgroup are the parent's to remove. An ordinary user's trials run as root of a new user
namespace, which is how an ordinary user's sandboxes are made.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROBE_TIMEOUT_S = 10.0
"""A trial takes 30 to 200 ms; ten seconds are for a host that is starting up or badly overloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a probe saw.

    Attributes:
        present: whether the thing is there and works for this user.
        seen: what was seen, in a few words: a version, a number, an error of the kernel.
        resolution: what would help in just this case; empty when there is nothing more exact to say than in general.
    """

    present: bool
    seen: str = ""
    resolution: str = ""


Probe = Callable[[], Finding]
"""A bounded look at one thing. Raises nothing."""


def found(seen: str = "works") -> Finding:
    """Report that the thing is there."""
    return Finding(present=True, seen=seen)


def missing(seen: str, resolution: str = "") -> Finding:
    """Report that it is not."""
    return Finding(present=False, seen=seen, resolution=resolution)


def refused(error: OSError, what: str = "") -> Finding:
    """Report that the kernel refused, in its own words."""
    said = error.strerror or str(error)
    return missing(f"{what}: {said}" if what else said)


def trial(name: str, *, timeout_s: float = PROBE_TIMEOUT_S) -> Finding:
    """Run the trial `name` (`dsec.linux.probe_trials.TRIALS`) in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="dsec-probe-", ignore_cleanup_errors=True) as scratch:
        argv = [sys.executable, "-m", "dsec.linux.probe_trials", name, scratch]
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            output, errors = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _kill_group(child)
            return missing(f"the probe did not end within {timeout_s:g} s")
        finally:
            _remove_cgroups(child.pid)
    return _verdict(output, errors, child.returncode)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def _verdict(output: bytes, errors: bytes, status: int) -> Finding:
    try:
        answer = json.loads(output)
    except ValueError:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        return missing(f"the probe ended with status {status}: {last or 'no output'}")
    return Finding(**answer)


def trial_cgroup_name(pid: int) -> str:
    """Return the name of the cgroup that the trial with this process id may make."""
    return f"dsec-probe-{pid}"


def _remove_cgroups(pid: int) -> None:
    """Remove what a trial that was killed left in the cgroup tree."""
    from dsec.linux.probe_cgroups import own_directories, remove_directory

    for parent in own_directories():
        remove_directory(Path(parent) / trial_cgroup_name(pid))
