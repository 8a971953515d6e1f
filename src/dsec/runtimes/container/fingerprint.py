"""What can be seen from outside of an instance in which nothing has run: to tell whether one is clean.

Everything is read from the host's side: /proc of the init, the namespaces that it is in, and the file systems in
memory that are mounted inside. Nothing is asked of the guest, and nothing that it wrote is followed. All of it is
metadata; the cost is that of some twenty small reads, whatever the guest did: each list ends at `_MOST`.

What is not read, because no part of it can outlive the processes that hold it, and those are counted: timers, inotify
and other descriptors, futexes, rlimits and working directories of commands. Keyrings: the filter of system calls keeps
a guest from making any. Settings of the kernel by namespace: /proc/sys is read-only inside.

Source: proc_pid_mountinfo(5), proc_pid_status(5), proc_pid_net(5), proc_pid_limits(5), mq_overview(7), shm_overview(7).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

from dsec.linux.ipc import sysv_objects
from dsec.linux.openat2 import open_in_root
from dsec.linux.walk import walk
from dsec.runtimes.container.groups import Groups
from dsec.runtimes.port import Fingerprint

_MOST = 1000
"""Entries of each list that are looked at: no clean instance has as many."""
_DYING_S = 0.5
"""A process that dies takes microseconds, and much longer on a host where everybody waits for a processor."""
_EXECUTING_S = 0.5
"""As long may a program take to begin on such a host."""
_LOOK_AGAIN_S = 0.001
_ROOT = "/"
_IN_MEMORY = frozenset({"tmpfs", "mqueue"})
_OWNER = re.compile(r"\b([ug]id)=([0-9]+)")
_ESCAPE = re.compile(r"\\([0-7]{3})")
_STATUS = frozenset({"Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Threads", "Umask", "TracerPid"})
_CAPABILITIES = "Cap"
_COUNTS = ("sockstat", "sockstat6")
_LISTED = frozenset({"tcp", "tcp6", "udp", "udp6", "udplite", "udplite6", "raw", "raw6"})
_TAPE_BYTES = 1 << 20


def read_fingerprint(
    pid: int, groups: Groups, instance_id: str, first_host_id: int, *, root_fd: int | None
) -> Fingerprint:
    """Read the fingerprint of the instance whose init is `pid`. Raises `OSError` when it is gone. Blocks; for a thread.

    Args:
        pid: the init.
        groups: the node's control groups.
        instance_id: name of its group.
        first_host_id: owners are told as the ids that they are inside, which are the same in every instance.
        root_fd: the instance's root; None where the guest has a kernel of its own, of which nothing is seen from here
            but its mounts.
    """
    lines = _lines(f"/proc/{pid}/mountinfo")
    mounts = tuple(sorted(_mount(line, first_host_id) for line in lines))
    if root_fd is None:
        return Fingerprint(processes=None, command_groups=groups.children(instance_id), mounts=mounts)
    return Fingerprint(
        processes=count_processes(groups, instance_id),
        command_groups=groups.children(instance_id),
        mounts=mounts,
        init=tuple(sorted(_init(pid, first_host_id))),
        ipc=_ipc(pid),
        sockets=tuple(sorted(_sockets(pid))),
        volatile=tuple(sorted(_volatile(root_fd, lines, first_host_id))),
    )


def count_processes(groups: Groups, instance_id: str) -> int | None:
    """Return how many processes of an instance are alive; None where nobody counts.

    The counter also counts what has ended and that its parent, whoever that became, has not yet waited for: one that
    the runtime left behind when it made the init, for example. The list does not name those, but takes longer. It does
    name what is about to end: that is given a moment, and counts if it stays, since a process whose first thread has
    ended looks the same and lives.
    """
    number = groups.processes(instance_id)
    if number is None or number <= 1:
        return number
    ends_at = time.monotonic() + _DYING_S
    while True:
        found = groups.process_ids(instance_id, _MOST)
        if len(found) <= 1 or not any(map(_is_dying, found)) or time.monotonic() >= ends_at:
            return len(found)
        time.sleep(_LOOK_AGAIN_S)


def _is_dying(pid: int) -> bool:
    """Whether a process has let go of its memory already (proc_pid_exe(5))."""
    try:
        os.readlink(f"/proc/{pid}/exe")
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _lines(path: str) -> list[str]:
    with open(path, encoding="utf8", errors="surrogateescape") as file:
        return file.read(_TAPE_BYTES).splitlines()


def _mount(line: str, first_host_id: int) -> str:
    """Return where, of which kind and with which rights; for the root not its layers, which differ by nature."""
    fields = line.split()
    where, rights = fields[4], fields[5]
    kind, _, options = fields[fields.index("-") + 1 :][:3]
    if where == _ROOT:
        return f"{where} {kind} {rights}"
    inside = _OWNER.sub(lambda found: f"{found[1]}={int(found[2]) - first_host_id}", options)
    return f"{where} {kind} {rights} {inside}"


def _init(pid: int, first_host_id: int) -> Iterator[str]:
    """Yield what the init is: everything that a command could have changed of it, or inherits from it."""
    for variable in _environment(pid).split(b"\0"):
        if variable:
            yield f"variable {os.fsdecode(variable)}"
    yield f"directory {os.readlink(f'/proc/{pid}/cwd')}"
    yield f"program {os.readlink(f'/proc/{pid}/exe').removesuffix(' (deleted)')}"
    yield f"oom_score_adj {_lines(f'/proc/{pid}/oom_score_adj')[0]}"
    for line in _lines(f"/proc/{pid}/status"):
        name, _, value = line.partition(":")
        if name in ("Uid", "Gid"):
            yield f"{name} {' '.join(str(int(each) - first_host_id) for each in value.split())}"
        elif name in _STATUS or name.startswith(_CAPABILITIES):
            yield f"{name} {' '.join(value.split())}"
    for line in _lines(f"/proc/{pid}/limits")[1:]:
        yield f"limit {' '.join(line.split())}"


def _environment(pid: int) -> bytes:
    """Return the environment that an init began with, once its execve(2) is done.

    The kernel shows the new program a moment before its environment, which it writes last of all. No init of ours has
    an empty one; one that stays empty is told so.
    """
    ends_at = time.monotonic() + _EXECUTING_S
    while True:
        with open(f"/proc/{pid}/environ", "rb") as file:
            found = file.read(_TAPE_BYTES)
        if found or time.monotonic() >= ends_at:
            return found
        time.sleep(_LOOK_AGAIN_S)


def _ipc(pid: int) -> tuple[str, ...]:
    try:
        return sysv_objects(pid, limit=_MOST)
    except PermissionError:
        # Without CAP_SYS_ADMIN over it (an ordinary user's node) nobody sees them from outside.
        return ()


def _sockets(pid: int) -> Iterator[str]:
    """Yield interfaces, addresses, routes and sockets, names without a file included: none of the last belongs to an
    instance at rest."""
    yield from _network(pid)
    for line in _lines(f"/proc/{pid}/net/dev")[2 : _MOST + 2]:
        yield f"interface {line.partition(':')[0].strip()}"
    for line in _lines(f"/proc/{pid}/net/unix")[1 : _MOST + 1]:
        fields = line.split(maxsplit=7)
        yield f"unix socket {fields[7] if len(fields) > 7 else '(no name)'}"
    for kind in ("packet", *_kinds_in_use(pid)):
        for line in _listed(pid, kind):
            yield f"{kind} socket {line.split()[1] if kind != 'packet' else line.split()[3]}"


def _network(pid: int) -> Iterator[str]:
    """Yield addresses and routes, without the counters that change by use."""
    for line in _listed(pid, "if_inet6", skip=0):
        fields = line.split()
        yield f"address {fields[0]}/{int(fields[2], 16)} on {fields[5]}"
    # The only file that names addresses of version 4; a leaf stands above what is known of it.
    leaf = ""
    for line in _listed(pid, "fib_trie", skip=0):
        text = line.strip()
        if text.startswith("|-- "):
            leaf = text[4:]
        elif leaf and text.startswith("/"):
            yield f"route {leaf}{text}"
    for line in _listed(pid, "route"):
        fields = line.split()
        yield f"route {fields[1]} by {fields[2]} on {fields[0]} mask {fields[7]}"
    for line in _listed(pid, "ipv6_route", skip=0):
        fields = line.split()
        yield f"route {fields[0]}/{int(fields[1], 16)} by {fields[4]} on {fields[9]}"
    for line in _listed(pid, "arp"):
        yield f"neighbour {line.split()[0]}"


def _kinds_in_use(pid: int) -> Iterator[str]:
    """Yield the protocols that have sockets here, from the counters of the namespace.

    The lists themselves are read of these alone: the kernel makes each by walking the table of the whole host, which
    takes milliseconds although it is empty. Counters take microseconds. What the last packets of an ended connection
    leave (TIME_WAIT) is in neither: nobody can use it, and it ends with the namespace.
    """
    for file in _COUNTS:
        for line in _listed(pid, file, skip=0):
            name, _, counts = line.partition(":")
            fields = counts.split()
            if name.lower() in _LISTED and fields[:1] == ["inuse"] and fields[1] != "0":
                yield name.lower()


def _listed(pid: int, name: str, *, skip: int = 1) -> list[str]:
    try:
        return _lines(f"/proc/{pid}/net/{name}")[skip : _MOST + skip]
    except FileNotFoundError:  # A kernel without that protocol.
        return []


def _inside(host_id: int, first_host_id: int) -> str:
    """Tell an id as it is inside. The host's own, such as that of its device nodes, are below every instance's range:
    counted from its beginning they would differ from one instance to the next."""
    return str(host_id - first_host_id) if host_id >= first_host_id else f"host {host_id}"


def _volatile(root_fd: int, mounts: list[str], first_host_id: int) -> Iterator[str]:
    """Yield the entries of file systems that are in memory: /dev, /dev/shm, message queues."""
    for line in mounts:
        fields = line.split()
        where = _ESCAPE.sub(lambda found: chr(int(found[1], 8)), fields[4])
        if fields[fields.index("-") + 1] not in _IN_MEMORY:
            continue
        try:
            fd = open_in_root(root_fd, os.fsencode(where), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            # It hides behind another mount, or masks a file.
            continue
        try:
            for path, status in walk(fd, limit=_MOST):
                owner = f"{_inside(status.st_uid, first_host_id)}:{_inside(status.st_gid, first_host_id)}"
                yield f"{where.rstrip('/')}/{os.fsdecode(path)} mode {status.st_mode:o} owner {owner}"
        finally:
            os.close(fd)
