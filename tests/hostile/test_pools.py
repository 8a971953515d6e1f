"""A sandbox of a pool goes from tenant to tenant: a hostile root leaves nothing for the next, reads nothing of the one
before, and reaches nobody with an old id or with what is still in flight."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from dsec.base.errors import DeadlineExceededError, DsecError, InvalidRequestError, SandboxNotFoundError
from dsec.model.pool import PoolChange, PoolInfo
from dsec.model.process import CommandRequest, SessionRequest
from dsec.model.sandbox import Resources, SandboxSpec, SandboxState
from dsec.sdk.http import HttpService
from dsec.sdk.pools import pools_of
from dsec.testing.guest import Guest
from dsec.testing.leaks import Leaks
from dsec.testing.node_process import NodeProcess

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]

SPEC = SandboxSpec(
    image="guest", resources=Resources(memory_bytes=256 << 20, disk_bytes=64 << 20, pids=100, cpu_millis=1000)
)
ONE_BERTH = PoolChange(fixed_level=1, maximum=1)
"""Every tenant gets what the tenant before had."""

SEE = """
import ctypes, json, os
seen = {}
def read(path):
    try:
        with open(path, "rb") as file:
            return file.read(20000).decode("latin1")
    except OSError as error:
        return f"error {error.errno}"
def extended(path):
    try:
        names = os.listxattr(path, follow_symlinks=False)
        return {name: repr(os.getxattr(path, name, follow_symlinks=False)) for name in names}
    except OSError as error:
        return error.errno
def walk(directory):
    for entry in os.scandir(directory):
        status = entry.stat(follow_symlinks=False)
        size = 0 if entry.is_dir(follow_symlinks=False) else status.st_size
        facts = [status.st_mode, status.st_uid, status.st_gid, size, extended(entry.path)]
        seen["file " + entry.path.decode("latin1")] = facts
        if entry.is_dir(follow_symlinks=False) and entry.path not in (b"/proc", b"/sys", b"/usr/lib"):
            walk(entry.path)
walk(b"/")
seen["mounts"] = sorted(line.split()[4:6] for line in open("/proc/self/mountinfo") if " / / " not in line)
for top, _, names in os.walk("/proc/sys/net/ipv4/conf"):
    seen.update({f"{top}/{name}": read(f"{top}/{name}") for name in names})
for name in ("kernel/msgmax", "kernel/shmmax", "kernel/sem", "kernel/domainname", "fs/mqueue/msg_max"):
    seen[name] = read("/proc/sys/" + name)
for name in ("dev", "route", "tcp", "tcp6", "udp", "raw", "unix", "if_inet6", "fib_trie", "arp", "snmp"):
    seen["net " + name] = read("/proc/net/" + name)
for name in ("shm", "msg", "sem"):
    seen["ipc " + name] = read("/proc/sysvipc/" + name)
of_first = ("1/limits", "1/oom_score_adj", "1/coredump_filter")
# Locks of open files that belong to nobody in particular are the host's, and are numbered among all of the host's.
seen["locks"] = [line.split()[1:] for line in read("/proc/locks").splitlines() if "OFDLCK" not in line]
for name in ("keys", "key-users", "self/limits", "self/uid_map", *of_first):
    seen[name] = read("/proc/" + name)
status = dict(line.split(":", 1) for line in read("/proc/self/status").splitlines())
seen["self"] = [status[name] for name in ("Umask", "Uid", "Groups", "SigIgn", "CapEff", "CapBnd", "Cpus_allowed_list")]
seen["first"] = [os.sched_getscheduler(1), os.getpriority(os.PRIO_PROCESS, 1), sorted(os.sched_getaffinity(1))]
seen["environment"] = {name: value for name, value in os.environ.items()}
seen["processes"] = len([name for name in os.listdir("/proc") if name.isdigit()])
libc = ctypes.CDLL(None)
seen["posix queue"] = libc.syscall(240, b"left", 0, 0, 0)
print(json.dumps(seen))
"""
"""Everything of a sandbox that a successor could find changed; tells one JSON object."""

LEAVE = """
import ctypes, errno, fcntl, json, os, resource, signal, socket, threading, time
libc = ctypes.CDLL(None, use_errno=True)
did, kept = [], []
def attempt(name, act):
    try:
        if act() != -1:
            did.append(name)
    except OSError:
        pass
def put(directory):
    path = os.path.join(directory, b"left-\\xff\\n")
    os.makedirs(directory, exist_ok=True)
    with open(path, "wb") as file:
        file.write(b"left by the predecessor")
    os.chmod(path, 0o6777)
    os.link(path, path + b".link")
    os.symlink(path, path + b".symbolic")
    did.append("file in " + directory.decode())
    os.setxattr(path, "user.left", b"x")
for directory in (b"/", b"/tmp", b"/run", b"/dev/shm", b"/dev", b"/root", b"/home/user", b"/etc", b"/var/new"):
    attempt(directory, lambda: put(directory) or -1)
over = "etc/hostname etc/machine-id etc/hosts etc/passwd root/.bash_history etc/ld.so.preload bin/true"
for name in over.split():
    attempt("over " + name, lambda: open("/" + name, "a").write("left"))
attempt("remove", lambda: os.unlink("/bin/false"))
attempt("capability", lambda: os.setxattr("/bin/cat", "security.capability", b"\\1\\0\\0\\2" + bytes(16)))
def deep():
    os.chdir("/tmp")
    for _ in range(500):
        os.mkdir("d" * 100)
        os.chdir("d" * 100)
attempt("deep", deep)
os.chdir("/")
for name in "net/ipv4/ip_forward net/ipv4/conf/lo/forwarding kernel/msgmax fs/mqueue/msg_max kernel/domainname".split():
    attempt("sysctl " + name, lambda: open("/proc/sys/" + name, "w").write("1"))
attempt("host name", lambda: libc.sethostname(b"left", 4))
attempt("domain name", lambda: libc.setdomainname(b"left", 4))
attempt("shared memory", lambda: libc.shmget(77, 4096, 0o1666))
attempt("message queue", lambda: libc.msgget(77, 0o1666))
attempt("semaphore", lambda: libc.semget(77, 1, 0o1666))
attempt("posix queue", lambda: libc.syscall(240, b"left", os.O_CREAT | os.O_RDWR, 0o666, 0))
for ring in (-3, -4, -5):
    attempt("key", lambda: libc.syscall(248, b"user", b"left", b"secret", 6, ring))
def listen(family, address):
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen()
    listener.set_inheritable(True)
    kept.append(listener)
attempt("listen", lambda: listen(socket.AF_INET, ("0.0.0.0", 8000)))
attempt("abstract socket", lambda: listen(socket.AF_UNIX, "\\0left"))
attempt("socket file", lambda: listen(socket.AF_UNIX, "/tmp/left.sock"))
for target in (b"/home", b"/tmp", b"/dev/shm", b"/proc"):
    attempt("mount", lambda: libc.mount(b"left", target, b"tmpfs", 0, None))
for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x4000000):
    attempt("namespace", lambda: libc.unshare(flag))
attempt("first's limits", lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (7, 7)))
attempt("first's nice", lambda: os.setpriority(os.PRIO_PROCESS, 1, 15))
attempt("first's processor", lambda: os.sched_setaffinity(1, {min(os.sched_getaffinity(1))}))
attempt("first's memory rank", lambda: open("/proc/1/oom_score_adj", "w").write("500"))
def daemon(act):
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    act()
    time.sleep(9999)
def rewrite():
    while True:
        for name in ("/tmp/again", "/dev/shm/again", "/run/again"):
            try:
                open(name, "w").write("x")
            except OSError:
                pass
def respawn():
    while not os.fork():
        time.sleep(0.01)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def deleted():
    file = open("/tmp/deleted", "wb")
    file.write(bytes(1 << 20))
    os.unlink("/tmp/deleted")
    kept.append(file)
def locked():
    kept.append(open("/etc/passwd", "r+"))
    fcntl.lockf(kept[-1], fcntl.LOCK_EX)
def zombie():
    if not os.fork():
        os._exit(0)
def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)
for act in (rewrite, respawn, deleted, locked, zombie, stopped):
    daemon(act)
print(json.dumps(did))
"""
"""Leave in a sandbox whatever can be left; tells what could be."""

MUST_BE_POSSIBLE = {
    "file in /tmp",
    "file in /dev/shm",
    "over etc/machine-id",
    "shared memory",
    "posix queue",
    "listen",
}
"""An attack that does nothing shows nothing."""


@asynccontextmanager
async def pool(
    service: HttpService, change: PoolChange = ONE_BERTH
) -> AsyncIterator[Callable[[], Awaitable[PoolInfo]]]:
    """A pool of the hostile image; yields what reads it."""
    pools = pools_of(service)
    name = (await pools.set_pool(SPEC, change)).pool_id

    async def read() -> PoolInfo:
        (found,) = [info for info in await pools.list_pools() if info.pool_id == name]
        return found

    try:
        yield read
    finally:
        await pools.remove_pool(name)


def differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = before.keys() | after.keys()
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


@pytest.mark.parametrize("ending", ["removed", "paused first", "rolled back first"])
async def test_the_next_tenant_sees_what_the_first_saw(service: HttpService, ending: str) -> None:
    async with pool(service) as read:
        first = await service.create(SPEC, sandbox_id=f"sbx-first-{ending[:6]}")
        guest = Guest(service, first.sandbox_id)
        before = await guest.ask(SEE)
        did = set(await guest.ask(LEAVE))
        assert did >= MUST_BE_POSSIBLE
        await guest.background("while :; do echo left; sleep 0.01; done", env={"SECRET": "left"})
        if ending == "paused first":
            await service.pause(first.sandbox_id)
        elif ending == "rolled back first":
            await service.rollback(first.sandbox_id)
            await guest.ask(LEAVE)
        await service.remove(first.sandbox_id)
        second = await service.create(SPEC)
        try:
            after = await Guest(service, second.sandbox_id).ask(SEE)
            assert differences(before, after) == {}
            assert (await Guest(service, second.sandbox_id).run("hostname")).stdout.split() == [
                second.sandbox_id.encode()
            ]
            assert await service.list_processes(second.sandbox_id) == []
            assert second.generation == 0
        finally:
            await service.remove(second.sandbox_id)
        statistics = (await read()).statistics
        assert (statistics.creations, statistics.failed_checks) == (1, 0)
        assert statistics.hand_outs == 2


async def test_what_an_old_tenant_has_in_flight_ends_and_reaches_nobody(service: HttpService) -> None:
    """Commands, uploads, watches and new calls of the old tenant go on while its sandbox is handed on."""
    ended: list[str] = []
    async with pool(service):
        for turn in range(3):
            old, new = f"sbx-old{turn}", f"sbx-new{turn}"
            await service.create(SPEC, sandbox_id=old)
            handed_on = anyio.Event()
            async with anyio.create_task_group() as group:
                for act in _in_flight(service, old, handed_on):
                    group.start_soon(_until_refused, act, ended)
                await anyio.wait_all_tasks_blocked()
                await service.remove(old)
                await service.create(SPEC, sandbox_id=new)
                handed_on.set()
            found = await Guest(service, new).sh("ls -A /tmp /home/user /dev/shm; set /proc/[0-9]*; echo $#")
            assert found.stdout.split() == [b"/dev/shm:", b"/home/user:", b"/tmp:", b"2"]
            assert await service.list_processes(new) == []
            await service.remove(new)
    # Some were cut in the middle, and nothing but the old tenant's end was the reason.
    assert {"sandbox_exited"} < set(ended) <= {"sandbox_exited", "sandbox_not_found", "invalid_state"}


def _in_flight(service: HttpService, box: str, handed_on: anyio.Event) -> list[Callable[[], Awaitable[object]]]:
    async def body() -> AsyncIterator[bytes]:
        yield b"first"
        await handed_on.wait()
        yield b"second" * 10_000

    async def watch() -> None:
        async with service.watch_files(box, "/tmp", recursive=True) as changes:
            async for _ in changes:
                pass

    def start(script: str) -> Callable[[], Awaitable[object]]:
        return lambda: service.run(box, CommandRequest(argv=("sh", "-c", script), timeout_s=60))

    return [
        lambda: service.write_file(box, "/tmp/slow", body()),
        lambda: service.write_file(box, "/home/user/slow", body()),
        lambda: service.write_file(box, "/tmp/quick", b"x"),
        watch,
        start("sleep 60; echo late > /tmp/late"),
        start("setsid sleep 60 & echo x > /dev/shm/x"),
        lambda: service.start_process(box, CommandRequest(argv=("sleep", "600"), timeout_s=None)),
        lambda: service.open_session(box, SessionRequest()),
    ]


async def _until_refused(act: Callable[[], Awaitable[object]], ended: list[str]) -> None:
    """Do it again and again, as a client does that does not know; until it is told that there is no such sandbox."""
    while True:
        try:
            await act()
        except SandboxNotFoundError as error:
            ended.append(error.code)
            return
        except DsecError as error:
            ended.append(error.code)


async def test_neither_an_old_id_nor_a_berths_name_opens_what_another_has(
    service: HttpService, node: NodeProcess
) -> None:
    async with pool(service):
        old = await service.create(SPEC)
        await service.remove(old.sandbox_id)
        new = await service.create(SPEC)
        layers = [name.split("/")[-1] for name in Leaks.read(node.state_dir).layers if "/pool-" in name]
        assert layers
        for name in (old.sandbox_id, *(layer.rpartition("-g")[0] for layer in layers), *layers):
            for act in _uses(service, name):
                with pytest.raises((SandboxNotFoundError, InvalidRequestError)):
                    await act()
        await service.remove(old.sandbox_id)
        assert (await service.inspect(new.sandbox_id)).state is SandboxState.READY
        assert (await Guest(service, new.sandbox_id).sh("ls -A /tmp")).stdout == b""
        await service.remove(new.sandbox_id)


def _uses(service: HttpService, name: str) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: service.inspect(name),
        lambda: service.run(name, CommandRequest(argv=("true",))),
        lambda: service.write_file(name, "/tmp/left", b"x"),
        lambda: service.rollback(name),
        lambda: service.pause(name),
        lambda: service.statistics(name),
        lambda: service.list_processes(name),
    ]


async def test_of_many_that_race_for_one_sandbox_one_gets_it(service: HttpService, node: NodeProcess) -> None:
    got: list[str] = []
    late: list[str] = []
    async with pool(service) as read, node.service() as other:

        async def race(number: int) -> None:
            client = other if number % 2 else service
            try:
                got.append((await client.create(SPEC, sandbox_id=f"sbx-race{number}", timeout_s=5.0)).sandbox_id)
            except DeadlineExceededError:
                late.append(f"sbx-race{number}")

        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(race, number)
        assert (len(got), len(late)) == (1, 5)
        assert (await read()).statistics.in_use == 1
        assert [info.sandbox_id for info in await service.list() if info.sandbox_id in late] == []
        await service.remove(got[0])
