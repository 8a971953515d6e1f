"""Instances without control groups: for an ordinary user to whom none is delegated.

Theory. Without groups nothing is limited or frozen. What must still hold is that an end is an end: after a kill every
process is *seen to be gone*. Two facts of the kernel give that (pid_namespaces(7)):

- When the init of a pid namespace dies, the kernel kills all others in it and lets the init's own end be seen only when
  they are gone. So the end of an instance is the end of its init, and a pidfd tells it.
- ``kill(-1, SIGKILL)`` from inside a pid namespace reaches every process in it but the init and the caller, in one step
  that no fork escapes.

What cannot be known is which process in the namespace belongs to which command: a daemon changes its parent, session
and process group at will. So the end of one command that is *killed* (a timeout, a cancelled request) is the end of all
commands of that sandbox; the runtime reports `PROCESS_TREE_KILL` as missing, and says this as the reason. A
command that ends by itself disturbs nobody.

On the host an instance has helpers too: the OCI runtime while it launches, one for each command, and the shells of
durable commands. Each is written down, with its start time, before it may do anything (it waits at a gate, or for its
process document), in ``members/``: so the next node finds them. Nothing of a guest is ever trusted here: what we stop
and kill by parentage are only our own helpers, which have not become a guest's program yet.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dsec.base.errors import CapabilityMissingError
from dsec.linux.cgroups import CgroupLimits, CgroupMode, CgroupUsage
from dsec.linux.kernel_write import KernelWrites
from dsec.linux.processes import ProcessIdentity
from dsec.linux.subids import OUTSIDE_ID
from dsec.linux.userns import maps_id
from dsec.runtimes.container.child import HostChild
from dsec.runtimes.container.paths import InstancePaths

EVERYTHING = "everything"
"""A child that stands for whatever commands left running. No process id is that word: they have a dash in them."""

NSENTER = "/usr/bin/nsenter"
_SETPRIV = "/usr/bin/setpriv"
_SWEEP_CAPABILITIES = "+kill,+sys_admin,+sys_ptrace"
_NAMESPACE_DESCRIPTOR = 3
_SWEEP = "kill -9 -1"
_LAUNCHER = "launcher"
_INIT = "init"
_SETTLE_ROUNDS = 10_000
NO_GROUPS = "this user may make no control groups"
GET_GROUPS = "run as root, or in a delegated group: systemd-run --user --scope -p Delegate=yes dsec up"


class Ungrouped:
    """See `dsec.runtimes.container.groups.Groups`.

    Args:
        run_directory: holds a directory for each instance.
    """

    separates = False

    def __init__(self, run_directory: Path) -> None:
        self._run_directory = run_directory
        self._sweeps: dict[str, HostChild] = {}
        self._killed: set[tuple[str, str]] = set()
        self._ending: dict[str, list[ProcessIdentity]] = {}

    @property
    def mode(self) -> CgroupMode:
        return CgroupMode.UNIFIED

    def open(self) -> None:
        """Nothing is prepared."""

    def controllers(self) -> frozenset[str]:
        return frozenset()

    def swap_is_accounted(self) -> bool:
        return False

    def path(self, group: str) -> Path:
        return self._run_directory / group

    # -- the record of our helpers ------------------------------------------------------------------------------------

    def _members(self, group: str) -> Path:
        return self._run_directory / group / "members"

    def create(self, group: str, limits: CgroupLimits) -> None:
        """Begin the record of an instance. Limits were refused before."""
        self._members(group).mkdir()

    def limit(self, group: str, limits: CgroupLimits) -> None:
        """Nothing enforces a limit here; whoever asked for one was refused before."""

    def create_child(self, group: str, child: str) -> None:
        os.close(os.open(self._members(group) / child, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def attach(self, pid: int, group: str, child: str | None = None) -> None:
        """Write down a helper. It must not have done anything yet."""
        identity = ProcessIdentity.of(pid)
        if identity is None:
            raise ProcessLookupError(pid)
        self._note(group, child or _LAUNCHER, identity)

    def _note(self, group: str, name: str, identity: ProcessIdentity) -> None:
        path = self._members(group) / name
        new = path.with_name(f".{name}")
        new.write_text(str(identity), encoding="ascii")
        new.replace(path)

    def _member(self, group: str, name: str) -> ProcessIdentity | None:
        """Return a helper that still runs."""
        try:
            identity = ProcessIdentity.parse((self._members(group) / name).read_text(encoding="ascii"))
        except FileNotFoundError:
            return None
        return identity if identity is not None and identity.is_alive() else None

    def _names(self, group: str) -> list[str]:
        try:
            names = os.listdir(self._members(group))
        except FileNotFoundError:
            return []
        return [name for name in names if not name.startswith(".")]

    def names(self) -> frozenset[str]:
        return frozenset()

    def children(self, group: str) -> tuple[str, ...]:
        """Names of the commands whose helper runs."""
        names = set(self._names(group)) - {_LAUNCHER, _INIT}
        return tuple(sorted(name for name in names if self._member(group, name) is not None))

    def contains(self, pid: int, group: str) -> bool:
        """Whether `pid` is the init that was launched for this instance.

        The runtime's own state proves it the first time, with a start time; then it is in our record.
        """
        identity = ProcessIdentity.of(pid)
        if identity is None:
            return False
        init = self._member(group, _INIT)
        if init is None and _is_init_of(identity, InstancePaths(self._run_directory / group)):
            self._note(group, _INIT, identity)
            return True
        return init == identity

    def _init(self, group: str) -> ProcessIdentity | None:
        """Return the live init of an instance, also of one whose launch nobody saw to its end."""
        paths = InstancePaths(self._run_directory / group)
        with suppress(FileNotFoundError, ValueError):
            pid = int(paths.pid.read_text(encoding="ascii"))
            if self.contains(pid, group):
                return ProcessIdentity.of(pid)
        return None

    # -- what is not known --------------------------------------------------------------------------------------------

    def usage(self, group: str) -> CgroupUsage:
        return CgroupUsage()

    def processes(self, group: str) -> int | None:
        return None

    def unreaped(self, group: str) -> int:
        return 0

    def oom_kills(self, group: str) -> int:
        return 0

    def process_limit_hits(self, group: str) -> int:
        return 0

    def is_full(self, group: str) -> bool:
        return False

    def freeze(self, group: str, *, frozen: bool) -> None:
        """Nothing is ever frozen here, so that thawing has nothing to do."""
        if frozen:
            raise CapabilityMissingError("a sandbox cannot be paused", detail=NO_GROUPS, resolution=GET_GROUPS)

    def is_frozen(self, group: str) -> bool:
        return False

    def release_memory(self, group: str, writes: KernelWrites) -> int:
        return 0

    def swappable_bytes(self, group: str) -> int | None:
        return None

    def swapped_bytes(self, group: str) -> int | None:
        return None

    def process_ids(self, group: str, maximum: int) -> tuple[int, ...]:
        return ()

    # -- ending -------------------------------------------------------------------------------------------------------

    def kill(self, group: str, child: str | None = None) -> None:
        """Kill an instance; or a command, and with it every process of the instance but the init."""
        if child is None:
            self._kill_instance(group)
        elif (group, child) not in self._killed and self._init(group) is not None:
            self._killed.add((group, child))
            self._kill_member(group, child)
            self._sweep(group)

    def _kill_member(self, group: str, name: str) -> None:
        member = self._member(group, name)
        if member is not None:
            self._ending.setdefault(group, []).extend(_kill_helper(member))

    def _kill_instance(self, group: str) -> None:
        is_launching = self._member(group, _LAUNCHER) is not None
        for name in self._names(group):
            if name != _INIT:
                self._kill_member(group, name)
        init = self._init(group)
        if init is not None:
            init.send(signal.SIGKILL)
        if is_launching or (init is None and not self._ending.get(group)):
            # A runtime that launches has a process that left its parent; or its launch was cut in pieces by somebody
            # who killed one of its processes.
            for stray in _strays(InstancePaths(self._run_directory / group).runtime_state):
                self._ending.setdefault(group, []).extend(_kill_helper(stray))

    def _sweep(self, group: str) -> None:
        """Send SIGKILL to everything in the instance's pid namespace but its init, unless that is being done."""
        running = self._sweeps.get(group)
        init = self._init(group)
        if init is None or (running is not None and not running.has_ended):
            return
        with suppress(FileNotFoundError):
            namespace = os.open(f"/proc/{init.pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._sweeps[group] = _start_sweep(namespace)
            finally:
                os.close(namespace)

    def is_populated(self, group: str, child: str | None = None) -> bool:
        return self._first_alive(group, child) is not None

    def _first_alive(self, group: str, child: str | None) -> int | None:
        """Return a process that has to end yet before the group is empty; the descriptor-to-be is by its pid."""
        if child is None:
            return next((identity.pid for identity in self._instance_processes(group)), None)
        sweep = self._sweeps.get(group)
        if sweep is not None and not sweep.has_ended:
            return sweep.pid
        helper = self._ending_helper(group) or self._member(group, child)
        if helper is not None:
            return helper.pid
        init = self._init(group)
        return None if init is None else next(_others_in_namespace(init.pid), None)

    def _ending_helper(self, group: str) -> ProcessIdentity | None:
        """Return a helper that was killed and is still there."""
        self._ending[group] = [each for each in self._ending.get(group, ()) if each.is_alive()]
        return next(iter(self._ending[group]), None)

    def _instance_processes(self, group: str) -> Iterator[ProcessIdentity]:
        if (helper := self._ending_helper(group)) is not None:
            yield helper
        for name in self._names(group):
            if name != _INIT and (member := self._member(group, name)) is not None:
                yield member
        init = self._init(group)
        if init is not None:
            yield init

    def watch_events(self, group: str, child: str | None = None) -> ProcessWatch | None:
        """Watch for the end of a process that the group still has.

        A sweep that is over and has left somebody (a command that was started meanwhile) is repeated.
        """
        pid = self._first_alive(group, child)
        if pid is None:
            return None
        if child is not None:
            self._sweep(group)
        return ProcessWatch.of(pid)

    def remove_child(self, group: str, child: str) -> bool:
        """Forget a command. What it left running is nobody's then, and ends with the instance."""
        self._killed.discard((group, child))
        (self._members(group) / child).unlink(missing_ok=True)
        return True

    def remove(self, group: str) -> bool:
        """Forget an instance; its directory is removed before or after by its owner."""
        self._sweeps.pop(group, None)
        self._ending.pop(group, None)
        self._killed -= {entry for entry in self._killed if entry[0] == group}
        shutil.rmtree(self._members(group), ignore_errors=True)
        return True


class ProcessWatch:
    """A pidfd: readable once its process has ended."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def of(cls, pid: int) -> ProcessWatch:
        """Watch a process; one that is gone already is as good as one that ends at once."""
        try:
            return cls(os.pidfd_open(pid))
        except ProcessLookupError:
            readable = os.eventfd(1, os.EFD_CLOEXEC)
            return cls(readable)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)


def _start_sweep(namespace: int) -> HostChild:
    """Run the sweep in a pid namespace, with the host's own shell (a builtin of it sends the signals).

    For that moment the shell is seen inside. It has an id that no guest has, so that none may stop or kill it.
    """
    command = [NSENTER, f"--pid=/proc/self/fd/{_NAMESPACE_DESCRIPTOR}", "/bin/sh", "-c", _SWEEP]
    if maps_id(OUTSIDE_ID):
        identity = [f"--reuid={OUTSIDE_ID}", f"--regid={OUTSIDE_ID}", "--clear-groups"]
        kept = [f"--inh-caps={_SWEEP_CAPABILITIES}", f"--ambient-caps={_SWEEP_CAPABILITIES}"]
        command = [_SETPRIV, *identity, *kept, "--", *command]
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    try:
        descriptors = {0: null, 1: null, 2: null, _NAMESPACE_DESCRIPTOR: namespace}
        return HostChild.start(command[0], command[1:], descriptors)
    finally:
        os.close(null)


def _others_in_namespace(init: int) -> Iterator[int]:
    """Yield the pids of all live processes in the pid namespace of `init`, but itself.

    The host's process table is read, not what the guest shows. Nobody in a sandbox can make a namespace of its own: the
    system call filter sees to it. A process whose namespace we may not see is not a guest's.
    """
    try:
        wanted = os.readlink(f"/proc/{init}/ns/pid")
    except OSError:
        return
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == init or _namespace(name) != wanted:
            continue
        if ProcessIdentity.of(int(name)) is not None:
            yield int(name)


def _strays(state: Path) -> Iterator[ProcessIdentity]:
    """Yield our helpers that were started for an OCI runtime's state directory, by their command lines."""
    ours, word = _namespace("self"), os.fsencode(state)
    for name in os.listdir("/proc"):
        if not name.isdigit() or _namespace(name) != ours:
            continue
        with suppress(OSError):
            is_stray = word in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            if is_stray and (identity := ProcessIdentity.of(int(name))) is not None:
                yield identity


def _namespace(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _is_init_of(identity: ProcessIdentity, paths: InstancePaths) -> bool:
    """Whether crun's state names this process, with its start time, as the init of the instance."""
    try:
        state = json.loads((paths.runtime_state / paths.directory.name / "status").read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    return (state.get("pid"), state.get("process-start-time")) == (identity.pid, identity.start_ticks)


def _kill_helper(helper: ProcessIdentity) -> list[ProcessIdentity]:
    """Kill a helper and what it is about to make a guest of; return all that has to end now.

    All are stopped first, so that nobody forks meanwhile. Children of processes in a sandbox's pid namespace are not
    looked for: a sweep, or the end of their init, reaches those. A runtime that waits for a process in
    there is let go on: it takes note of the end and ends itself, where a killed one would leave a zombie to the host.
    """
    ours = _namespace("self")
    stopped: list[ProcessIdentity] = []
    kept: set[ProcessIdentity] = set()
    waiting = [helper]
    while waiting:
        current = waiting.pop()
        if not _stop(current):
            continue
        stopped.append(current)
        if _namespace(str(current.pid)) == ours:
            children = [found for pid in _children(current.pid) if (found := ProcessIdentity.of(pid)) is not None]
            if any(_namespace(str(child.pid)) != ours for child in children):
                kept.add(current)
            waiting += children
    for identity in reversed(stopped):
        identity.send(signal.SIGCONT if identity in kept else signal.SIGKILL)
    return stopped


def _stop(identity: ProcessIdentity) -> bool:
    """Stop a process and see it stopped; False when it has ended."""
    descriptor = identity.open()
    if descriptor is None:
        return False
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        for _ in range(_SETTLE_ROUNDS):
            if poller.poll(0):
                return False
            if _state(identity.pid) in "Tt":
                return True
            os.sched_yield()
        return True  # It is in an uninterruptible call, from which it returns only to stop.
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
