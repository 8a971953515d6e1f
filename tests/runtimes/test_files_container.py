"""`ContainerFiles` on a real overlay over ID-mapped layers: the conformance suite, and what only a real root has."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import stat
import tarfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import (
    ConflictError,
    DsecError,
    InvalidRequestError,
    InvalidStateError,
    LimitExceededError,
    SandboxDiskFullError,
    SandboxExitedError,
    UnsupportedFileError,
)
from dsec.linux.identity import file_identity
from dsec.linux.pipes import Pipe
from dsec.model.files import FileChangeKind, FileKind
from dsec.runtimes.container.file_errors import file_error
from dsec.runtimes.container.files import ContainerFiles
from dsec.runtimes.container.root import RootHandle
from dsec.runtimes.container.tarpack import CHANGED, LEFT_OUT
from dsec.runtimes.port import Reader, WriteMode
from dsec.testing.files_suite import (
    FilesSuite,
    archive_of,
    drain_all,
    fill_all,
    make_archive,
    member,
    read_all,
    read_file,
    upload,
    write_file,
)
from dsec.testing.overlay_root import overlay_root, run_as_guest

pytestmark = [pytest.mark.anyio, pytest.mark.root]

FIRST = 0x20_0000
PASSWD = "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/bash\n"
GROUP = "root:x:0:\nuser:x:1000:\nstaff:x:50:user\n"


def make_lower(directory: Path) -> Path:
    """Make a layer with users, a lower file and a lower directory."""
    lower = directory / "lower"
    for name in ("etc", "home/user", "tmp", "image/inner"):
        (lower / name).mkdir(parents=True)
    (lower / "etc/passwd").write_text(PASSWD)
    (lower / "etc/group").write_text(GROUP)
    (lower / "image/file").write_bytes(b"from the image")
    (lower / "image/inner/file").write_bytes(b"inner")
    os.chown(lower / "home/user", 1000, 1000)
    (lower / "tmp").chmod(0o1777)
    return lower


def open_files(root: Path, *, disk_bytes: int | None = None) -> ContainerFiles:
    handle = RootHandle(os.open(root, os.O_PATH | os.O_DIRECTORY))
    return ContainerFiles(handle, FIRST, anyio.CapacityLimiter(8), disk_bytes=disk_bytes)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with overlay_root(tmp_path, first_host_id=FIRST, lower=make_lower(tmp_path)) as target:
        yield target


@pytest.fixture
def files(root: Path) -> Iterator[ContainerFiles]:
    made = open_files(root)
    yield made
    made.close()


def as_guest_root() -> AbstractContextManager[None]:
    """Prepare things as the sandbox's root would (the host's has no id in the mapped layers). Await nothing inside."""
    return file_identity(FIRST, FIRST, privileged=True)


class TestContainerFiles(FilesSuite):
    pass


async def test_files_belong_to_the_users_as_seen_from_inside(files: ContainerFiles, root: Path) -> None:
    await write_file(files, "/tmp/of-root", b"")
    await write_file(files, "/home/user/of-user", b"", user="user")
    assert os.stat(root / "tmp/of-root").st_uid == FIRST
    assert os.stat(root / "home/user/of-user").st_uid == FIRST + 1000

    def check() -> None:
        with open("/home/user/of-user", "ab") as file:
            file.write(b"the guest can")

    run_as_guest(root, FIRST + 1000, check)
    assert await read_file(files, "/home/user/of-user") == b"the guest can"


async def test_supplementary_groups_count(files: ContainerFiles) -> None:
    await files.make_directory("/shared")
    writer = await files.open_write("/shared/f", permissions=0o640)
    await writer.commit()
    with files._root.hold() as fd:
        os.chown("shared/f", FIRST, FIRST + 50, dir_fd=fd)
    assert await read_file(files, "/shared/f", user="user") == b""


async def test_replacing_keeps_mode_and_owner(files: ContainerFiles) -> None:
    writer = await files.open_write("/home/user/run", permissions=0o750, user="user")
    await writer.commit()
    await write_file(files, "/home/user/run", b"new")
    info = await files.stat("/home/user/run")
    assert (info.mode, info.uid, info.gid) == (0o750, 1000, 1000)


async def test_files_of_the_image_are_replaced_appended_and_removed(files: ContainerFiles) -> None:
    await write_file(files, "/image/file", b" more", mode=WriteMode.APPEND)
    assert await read_file(files, "/image/file") == b"from the image more"
    await write_file(files, "/image/inner/file", b"new")
    assert await read_file(files, "/image/inner/file") == b"new"
    await files.remove("/image", recursive=True)
    assert "image" not in [info.name for info in await files.list("/")]


async def test_writing_follows_a_link_at_the_end_inside_the_root(files: ContainerFiles, root: Path) -> None:
    with as_guest_root():
        os.symlink("/tmp/real", root / "tmp/link")
        os.symlink("link", root / "tmp/chain")
    await write_file(files, "/tmp/chain", b"through")
    assert (await files.stat("/tmp/chain")).kind is FileKind.SYMLINK
    assert (await files.stat("/tmp/chain")).target == "link"
    assert await read_file(files, "/tmp/real") == b"through"


async def test_a_circle_of_links_is_refused(files: ContainerFiles, root: Path) -> None:
    with as_guest_root():
        os.symlink("b", root / "tmp/a")
        os.symlink("a", root / "tmp/b")
    for refused in (files.open_read("/tmp/a"), files.open_write("/tmp/a")):
        with pytest.raises(InvalidRequestError):
            await refused


async def test_nothing_is_left_of_a_write_that_was_never_committed(files: ContainerFiles, root: Path) -> None:
    writer = await files.open_write("/tmp/new/dir/f")
    await writer.write(b"x" * (2 << 20))
    assert os.listdir(root / "tmp/new/dir") == []
    await writer.abort()
    assert os.listdir(root / "tmp") == []


async def test_special_files_are_refused_and_never_opened(files: ContainerFiles, root: Path) -> None:
    with as_guest_root():
        os.mkfifo(root / "tmp/fifo")
        os.mknod(root / "tmp/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        with socket.socket(socket.AF_UNIX) as server:
            os.chdir(root / "tmp")
            server.bind("socket")
            os.chdir("/")
    with anyio.fail_after(30):
        for name in ("fifo", "null", "socket"):
            path = f"/tmp/{name}"
            assert (await files.stat(path)).kind is FileKind.OTHER
            for refused in (
                files.open_read(path),
                files.open_write(path),
                files.open_write(path, mode=WriteMode.APPEND),
                files.download(path),
            ):
                with pytest.raises(UnsupportedFileError):
                    await refused
    await write_file(files, "/tmp/file", b"1")
    with archive_of(await read_all(await files.download("/tmp"))) as archive:
        assert sorted(archive.getnames()) == [".", "file"]
        left_out = archive.getmember(".").pax_headers[LEFT_OUT]
    assert sorted(json.loads(left_out)) == ["fifo", "null", "socket"]


async def test_a_file_under_lease_is_refused_at_once(files: ContainerFiles, root: Path) -> None:
    with as_guest_root():
        (root / "tmp/leased").write_bytes(b"x")
    fd = os.open(root / "tmp/leased", os.O_RDWR)
    previous = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with anyio.fail_after(30), pytest.raises(ConflictError):
            await files.open_read("/tmp/leased")
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, previous)


async def test_hard_links_survive_a_round_trip(files: ContainerFiles, root: Path) -> None:
    await write_file(files, "/tmp/d/a", b"shared")
    with as_guest_root():
        os.link(root / "tmp/d/a", root / "tmp/d/b")
    await upload(files, "/tmp/e", await read_all(await files.download("/tmp/d")))
    first, second = os.stat(root / "tmp/e/a"), os.stat(root / "tmp/e/b")
    assert first.st_ino == second.st_ino
    assert await read_file(files, "/tmp/e/b") == b"shared"


async def test_names_that_are_not_utf8_survive_a_round_trip(files: ContainerFiles) -> None:
    await write_file(files, "/tmp/d/\udcff\udcfe/caf\udce9", b"latin")
    await upload(files, "/tmp/e", await read_all(await files.download("/tmp/d"), limit=700), piece=77)
    assert await read_file(files, "/tmp/e/\udcff\udcfe/caf\udce9") == b"latin"


async def test_root_keeps_the_owners_of_an_archive_and_drops_set_user_id(files: ContainerFiles) -> None:
    archive = make_archive([(member("f", uid=1000, mode=0o4755), b""), (member("g", uid=70_000), b"")])
    await upload(files, "/tmp/d", archive)
    info = await files.stat("/tmp/d/f")
    assert (info.uid, info.mode) == (1000, 0o755)
    assert (await files.stat("/tmp/d/g")).uid == 0


async def test_closed_directories_of_an_archive_are_filled_first(files: ContainerFiles) -> None:
    archive = make_archive([(member("d", tarfile.DIRTYPE, mode=0o500), b""), (member("d/f"), b"x")])
    await upload(files, "/home/user/x", archive, user="user")
    assert (await files.stat("/home/user/x/d")).mode == 0o500
    assert await read_file(files, "/home/user/x/d/f", user="user") == b"x"


async def test_an_upload_does_not_change_directories_that_exist(files: ContainerFiles) -> None:
    archive = make_archive([(member("tmp", tarfile.DIRTYPE, mode=0o700, uid=7), b""), (member("tmp/f"), b"")])
    await upload(files, "/", archive)
    info = await files.stat("/tmp")
    assert (info.mode, info.uid) == (0o1777, 0)


async def test_an_upload_that_is_cut_off_is_an_error_and_leaves_no_half_file(files: ContainerFiles) -> None:
    archive = make_archive([(member("a"), b"1"), (member("b"), b"x" * 100_000)])
    with pytest.raises(InvalidRequestError, match="cut off"):
        await upload(files, "/tmp/d", archive[:50_000])
    assert [info.name for info in await files.list("/tmp/d")] == ["a"]


@pytest.mark.parametrize("take_all", [read_all, fill_all])
async def test_a_file_that_shrinks_is_filled_and_named(
    files: ContainerFiles, root: Path, take_all: Callable[[Reader], Awaitable[bytes]]
) -> None:
    with as_guest_root():
        (root / "tmp/d").mkdir()
        (root / "tmp/d/f").write_bytes(b"x" * (16 << 20))
    reader = await files.download("/tmp/d")
    start = await reader.read(1 << 20)
    os.truncate(root / "tmp/d/f", 100)
    with archive_of(start + await take_all(reader)) as archive:
        assert archive.getmember("f").size == 16 << 20
        assert archive.extractfile("f").read().endswith(bytes(1 << 20))  # type: ignore[union-attr]
        assert json.loads(archive.getmember(".").pax_headers[CHANGED]) == ["f"]


async def test_a_file_that_shrinks_while_it_is_moved_ends_where_it_ends(files: ContainerFiles, root: Path) -> None:
    with as_guest_root():
        (root / "tmp/f").write_bytes(b"x" * (4 << 20))
    reader = await files.open_read("/tmp/f")
    start = await reader.read(65_536)
    with Pipe() as pipe:
        start += pipe.take(await reader.fill(pipe))
    os.truncate(root / "tmp/f", len(start) + 10)
    assert await fill_all(reader) == b"x" * 10


async def test_an_archive_that_is_cut_off_in_a_pipe_leaves_no_half_file(files: ContainerFiles) -> None:
    archive = make_archive([(member("a"), b"1"), (member("b"), b"x" * 1_000_000)])
    with pytest.raises(InvalidRequestError, match="cut off"):
        await drain_all(await files.upload("/tmp/d"), archive[:500_000])
    assert [info.name for info in await files.list("/tmp/d")] == ["a"]


@pytest.mark.parametrize("take_all", [read_all, fill_all])
async def test_a_file_that_grows_is_cut_and_named(
    files: ContainerFiles, root: Path, take_all: Callable[[Reader], Awaitable[bytes]]
) -> None:
    with as_guest_root():
        (root / "tmp/d").mkdir()
        (root / "tmp/d/f").write_bytes(b"x" * (16 << 20))
    reader = await files.download("/tmp/d")
    start = await reader.read(1 << 20)
    with open(root / "tmp/d/f", "ab") as file:
        file.write(b"more")
    with archive_of(start + await take_all(reader)) as archive:
        assert archive.extractfile("f").read() == b"x" * (16 << 20)  # type: ignore[union-attr]
        assert json.loads(archive.getmember(".").pax_headers[CHANGED]) == ["f"]


async def test_a_full_disk_names_the_quota_and_leaves_what_was_there(tmp_path: Path) -> None:
    with overlay_root(
        tmp_path, first_host_id=FIRST, lower=make_lower(tmp_path), tmpfs_options="size=4m,mode=755"
    ) as root:
        files = open_files(root, disk_bytes=4 << 20)
        await write_file(files, "/tmp/a", b"before")
        with pytest.raises(SandboxDiskFullError) as caught:
            await write_file(files, "/tmp/a", b"x" * (8 << 20))
        assert "4.0 MiB" in caught.value.detail
        assert await read_file(files, "/tmp/a") == b"before"
        with pytest.raises(SandboxDiskFullError):
            await write_file(files, "/tmp/a", b"x" * (8 << 20), mode=WriteMode.APPEND)
        assert await read_file(files, "/tmp/a") == b"before"
        with pytest.raises(SandboxDiskFullError) as caught:
            await upload(files, "/tmp/d", make_archive([(member("f"), b"x" * (8 << 20))]))
        assert "4.0 MiB" in caught.value.detail
        for mode in (WriteMode.REPLACE, WriteMode.APPEND):
            with pytest.raises(SandboxDiskFullError) as caught:
                await drain_all(await files.open_write("/tmp/a", mode=mode), b"x" * (8 << 20))
            assert "4.0 MiB" in caught.value.detail
            assert await read_file(files, "/tmp/a") == b"before"
        with pytest.raises(SandboxDiskFullError) as caught:
            await drain_all(await files.upload("/tmp/d"), make_archive([(member("f"), b"x" * (8 << 20))]))
        assert "4.0 MiB" in caught.value.detail
        await write_file(files, "/tmp/b", b"x" * (2 << 20))
        files.close()


async def test_watch_sees_what_the_guest_does(files: ContainerFiles, root: Path) -> None:
    await files.make_directory("/image/inner")
    async with await files.watch("/image", recursive=True) as events:

        def work() -> None:
            with open("/image/inner/file", "ab") as file:
                file.write(b"copied up")
            os.mkdir("/image/new")
            os.rename("/image/file", "/image/new/file")

        run_as_guest(root, FIRST, work)
        wanted = {
            (FileChangeKind.MODIFIED, "inner/file"),
            (FileChangeKind.CREATED, "new"),
            (FileChangeKind.MOVED, "file"),
            (FileChangeKind.CREATED, "new/file"),
        }
        with anyio.fail_after(60):
            async for change in events:
                wanted.discard((change.kind, change.path))
                if not wanted:
                    break


async def test_watch_of_a_removed_directory_ends(files: ContainerFiles) -> None:
    await files.make_directory("/tmp/w")
    async with await files.watch("/tmp/w") as events:
        await files.remove("/tmp/w")
        with anyio.fail_after(60):
            assert [change async for change in events] == []


async def test_closing_wakes_watchers_and_ends_everything(files: ContainerFiles) -> None:
    await write_file(files, "/tmp/a", b"x" * 200_000)
    reader = await files.open_read("/tmp/a")
    writer = await files.open_write("/tmp/a")
    events = await files.watch("/tmp")

    async def close_soon() -> None:
        await anyio.lowlevel.checkpoint()
        files.close()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(close_soon)
            with pytest.raises(SandboxExitedError):
                await anext(events)
    for refused in (reader.read(10), writer.write(b"x"), writer.commit(), files.stat("/"), files.watch("/")):
        with pytest.raises(SandboxExitedError):
            await refused
    await reader.close()
    await writer.abort()
    assert not [name for name in os.listdir("/proc/self/fd") if _leads_to(name, "/tmp/a")]


def _leads_to(name: str, path: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{name}").endswith(path)
    except FileNotFoundError:
        return False


async def test_no_descriptor_is_left_open(files: ContainerFiles, root: Path) -> None:
    with as_guest_root():
        (root / "tmp/d").mkdir()
        for number in range(50):
            (root / f"tmp/d/{number}").mkdir()
        os.mkfifo(root / "tmp/fifo")
    before = len(os.listdir("/proc/self/fd"))

    async def exercise() -> None:
        await read_all(await files.download("/tmp"))
        reader = await files.download("/tmp")
        await reader.read(10)
        await reader.close()
        await files.list("/tmp", depth=5)
        with pytest.raises(DsecError):
            await files.open_read("/tmp/fifo")
        with pytest.raises(DsecError):
            await upload(files, "/tmp/u", make_archive([(member("a/b"), b"1"), (member("../x"), b"")]))
        with pytest.raises(DsecError):
            await write_file(files, "/tmp/a/b", b"", mode=WriteMode.CREATE, user="nobody-here")
        await files.remove("/tmp/u", recursive=True)

    await exercise()
    settled = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        await exercise()
    assert len(os.listdir("/proc/self/fd")) == settled
    assert settled - before <= 4  # The event loop's own, made on first use.


async def test_a_writer_that_failed_only_takes_abort(files: ContainerFiles) -> None:
    writer = await files.open_write("/tmp/a", mode=WriteMode.CREATE)
    await write_file(files, "/tmp/a", b"")
    for _ in range(2):
        with pytest.raises(DsecError):
            await writer.commit()
    with pytest.raises(InvalidStateError):
        await writer.write(b"")
    await writer.abort()


async def test_moving_a_directory_of_the_image_says_how(files: ContainerFiles) -> None:
    # Overlays without redirect_dir answer EXDEV, as they do to mv(1), which then copies.
    with pytest.raises(ConflictError, match="across file systems") as caught:
        await files.move("/image", "/moved")
    assert "mv" in caught.value.resolution


async def test_a_wide_directory_passes_its_limit_early_and_is_removed(files: ContainerFiles, root: Path) -> None:
    with as_guest_root():
        (root / "tmp/wide").mkdir()
        for number in range(3000):
            os.close(os.open(root / f"tmp/wide/{number}", os.O_CREAT | os.O_WRONLY))
    with pytest.raises(LimitExceededError):
        await files.list("/tmp/wide", limit=1000)
    await files.remove("/tmp/wide", recursive=True)
    assert await files.list("/tmp") == ()


@pytest.mark.parametrize("code", [errno.EDQUOT, errno.ENOSPC])
def test_quota_errors_are_the_sandboxs(code: int) -> None:
    error = file_error(OSError(code, ""), b"/caf\xe9", disk="the quota is 1 GiB")
    assert isinstance(error, SandboxDiskFullError)
    assert "caf\ufffd" in error.brief
    assert "1 GiB" in error.detail


async def test_aligned_and_empty_files_do_not_end_a_download_early(files: ContainerFiles) -> None:
    for name, size in (("a", 512), ("b", 0), ("c", 1 << 20), ("d", 1), ("e", 3 << 19)):
        await write_file(files, f"/tmp/x/{name}", name.encode() * size)
    for limit in (100, 512, 70_000, 1 << 20):
        with archive_of(await read_all(await files.download("/tmp/x"), limit=limit)) as archive:
            assert sorted((info.name, info.size) for info in archive) == [
                ("a", 512), ("b", 0), ("c", 1 << 20), ("d", 1), ("e", 3 << 19),
            ]  # fmt: skip
