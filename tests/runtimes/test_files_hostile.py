"""A guest that wants to lead the host's hands elsewhere: real races, with a canary outside of the root.

Each race runs a real process that swaps a directory for a link to the host's canary as fast as it can, while the
operation is repeated. Errors are allowed; touching the canary is not, and some operations must succeed.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import (
    ConflictError,
    DsecError,
    InvalidRequestError,
    LimitExceededError,
    PathNotFoundError,
    PermissionDeniedError,
    UnsafeArchiveError,
    UnsupportedFileError,
)
from dsec.linux import mounts, syscalls
from dsec.linux.identity import file_identity
from dsec.runtimes.container.access import OPERATIONS_PER_SANDBOX
from dsec.runtimes.container.file_errors import file_error
from dsec.runtimes.container.files import ContainerFiles
from dsec.runtimes.container.root import RootHandle
from dsec.runtimes.container.users import ROOT
from dsec.testing.files_suite import archive_of, make_archive, member, read_all, read_file, upload, write_file
from dsec.testing.overlay_root import guest_repeating, overlay_root, run_as_guest

pytestmark = [pytest.mark.anyio, pytest.mark.root]

FIRST = 0x30_0000
ROUNDS = 600


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    lower = tmp_path / "lower"
    (lower / "tmp").mkdir(parents=True)
    (lower / "tmp").chmod(0o1777)
    (tmp_path / "sandbox").mkdir()
    with overlay_root(tmp_path / "sandbox", first_host_id=FIRST, lower=lower) as target:
        yield target


@pytest.fixture
def files(root: Path) -> Iterator[ContainerFiles]:
    handle = RootHandle(os.open(root, os.O_PATH | os.O_DIRECTORY))
    made = ContainerFiles(handle, FIRST, anyio.CapacityLimiter(8))
    yield made
    made.close()


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """A directory of the host that everybody could change; fails the test when somebody did."""
    directory = tmp_path / "canary"
    (directory / "sub").mkdir(parents=True)
    (directory / "f").write_bytes(b"of the host")
    (directory / "sub/f").write_bytes(b"of the host")
    for path in (directory, directory / "sub", directory / "f", directory / "sub/f"):
        path.chmod(0o777)
    before = _snapshot(directory)
    yield directory
    assert _snapshot(directory) == before


def _snapshot(directory: Path) -> list[tuple[str, int, int, int, bytes]]:
    found = []
    for path in sorted(directory.rglob("*")):
        status = path.stat()
        content = path.read_bytes() if path.is_file() else b""
        found.append((str(path), status.st_mode, status.st_uid, status.st_mtime_ns, content))
    return found


def as_guest_root() -> AbstractContextManager[None]:
    return file_identity(FIRST, FIRST, privileged=True)


RENAME_EXCHANGE = 2


def swapping(root: Path, canary: Path, directory: str = "/tmp/d") -> AbstractContextManager[None]:
    """Swap a path between a directory and a link to the canary (of both kinds), without end."""
    targets = [str(canary), "../" * (len(root.parts) + 8) + str(canary).lstrip("/")]
    other = "/tmp/other"

    def work() -> None:
        for target in targets:
            try:
                syscalls.libc_call("renameat2", -100, directory.encode(), -100, other.encode(), RENAME_EXCHANGE)
            except FileNotFoundError:
                os.makedirs(f"{directory}/sub", exist_ok=True)
            if not os.path.islink(other) and not os.path.islink(directory):
                if os.path.lexists(other):
                    os.rename(other, f"/tmp/aside-{time.monotonic_ns()}")
                os.symlink(target, other)

    return guest_repeating(root, FIRST, work)


async def repeat(operation: Callable[[int], Awaitable[object]]) -> int:
    """Repeat an operation, let it fail with typed errors, and return how often it succeeded."""
    done = 0
    with anyio.fail_after(60):
        for number in range(ROUNDS):
            try:
                await operation(number)
            except DsecError:
                continue
            done += 1
    return done


def test_the_trap_works_for_who_walks_in_by_path(root: Path, canary: Path) -> None:
    with as_guest_root():
        os.symlink(canary, root / "tmp/d")
    assert (root / "tmp/d/f").read_bytes() == b"of the host"


@pytest.mark.slow
async def test_writing_is_not_redirected_by_a_swap(files: ContainerFiles, root: Path, canary: Path) -> None:
    with swapping(root, canary):
        assert await repeat(lambda number: write_file(files, f"/tmp/d/sub/{number % 3}", b"ours")) > 0


@pytest.mark.slow
async def test_removing_is_not_redirected_by_a_swap(files: ContainerFiles, root: Path, canary: Path) -> None:
    async def fill_and_remove(number: int) -> None:
        await write_file(files, "/tmp/outer/x/f", b"")
        await files.move("/tmp/d", f"/tmp/outer/{number}")
        await files.remove("/tmp/outer", recursive=True)

    with swapping(root, canary):
        await repeat(fill_and_remove)
        assert await repeat(lambda _: files.remove("/tmp/d", recursive=True)) > 0


@pytest.mark.slow
async def test_removing_is_not_redirected_by_a_swap_below(files: ContainerFiles, root: Path, canary: Path) -> None:
    with swapping(root, canary, "/tmp/tree/a"):
        assert await repeat(lambda _: files.remove("/tmp/tree", recursive=True)) > 0


@pytest.mark.slow
async def test_uploading_is_not_redirected_by_a_swap(files: ContainerFiles, root: Path, canary: Path) -> None:
    archive = make_archive([(member(f"d/sub/{name}"), b"ours") for name in ("f", "g", "h")])
    with swapping(root, canary):
        assert await repeat(lambda _: upload(files, "/tmp", archive)) > 0


@pytest.mark.slow
async def test_reading_is_not_redirected_by_a_swap(files: ContainerFiles, root: Path, canary: Path) -> None:
    async def read(_: int) -> None:
        assert b"of the host" not in await read_all(await files.download("/tmp"))
        assert b"of the host" not in await read_file(files, "/tmp/d/f")

    async def look(_: int) -> None:
        assert "f" not in [info.name for info in await files.list("/tmp/d", depth=3)]

    with swapping(root, canary):
        await repeat(read)
        assert await repeat(look) > 0


async def test_links_out_lead_nowhere(files: ContainerFiles, root: Path, canary: Path) -> None:
    up = "../" * 40
    with as_guest_root():
        os.symlink(canary, root / "tmp/absolute")
        os.symlink(up + str(canary).lstrip("/"), root / "tmp/relative")
    for link in ("/tmp/absolute", "/tmp/relative"):
        for refused in (files.open_read(f"{link}/f"), files.list(link), files.download(link), files.watch(link)):
            with pytest.raises(PathNotFoundError):
                await refused
    for path in (f"{up}{canary}/f", f"/tmp/../../../..{canary}/f"):
        with pytest.raises(PathNotFoundError):
            await files.open_read(path)
    with pytest.raises(PathNotFoundError):
        await write_file(files, "/tmp/absolute/new", b"dangling")
    await files.make_directory(str(canary))
    await write_file(files, "/tmp/absolute/new", b"inside")
    assert (Path(f"{root}{canary}") / "new").read_bytes() == b"inside"


async def test_an_archive_cannot_write_through_its_own_links(files: ContainerFiles, canary: Path) -> None:
    archive = make_archive([(member("out", b"2", link=str(canary)), b""), (member("out/f"), b"overwritten")])
    with pytest.raises(UnsafeArchiveError, match="out/f"):
        await upload(files, "/tmp/d", archive)


async def test_an_archive_replaces_links_and_does_not_write_through_them(
    files: ContainerFiles, root: Path, canary: Path
) -> None:
    await files.make_directory("/tmp/d")
    await write_file(files, "/tmp/target", b"kept")
    with as_guest_root():
        os.symlink(canary / "f", root / "tmp/d/host")
        os.symlink("/tmp/target", root / "tmp/d/own")
    await upload(files, "/tmp/d", make_archive([(member("host"), b"new"), (member("own"), b"new")]))
    assert await read_file(files, "/tmp/d/host") == await read_file(files, "/tmp/d/own") == b"new"
    assert await read_file(files, "/tmp/target") == b"kept"


async def test_hard_links_of_an_archive_stay_in_it(files: ContainerFiles) -> None:
    await write_file(files, "/secret", b"s")
    for link in ("/secret", "../../secret", "missing/../../secret"):
        with pytest.raises(UnsafeArchiveError):
            await upload(files, "/tmp/d", make_archive([(member("h", b"1", link=link), b"")]))
    with pytest.raises(UnsafeArchiveError):
        await upload(files, "/tmp/d", make_archive([(member("h", b"1", link="h"), b"")]))


async def test_interfaces_of_the_kernel_are_no_files(files: ContainerFiles, root: Path, tmp_path: Path) -> None:
    await files.make_directory("/proc")
    await write_file(files, "/proc2", b"")
    mounts.mount("proc", root / "proc", "proc")
    try:
        with as_guest_root():
            os.symlink("/proc/sys/kernel/core_pattern", root / "tmp/innocent")
        before = Path("/proc/sys/kernel/core_pattern").read_bytes()
        for path in ("/tmp/innocent", "/proc/sys/kernel/core_pattern", "/proc/version"):
            for refused in (files.open_read(path), files.open_write(path), files.download(path)):
                with pytest.raises(UnsupportedFileError):
                    await refused
        for path in (f"/proc/self/root{tmp_path}/canary", "/proc/1/root/etc/passwd", "/proc/self/cwd/x"):
            for refused in (files.open_read(path), files.open_write(path), files.list(path)):
                with pytest.raises((InvalidRequestError, PermissionDeniedError)):
                    await refused
        with archive_of(await read_all(await files.download("/"))) as archive:
            assert archive.getmember(".").pax_headers["DSEC.left_out"] == '["proc"]'
        with pytest.raises(ConflictError):
            await files.remove("/proc", recursive=True)
        assert Path("/proc/sys/kernel/core_pattern").read_bytes() == before
    finally:
        mounts.unmount(root / "proc", detach=True)


def _dig(levels: int, name: str = "d") -> Callable[[], None]:
    def work() -> None:
        os.chdir("/tmp")
        for _ in range(levels):
            os.mkdir(name)
            os.chdir(name)
        os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY))

    return work


async def test_a_directory_deeper_than_a_path_is_long(files: ContainerFiles, root: Path) -> None:
    run_as_guest(root, FIRST, _dig(100, "n" * 100))
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(LimitExceededError):
        await files.list("/tmp", depth=10_000)
    with archive_of(await read_all(await files.download("/tmp"))) as archive:
        assert archive.getmember(".").pax_headers["DSEC.left_out_count"] == "1"
        assert max(len(name) for name in archive.getnames()) <= 4096
    await files.remove("/tmp/" + "n" * 100, recursive=True)
    assert await files.list("/tmp") == ()
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 8


@pytest.mark.slow
async def test_ten_thousand_levels_are_removed(files: ContainerFiles, root: Path) -> None:
    run_as_guest(root, FIRST, _dig(10_000))
    await files.remove("/tmp/d", recursive=True)
    assert await files.list("/tmp") == ()


@pytest.mark.slow
async def test_fifty_thousand_files_pass_a_limit_and_are_removed(files: ContainerFiles, root: Path) -> None:
    def work() -> None:
        os.mkdir("/tmp/many")
        for number in range(50_000):
            os.close(os.open(f"/tmp/many/{number}", os.O_CREAT | os.O_WRONLY))

    run_as_guest(root, FIRST, work)
    with pytest.raises(LimitExceededError):
        await files.list("/tmp/many")
    await files.remove("/tmp/many", recursive=True)
    assert await files.list("/tmp") == ()


@pytest.mark.slow
async def test_a_deadline_ends_a_removal_that_never_would(files: ContainerFiles, root: Path) -> None:
    def work() -> None:
        os.makedirs("/tmp/many", exist_ok=True)
        for number in range(100_000):
            os.close(os.open(f"/tmp/many/{number}", os.O_CREAT | os.O_WRONLY))

    with guest_repeating(root, FIRST, work), anyio.fail_after(30):
        with anyio.move_on_after(1):
            while True:
                try:
                    await files.remove("/tmp/many", recursive=True)
                except DsecError:
                    await anyio.lowlevel.checkpoint()
    if await files.list("/tmp"):  # The last removal may have met its end.
        await files.remove("/tmp/many", recursive=True)
    assert await files.list("/tmp") == ()


async def test_a_guest_that_is_slow_does_not_use_more_than_its_threads(files: ContainerFiles, root: Path) -> None:
    """The shared threads stay free for others."""
    limiter = files._access._limiter
    busy: list[int] = []
    release = [False]

    def blocked(_: int) -> None:
        busy.append(limiter.borrowed_tokens)
        while not release[0]:
            os.sched_yield()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for _ in range(12):
                group.start_soon(files._access.run, ROOT, b"/", blocked)
            while len(busy) < OPERATIONS_PER_SANDBOX:
                await anyio.lowlevel.checkpoint()
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            seen = (len(busy), max(busy))
            release[0] = True
    assert seen == (OPERATIONS_PER_SANDBOX, OPERATIONS_PER_SANDBOX)
    assert len(busy) == 12


async def test_a_special_file_swapped_in_is_never_opened(files: ContainerFiles, root: Path) -> None:
    def work() -> None:
        os.mkfifo("/tmp/fifo")
        os.close(os.open("/tmp/file", os.O_CREAT | os.O_WRONLY))
        os.rename("/tmp/fifo", "/tmp/x")
        os.rename("/tmp/file", "/tmp/x")

    with guest_repeating(root, FIRST, work):
        assert await repeat(lambda _: read_file(files, "/tmp/x")) >= 0


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT, 9999])
def test_every_errno_has_a_typed_error(code: int) -> None:
    assert isinstance(file_error(OSError(code, "x"), "/p"), DsecError)
