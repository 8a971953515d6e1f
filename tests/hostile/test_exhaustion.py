"""A guest takes all it can get: its own limits end it, and neither the host nor a bystander pays."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import (
    GuestError,
    HostDiskFullError,
    LimitExceededError,
    SandboxDiskFullError,
    SandboxProcessLimitError,
)
from dsec.model.process import CommandRequest, OutputEvent
from dsec.model.sandbox import Resources, SandboxSpec, SandboxState
from dsec.sdk.http import HttpService
from dsec.testing.guest import Guest
from dsec.testing.guest_image import make_root
from dsec.testing.node_process import NodeProcess
from dsec.testing.releasing import unmount_when_free

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]

PATIENCE_S = 60.0
MIB = 1 << 20


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def size_on_disk(directory: Path) -> int:
    return sum(
        (Path(top) / name).lstat().st_blocks * 512 for top, _, names in os.walk(directory) for name in names
    )  # fmt: skip


# -- disk ------------------------------------------------------------------------------------------------------------


async def test_full_quota_is_the_guests_and_nobody_elses(make_guest) -> None:  # type: ignore[no-untyped-def]
    async with make_guest(resources=Resources(disk_bytes=16 * MIB, memory_bytes=256 * MIB, pids=100)) as guest:
        full = await guest.sh("dd if=/dev/zero of=/home/user/fill bs=1M count=64; sync")
        assert b"No space left" in full.stderr or b"quota exceeded" in full.stderr
        with pytest.raises(SandboxDiskFullError):
            await guest.service.write_file(guest.sandbox_id, "/home/user/more", b"x" * 8 * MIB)
        usage = (await guest.service.statistics(guest.sandbox_id)).writable
        assert usage is not None
        assert usage.used_bytes <= 20 * MIB
        # Reading, running and removing still work, and then there is room again.
        assert (await guest.sh("rm /home/user/fill && echo gone")).stdout == b"gone\n"
        await guest.service.rollback(guest.sandbox_id)
        await guest.service.write_file(guest.sandbox_id, "/home/user/more", b"x" * MIB)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A state directory on a file system of its own of 700 MiB."""
    top = Path(tempfile.mkdtemp(prefix="dsec-"))
    disk, mounted = top / "disk.img", top / "m"
    mounted.mkdir()
    with disk.open("wb") as file:
        file.truncate(700 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(disk)], check=True)
    subprocess.run(["mount", "-o", "loop", str(disk), str(mounted)], check=True)
    state = mounted / "state"
    state.mkdir(mode=0o700)
    try:
        yield state
    finally:
        down = [sys.executable, "-m", "dsec", "--state-dir", str(state), "down", "--destroy"]
        subprocess.run(down, capture_output=True, check=False, timeout=120)
        unmount_when_free(mounted)
        disk.unlink()
        mounted.rmdir()
        top.rmdir()


def _import(state: Path, root: Path) -> None:
    command = [sys.executable, "-m", "dsec", "--state-dir", str(state), "image", "import", str(root), "--name", "guest"]
    subprocess.run(command, capture_output=True, check=True, timeout=120)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * MIB)


async def _create_many(service: HttpService) -> None:
    for _ in range(200):
        await service.create(SandboxSpec(image="guest", metadata={"fill": "x" * 1000}))


async def test_full_disk_of_the_host_is_said_and_survived(small_disk: Path, tmp_path: Path) -> None:
    _import(small_disk, make_root(tmp_path / "root"))
    node = NodeProcess(small_disk, {"DSEC_MINIMUM_FREE_DISK_BYTES": "0"})
    node.start()
    filler = small_disk.parent / "filler"
    try:
        async with node.service() as service:
            box = (await service.create(SandboxSpec(image="guest"))).sandbox_id
            _fill(filler)
            with pytest.raises(HostDiskFullError):
                await _create_many(service)
            # What lives goes on, as far as it needs no room; and all is as it was once there is room.
            assert (await service.run(box, CommandRequest(argv=("true",)))).status.exit_code == 0
            filler.unlink()
            assert (await service.inspect(box)).state is SandboxState.READY
            for info in await service.list():
                await service.remove(info.sandbox_id)
            other = await service.create(SandboxSpec(image="guest"))
            await service.remove(other.sandbox_id)
    finally:
        filler.unlink(missing_ok=True)
        node.stop()


async def test_host_below_its_reserve_admits_nobody(small_disk: Path, tmp_path: Path) -> None:
    _import(small_disk, make_root(tmp_path / "root"))
    node = NodeProcess(small_disk)
    node.start()
    try:
        async with node.service() as service:
            with pytest.raises(HostDiskFullError):
                await service.create(SandboxSpec(image="guest"))
            assert await service.list() == []
    finally:
        node.stop()


async def test_two_hundred_thousand_files_are_listed_up_to_the_limit_and_removed_fast(make_guest) -> None:  # type: ignore[no-untyped-def]
    async with make_guest(resources=Resources(disk_bytes=1 << 30, memory_bytes=512 * MIB, pids=100)) as guest:
        source = """
import os
os.makedirs("/home/user/many")
fd = os.open("/home/user/many", os.O_RDONLY)
for number in range(200_000):
    os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY, dir_fd=fd))
print(1)
"""
        assert await guest.ask(source, timeout_s=120) == 1
        with pytest.raises(LimitExceededError):
            await guest.service.list_files(guest.sandbox_id, "/home/user/many")
        began = anyio.current_time()
        await guest.service.rollback(guest.sandbox_id)
        took_s = anyio.current_time() - began
        assert await guest.service.list_files(guest.sandbox_id, "/home/user") == []
        assert took_s < PATIENCE_S


async def test_sparse_file_of_exabytes_costs_nobody_memory(node: NodeProcess, guest: Guest) -> None:
    """It is read as long as somebody wants it, and a download of it is what the reader makes of it."""
    size = await guest.ask("""
import os
fd = os.open("/home/user/sparse", os.O_CREAT | os.O_RDWR)
size = 1 << 62
while True:
    try:
        os.truncate(fd, size)
        break
    except OSError:
        size >>= 1
print(os.fstat(fd).st_size)
""")
    assert size >= 1 << 40
    service, box = guest.service, guest.sandbox_id
    before = resident_bytes(node.pid)
    assert (await service.stat_file(box, "/home/user/sparse")).size_bytes == size
    for chunks in (service.read_file(box, "/home/user/sparse"), service.download(box, "/home/user")):
        read = 0
        try:
            async for chunk in chunks:
                read += len(chunk)
                if read > 32 * MIB:
                    break
        except GuestError:
            pass  # A bound on what may be downloaded is an answer as well.
        await chunks.aclose()  # type: ignore[attr-defined]
    assert resident_bytes(node.pid) - before < 100 * MIB


# -- processes and memory --------------------------------------------------------------------------------------------


async def wait_processes(guest: Guest, enough: Callable[[int], bool]) -> None:
    """Wait until as many processes run as wanted; nobody announces that."""
    ends_at = anyio.current_time() + PATIENCE_S
    while not enough((await guest.service.statistics(guest.sandbox_id)).processes or 0):
        assert anyio.current_time() < ends_at
        await anyio.sleep(0.02)


async def _run_many(guest: Guest) -> None:
    for _ in range(50):
        await guest.run("true")


async def test_fork_bomb_is_contained_named_and_ended(guest: Guest) -> None:
    bomb = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
    request = CommandRequest(argv=("python3", "-c", bomb), timeout_s=None)
    await guest.service.start_process(guest.sandbox_id, request)
    await wait_processes(guest, lambda count: count >= 100)
    with pytest.raises(SandboxProcessLimitError):
        await _run_many(guest)
    await guest.service.end_processes(guest.sandbox_id)
    assert (await guest.sh("echo alive")).stdout == b"alive\n"


async def test_command_that_cannot_be_forked_never_runs_on_the_host(guest: Guest, tmp_path: Path) -> None:
    """crun 1.8 goes on in its own process, in the host's name spaces, when it cannot fork: execve is not reached."""
    source = """
import os, time
for _ in range(200):
    try:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
    except OSError:
        pass
time.sleep(60)
"""
    request = CommandRequest(argv=("python3", "-c", source), timeout_s=None)
    await guest.service.start_process(guest.sandbox_id, request)
    await wait_processes(guest, lambda count: count >= 99)
    for _ in range(30):
        with contextlib.suppress(SandboxProcessLimitError):
            await guest.run("touch", str(tmp_path / "reached"), cwd=str(tmp_path))
        with contextlib.suppress(SandboxProcessLimitError):
            await guest.run("touch", str(tmp_path / "reached"), cwd="/")
    assert list(tmp_path.iterdir()) == []


async def test_zombies_and_detached_children_are_reaped(guest: Guest) -> None:
    source = """
import os, time
for _ in range(2000):
    while True:
        try:
            pid = os.fork()
            break
        except BlockingIOError:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                time.sleep(0.01)  # All that are left are init's, which takes its time on a loaded host.
    if pid == 0:
        try:
            if os.fork() == 0:
                os.setsid()
        finally:
            os._exit(0)
print(1)
"""
    assert await guest.ask(source, timeout_s=200) == 1
    await wait_processes(guest, lambda count: count <= 5)


async def test_memory_hog_is_killed_and_said_to_be(guest: Guest) -> None:
    result = await guest.run("python3", "-c", "x = []\nwhile True: x.append(bytearray(10**6))", timeout_s=60)
    assert (result.status.signal, result.status.oom_killed) == (9, True)
    filled = await guest.sh("head -c 500000000 /dev/zero | tail -c 400000000 >/dev/null; echo $?", timeout_s=60)
    assert filled.status.oom_killed or filled.stdout != b"0\n"
    assert (await guest.sh("echo alive")).stdout == b"alive\n"


_HOARD = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
def take(number):
    if sys.argv[1] == "inotify":
        return libc.inotify_init1(0)
    return libc.mq_open(b"/%d" % number, os.O_CREAT | os.O_RDWR, 0o600, None)
count = 0
while count < 100000 and take(count) >= 0:
    count += 1
print(count, flush=True)
time.sleep(60 * (len(sys.argv) > 2))
"""
"""Takes all inotify instances, or all bytes of POSIX message queues, that its user may have, and holds them."""


@pytest.mark.parametrize("what", ["inotify", "mqueue"])
async def test_what_is_counted_for_each_user_is_counted_for_each_sandbox(
    service: HttpService, guest: Guest, what: str
) -> None:
    hoarding = CommandRequest(argv=("python3", "-c", _HOARD, what, "hold"), timeout_s=60)
    taking = CommandRequest(argv=("python3", "-c", _HOARD, what), timeout_s=60)
    async with service.stream(guest.sandbox_id, hoarding) as stream:
        first = await anext(stream)
        assert isinstance(first, OutputEvent)
        assert int(first.data) > 0
        more = await service.run("sbx-bystander", taking)
        assert int(more.stdout) == int(first.data)


async def test_watches_of_the_host_do_not_run_out_when_a_guests_do(service: HttpService, guest: Guest) -> None:
    request = CommandRequest(argv=("python3", "-c", _HOARD, "inotify", "hold"), timeout_s=60)
    async with service.stream(guest.sandbox_id, request) as stream:
        assert isinstance(await anext(stream), OutputEvent)
        async with service.watch_files("sbx-bystander", "/home/user") as changes:
            await service.write_file("sbx-bystander", "/home/user/seen", b"x")
            with anyio.fail_after(PATIENCE_S):
                assert (await anext(changes)).path
    await service.remove_file("sbx-bystander", "/home/user/seen")


# -- output ----------------------------------------------------------------------------------------------------------


async def test_endless_output_is_cut_with_an_exact_count(node: NodeProcess, guest: Guest) -> None:
    before = resident_bytes(node.pid)
    exact = await guest.sh("head -c 40000000 /dev/zero; head -c 3000000 /dev/zero >&2", output_limit_bytes=100_000)
    assert (len(exact.stdout), exact.stdout_dropped_bytes) == (100_000, 39_900_000)
    assert (len(exact.stderr), exact.stderr_dropped_bytes) == (100_000, 2_900_000)
    for timeout_s in (1.0, 10.0, 60.0):  # On a loaded host it may not have begun to write.
        endless = await guest.sh("yes", timeout_s=timeout_s, output_limit_bytes=100_000)
        assert endless.status.timed_out
        if endless.stdout_dropped_bytes:
            break
    assert len(endless.stdout) == 100_000
    assert endless.stdout_dropped_bytes > 0
    assert resident_bytes(node.pid) - before < 64 * MIB


async def test_output_nobody_reads_stops_its_writer(node: NodeProcess, guest: Guest) -> None:
    before = resident_bytes(node.pid)
    request = CommandRequest(argv=("sh", "-c", "yes"), timeout_s=None)
    async with guest.service.stream(guest.sandbox_id, request) as stream:
        assert isinstance(await anext(stream), OutputEvent)
        used, before_s, ends_at = -1.0, -2.0, anyio.current_time() + PATIENCE_S
        while used - before_s > 0.01:
            assert anyio.current_time() < ends_at, "it goes on writing"
            await anyio.sleep(0.5)
            before_s, used = used, (await guest.service.statistics(guest.sandbox_id)).cpu_s or 0.0
        assert resident_bytes(node.pid) - before < 64 * MIB


async def test_background_output_is_bounded_on_disk_and_in_memory(node: NodeProcess, guest: Guest) -> None:
    before = resident_bytes(node.pid)
    process_id = await guest.background("yes", output_limit_bytes=MIB)
    with anyio.fail_after(PATIENCE_S):
        while True:
            (info,) = await guest.service.list_processes(guest.sandbox_id)
            if info.stdout_bytes > 50 * MIB:
                break
            await anyio.sleep(0.05)
    run_directory = Path("/run/dsec") / (node.state_dir / "node.id").read_text().strip()
    assert size_on_disk(node.state_dir / "spool") < 4 * MIB
    assert size_on_disk(run_directory) < 8 * MIB
    assert resident_bytes(node.pid) - before < 64 * MIB
    await guest.service.signal_process(guest.sandbox_id, process_id, 9)
    result = await guest.service.wait_process(guest.sandbox_id, process_id, timeout_s=PATIENCE_S)
    (info,) = await guest.service.list_processes(guest.sandbox_id)
    assert len(result.stdout) + result.stdout_dropped_bytes == info.stdout_bytes
