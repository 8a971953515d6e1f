"""The user namespace in which an ordinary user's node works.

Theory. Whoever is not root may mount overlays, own files of many users and launch sandboxes only inside a user
namespace over their subordinate ids (user_namespaces(7)). Sandboxes are children of that namespace, and only its own
processes, or its owner from outside, have power over them: a namespace made anew has none, however equal its maps.
So the namespace must outlive the node. A *keeper* stays in it, the same init program that sandboxes have; it does
nothing but exist. Node and `dsec image` enter the keeper's namespaces with setns(2), which takes a process
without threads: it is done when a program begins, and the program is then executed again, as root of the namespace.

Who holds the namespace when the keeper was killed? Every live sandbox does, as a child of it. A new keeper then goes
where the parent of a sandbox's namespace is (ioctl_ns(2)).

A user of a container who is root in a user namespace that somebody else made is inside already: nothing is entered.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dsec.base.errors import CapabilityMissingError, RuntimeFailedError
from dsec.linux import mounts, subids, syscalls
from dsec.linux.processes import ProcessIdentity
from dsec.linux.userns import CLONE_NEWUSER

KEEPER = "/usr/bin/catatonit"
_RECORD = "namespace.keeper"
_LOCK = "namespace.lock"
_CLONE_NEWNS = 0x00020000
_MS_SLAVE = 1 << 19
_NS_GET_PARENT = 0xB702
_NS_GET_OWNER_UID = 0xB704
_INIT_ARGUMENTS = b"/dev/.init\0"


def is_ordinary_user() -> bool:
    """Whether this process has to enter a namespace before it can be a node."""
    return os.geteuid() != 0


def run_directory(state_dir: Path) -> Path:
    """Where a node in such a namespace keeps bundles: nobody else's /run could be written."""
    return state_dir / "run"


def enter(state_dir: Path) -> None:
    """Enter the namespace of the node of `state_dir`, and execute this program again in it. Does nothing for root.

    Raises:
        CapabilityMissingError: user namespaces, subordinate ids or the keeper's program are missing.
    """
    if not is_ordinary_user():
        return
    join(state_dir)
    # The default of the state directory depends on the user, who is root from here on.
    os.environ["DSEC_STATE_DIR"] = str(state_dir)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def join(state_dir: Path) -> None:
    """Make this process, which has no threads, root in the namespace of the node of `state_dir`."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    here = os.getcwd()
    with _locked(state_dir):
        keeper = _live_keeper(state_dir) or _start_keeper(state_dir)
        for kind, flag in (("user", CLONE_NEWUSER), ("mnt", _CLONE_NEWNS)):
            _set_namespace(f"/proc/{keeper.pid}/ns/{kind}", flag)
    os.chdir(here)  # Entering a mount namespace leads to its root directory.


def leave(state_dir: Path) -> None:
    """End the keeper if no sandbox needs the namespace any more. What is in it is told by the run directory."""
    run = run_directory(state_dir)
    if not (state_dir / _RECORD).exists():
        return
    with _locked(state_dir):
        if run.is_dir() and any(entry.is_dir() for entry in os.scandir(run)):
            return
        keeper = _live_keeper(state_dir)
        if keeper is not None:
            keeper.send(signal.SIGKILL)
        (state_dir / _RECORD).unlink(missing_ok=True)


@contextmanager
def _locked(state_dir: Path) -> Iterator[None]:
    """Serialise entering and leaving. The lock ends with the process (flock(2))."""
    descriptor = os.open(state_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _live_keeper(state_dir: Path) -> ProcessIdentity | None:
    try:
        keeper = ProcessIdentity.parse((state_dir / _RECORD).read_text(encoding="ascii"))
    except FileNotFoundError:
        return None
    return keeper if keeper is not None and keeper.is_alive() else None


def _start_keeper(state_dir: Path) -> ProcessIdentity:
    """Start a keeper, in the namespace that live sandboxes hold or in a new one, and write down which it is."""
    if not os.access(KEEPER, os.X_OK):
        raise CapabilityMissingError(f"{KEEPER} is not installed", resolution="apt-get install catatonit")
    held = _namespace_of_sandboxes(state_dir)
    try:
        pid = _fork_keeper(held)
    finally:
        if held is not None:
            os.close(held)
    keeper = ProcessIdentity.of(pid)
    if keeper is None:
        raise RuntimeFailedError("the process that keeps the user namespace ended at once")
    new = state_dir / f"{_RECORD}.new"
    new.write_text(str(keeper), encoding="ascii")
    new.replace(state_dir / _RECORD)
    return keeper


def _fork_keeper(held: int | None) -> int:
    """Fork a process, give it its namespaces and ids, and let it become the keeper; return its pid."""
    ready_read, ready_write = os.pipe()
    mapped_read, mapped_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ready_read)
        os.close(mapped_write)
        _become_keeper(held, ready_write, mapped_read)
    os.close(ready_write)
    os.close(mapped_read)
    try:
        _expect(os.read(ready_read, 1), b"+")
        if held is None:
            subids.write_maps(pid)
        os.write(mapped_write, b"+")
        # The pipe closes at the keeper's execve: from then on it needs nothing of us.
        _expect(os.read(ready_read, 1), b"")
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(ready_read)
        os.close(mapped_write)
    return pid


def _expect(said: bytes, expected: bytes) -> None:
    if said != expected:
        raise CapabilityMissingError(
            "this kernel refuses an ordinary user's namespaces",
            resolution="sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=100000; see `dsec doctor`",
        )


def _become_keeper(held: int | None, ready: int, mapped: int) -> None:
    """Run in the forked child. It gets a session of its own, so that no terminal's end reaches it."""
    try:
        os.setsid()
        if held is None:
            syscalls.libc_call("unshare", CLONE_NEWUSER)
        else:
            syscalls.libc_call("setns", held, CLONE_NEWUSER)
        os.write(ready, b"+")
        if os.read(mapped, 1) == b"+":
            syscalls.libc_call("unshare", _CLONE_NEWNS)
            # What the host unmounts later must not stay mounted here.
            mounts.mount("none", "/", "", mounts.MS_REC | _MS_SLAVE)
            os.chdir("/")
            null = os.open("/dev/null", os.O_RDWR)
            for standard in range(3):
                os.dup2(null, standard)
            os.execv(KEEPER, [KEEPER, "-P"])
    except OSError:
        os.write(ready, b"!")
    finally:
        os._exit(1)


def _namespace_of_sandboxes(state_dir: Path) -> int | None:
    """Return the user namespace that is the parent of a live sandbox's, as a descriptor; None without one."""
    for record in run_directory(state_dir).glob("*/pid"):
        with suppress(OSError, ValueError):
            pid = int(record.read_text(encoding="ascii"))
            is_init = Path(f"/proc/{pid}/cmdline").read_bytes().startswith(_INIT_ARGUMENTS)
            if is_init and (found := _parent_namespace(pid)) is not None:
                return found
    return None


def _parent_namespace(pid: int) -> int | None:
    inner = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        parent = fcntl.ioctl(inner, _NS_GET_PARENT)
    finally:
        os.close(inner)
    owner = bytearray(4)
    fcntl.ioctl(parent, _NS_GET_OWNER_UID, owner)
    if int.from_bytes(owner, sys.byteorder) == os.geteuid():
        return parent
    os.close(parent)
    return None


def _set_namespace(path: str, kind: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.libc_call("setns", descriptor, kind, path=path)
    finally:
        os.close(descriptor)
