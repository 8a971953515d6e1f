"""What every implementation of `dsec.runtimes.port.Files` does, the in-memory fake included.

Subclass `FilesSuite` in a test module and give it a fixture `files`: an empty root with the users root and ``user``
(1000), a world-writable ``/tmp``, and a directory ``/home/user`` of that user.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Sequence

import anyio
import blake3
import pytest

from dsec.base.errors import (
    AlreadyExistsError,
    DirectoryNotEmptyError,
    DsecError,
    InvalidRequestError,
    IsADirectoryInSandboxError,
    LimitExceededError,
    NotADirectoryInSandboxError,
    PathNotFoundError,
    PermissionDeniedError,
    UnsafeArchiveError,
    UserNotFoundError,
)
from dsec.linux.pipes import Pipe
from dsec.model.files import FileChangeKind, FileKind
from dsec.runtimes.port import FileDigest, FileEvents, Files, Reader, WriteMode, Writer

WAIT_S = 60.0


async def read_all(reader: Reader, limit: int = 1 << 20) -> bytes:
    """Read a reader to its end and close it."""
    chunks: list[bytes] = []
    try:
        while chunk := await reader.read(limit):
            chunks.append(chunk)
    finally:
        await reader.close()
    return b"".join(chunks)


async def fill_all(reader: Reader) -> bytes:
    """As `read_all`, through a pipe."""
    parts: list[bytes] = []
    try:
        with Pipe() as pipe:
            while count := await reader.fill(pipe):
                parts.append(pipe.take(count))
                assert len(parts[-1]) == count
                assert pipe.take(1) == b""
    finally:
        await reader.close()
    return b"".join(parts)


async def drain_all(writer: Writer, data: bytes, piece: int = 1 << 20) -> None:
    """Write all of `data` through a pipe, in pieces, and commit; aborts on any error."""
    try:
        with Pipe() as pipe:
            while data:
                count = pipe.put(data[:piece])
                await writer.drain(pipe, count)
                assert pipe.take(1) == b""
                data = data[count:]
        await writer.commit()
    finally:
        await writer.abort()


async def read_file(files: Files, path: str, *, user: str | None = None) -> bytes:
    """Return a file's content."""
    return await read_all(await files.open_read(path, user=user))


async def write_file(
    files: Files, path: str, data: bytes, *, mode: WriteMode = WriteMode.REPLACE, user: str | None = None
) -> None:
    """Write a file in one go; aborts on any error."""
    writer = await files.open_write(path, mode=mode, user=user)
    try:
        await writer.write(data)
        await writer.commit()
    finally:
        await writer.abort()


async def upload(files: Files, path: str, archive: bytes, *, user: str | None = None, piece: int = 1 << 20) -> None:
    """Upload an archive in pieces; aborts on any error."""
    writer = await files.upload(path, user=user)
    try:
        for at in range(0, len(archive), piece):
            await writer.write(archive[at : at + piece])
        await writer.commit()
    finally:
        await writer.abort()


def member(
    name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", mode: int = 0o644, uid: int = 0
) -> tarfile.TarInfo:
    """Return a member of an archive."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.uid, info.gid, info.mtime = kind, link, mode, uid, uid, 1_700_000_000
    return info


def make_archive(
    members: Sequence[tuple[tarfile.TarInfo, bytes]], *, form: int = tarfile.PAX_FORMAT
) -> bytes:  # fmt: skip
    """Return a tar archive of members with their contents."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def archive_of(content: bytes) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(content), mode="r:")


class FilesSuite:
    """The conformance suite."""

    async def test_what_is_written_is_read_back(self, files: Files) -> None:
        for content in (b"", b"hello", bytes(range(256)) * 1024, b"x" * (3 << 20)):
            await write_file(files, "/tmp/a", content)
            assert await read_file(files, "/tmp/a") == content

    async def test_a_small_file_is_put_at_once(self, files: Files) -> None:
        assert await files.put("/tmp/new/a", b"one", permissions=0o444)
        assert ((await files.stat("/tmp/new/a")).mode, await read_file(files, "/tmp/new/a")) == (0o444, b"one")
        assert await files.put("/tmp/new/a", b"two", only_over_file=True)
        assert ((await files.stat("/tmp/new/a")).mode, await read_file(files, "/tmp/new/a")) == (0o444, b"two")
        assert not await files.put("/tmp/none", b"x", only_over_file=True)
        assert not await files.put("/tmp", b"x", only_over_file=True)
        with pytest.raises(IsADirectoryInSandboxError):
            await files.put("/tmp", b"x")
        with pytest.raises(PathNotFoundError):
            await files.stat("/tmp/none")

    async def test_many_files_are_described_and_hashed_at_once(self, files: Files) -> None:
        await write_file(files, "/tmp/a", b"abc")
        await write_file(files, "/tmp/long", b"x" * ((2 << 20) + 5))
        info, missing = await files.stat_all(("/tmp/a", "/tmp/none"))
        assert info == await files.stat("/tmp/a")
        assert isinstance(missing, PathNotFoundError)
        whole, beginning, directory, gone = await files.digest_all(
            ("/tmp/a", "/tmp/long", "/tmp", "/tmp/none"), limit_bytes=(1 << 20) + 1
        )
        assert whole == FileDigest(3, blake3.blake3(b"abc").hexdigest())
        assert beginning == FileDigest((2 << 20) + 5, blake3.blake3(b"x" * ((1 << 20) + 1)).hexdigest())
        assert isinstance(directory, IsADirectoryInSandboxError)
        assert isinstance(gone, PathNotFoundError)
        assert await files.stat_all(()) == ()

    async def test_reading_begins_at_the_offset_and_ends_there(self, files: Files) -> None:
        await write_file(files, "/tmp/a", b"0123456789")
        assert await read_all(await files.open_read("/tmp/a", offset=4)) == b"456789"
        assert await read_all(await files.open_read("/tmp/a", offset=40)) == b""

    async def test_reader_gives_no_more_than_asked_and_knows_the_size(self, files: Files) -> None:
        await write_file(files, "/tmp/a", b"0123456789")
        reader = await files.open_read("/tmp/a")
        assert reader.size_bytes == 10
        assert [await reader.read(4), await reader.read(4), await reader.read(4)] == [b"0123", b"4567", b"89"]
        assert await reader.read(4) == b""
        await reader.close()

    @pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, (3 << 20) + 5])
    async def test_a_pipe_takes_and_gives_the_same_bytes(self, files: Files, size: int) -> None:
        data = os.urandom(size)
        await drain_all(await files.open_write("/tmp/a"), data, piece=300_001)
        assert await read_file(files, "/tmp/a") == data
        assert await fill_all(await files.open_read("/tmp/a")) == data
        assert await fill_all(await files.open_read("/tmp/a", offset=size // 2)) == data[size // 2 :]

    async def test_bytes_and_pipes_may_be_mixed(self, files: Files) -> None:
        data = os.urandom(3 << 20)
        writer = await files.open_write("/tmp/a", mode=WriteMode.APPEND)
        await writer.write(data[:1000])
        await drain_all(writer, data[1000:])
        reader = await files.open_read("/tmp/a")
        start = await reader.read(1000)
        with Pipe() as pipe:
            middle = pipe.take(await reader.fill(pipe))
        assert start + middle + await read_all(reader) == data

    @pytest.mark.parametrize("piece", [1000, 4096, 1 << 20])
    async def test_an_archive_through_pipes_is_the_same_archive(self, files: Files, piece: int) -> None:
        contents = {"small": b"s", "even": bytes(range(256)) * 2, "long": os.urandom((2 << 20) + 77), "none": b""}
        archive = make_archive([(member(name), content) for name, content in contents.items()])
        await drain_all(await files.upload("/tmp/d"), archive, piece=piece)
        with archive_of(await fill_all(await files.download("/tmp/d"))) as back:
            names = back.getnames()
            assert sorted(names) == sorted(contents)
            assert {name: back.extractfile(name).read() for name in names} == contents  # type: ignore[union-attr]
        plain = await read_all(await files.download("/tmp/d"))
        assert await fill_all(await files.download("/tmp/d")) == plain

    async def test_writing_makes_missing_parents(self, files: Files) -> None:
        await write_file(files, "/tmp/a/b/c", b"deep")
        assert await read_file(files, "/tmp/a/b/c") == b"deep"
        info = await files.stat("/tmp/a/b")
        assert (info.kind, info.mode) == (FileKind.DIRECTORY, 0o755)

    async def test_nothing_is_visible_before_commit(self, files: Files) -> None:
        await write_file(files, "/tmp/a", b"before")
        writer = await files.open_write("/tmp/a")
        await writer.write(b"after")
        assert await read_file(files, "/tmp/a") == b"before"
        await writer.commit()
        assert await read_file(files, "/tmp/a") == b"after"
        await writer.abort()
        assert await read_file(files, "/tmp/a") == b"after"

    async def test_abort_leaves_what_was_there(self, files: Files) -> None:
        await write_file(files, "/tmp/a", b"before")
        for mode in (WriteMode.REPLACE, WriteMode.APPEND):
            writer = await files.open_write("/tmp/a", mode=mode)
            await writer.write(b"x" * (2 << 20))
            await writer.abort()
            await writer.abort()
            assert await read_file(files, "/tmp/a") == b"before"
        assert [info.name for info in await files.list("/tmp")] == ["a"]

    async def test_append_adds_at_the_end_and_makes_a_missing_file(self, files: Files) -> None:
        await write_file(files, "/tmp/log", b"one", mode=WriteMode.APPEND)
        await write_file(files, "/tmp/log", b"two", mode=WriteMode.APPEND)
        assert await read_file(files, "/tmp/log") == b"onetwo"

    async def test_create_refuses_what_exists(self, files: Files) -> None:
        await write_file(files, "/tmp/a", b"mine", mode=WriteMode.CREATE)
        with pytest.raises(AlreadyExistsError):
            await write_file(files, "/tmp/a", b"yours", mode=WriteMode.CREATE)
        assert await read_file(files, "/tmp/a") == b"mine"

    async def test_create_refuses_what_appears_before_commit(self, files: Files) -> None:
        first = await files.open_write("/tmp/a", mode=WriteMode.CREATE)
        await write_file(files, "/tmp/a", b"faster")
        with pytest.raises(AlreadyExistsError):
            await first.commit()
        await first.abort()
        assert await read_file(files, "/tmp/a") == b"faster"

    async def test_permissions_of_a_new_file_are_the_asked_ones(self, files: Files) -> None:
        writer = await files.open_write("/tmp/script", permissions=0o777)
        await writer.commit()
        info = await files.stat("/tmp/script")
        assert (info.mode, info.kind, info.size_bytes) == (0o777, FileKind.FILE, 0)

    async def test_stat_names_owner_and_kind(self, files: Files) -> None:
        await write_file(files, "/home/user/a", b"12345", user="user")
        info = await files.stat("/home/user/a")
        assert (info.name, info.path, info.size_bytes) == ("a", "/home/user/a", 5)
        assert (info.uid, info.gid, info.kind) == (1000, 1000, FileKind.FILE)
        assert (await files.stat("/")).kind is FileKind.DIRECTORY

    async def test_missing_paths_are_not_found(self, files: Files) -> None:
        for call in (
            files.stat("/nowhere"),
            files.list("/nowhere"),
            files.open_read("/nowhere/x"),
            files.remove("/nowhere"),
            files.move("/nowhere", "/tmp/x"),
            files.download("/nowhere"),
            files.watch("/nowhere"),
        ):
            with pytest.raises(PathNotFoundError):
                await call

    async def test_a_file_is_no_directory_and_the_other_way_round(self, files: Files) -> None:
        await write_file(files, "/tmp/file", b"")
        for refused in (files.list("/tmp/file"), files.stat("/tmp/file/x"), files.make_directory("/tmp/file/x")):
            with pytest.raises(NotADirectoryInSandboxError):
                await refused
        with pytest.raises(IsADirectoryInSandboxError):
            await files.open_read("/tmp")
        with pytest.raises(IsADirectoryInSandboxError):
            await files.open_write("/tmp")

    async def test_paths_that_cannot_be_are_invalid(self, files: Files) -> None:
        for path in ("/tmp/a\0b", "/" + "a/" * 2100, "/tmp/" + "n" * 256):
            with pytest.raises(InvalidRequestError):
                await files.stat(path)

    async def test_names_that_are_not_utf8_are_kept(self, files: Files) -> None:
        path = "/tmp/caf\udce9"
        await write_file(files, path, b"latin")
        assert await read_file(files, path) == b"latin"
        info = await files.stat(path)
        assert (info.name, info.path, info.raw_path) == ("caf\ufffd", "/tmp/caf\ufffd", b"/tmp/caf\xe9")
        [listed] = await files.list("/tmp")
        assert listed == info
        await files.remove(path)
        assert await files.list("/tmp") == ()

    async def test_list_goes_as_deep_as_asked(self, files: Files) -> None:
        await write_file(files, "/tmp/a/b/c", b"")
        await write_file(files, "/tmp/z", b"")
        assert [info.path for info in await files.list("/tmp")] == ["/tmp/a", "/tmp/z"]
        assert [info.path for info in await files.list("/tmp", depth=2)] == ["/tmp/a", "/tmp/a/b", "/tmp/z"]
        assert [info.path for info in await files.list("/tmp", depth=9)] == [
            "/tmp/a",
            "/tmp/a/b",
            "/tmp/a/b/c",
            "/tmp/z",
        ]

    async def test_list_past_its_limit_is_an_error(self, files: Files) -> None:
        for number in range(4):
            await write_file(files, f"/tmp/{number}", b"")
        assert len(await files.list("/tmp", limit=4)) == 4
        with pytest.raises(LimitExceededError):
            await files.list("/tmp", limit=3)

    async def test_make_directory_tells_whether_it_is_new(self, files: Files) -> None:
        assert await files.make_directory("/tmp/a/b", permissions=0o700)
        assert not await files.make_directory("/tmp/a/b")
        assert ((await files.stat("/tmp/a")).mode, (await files.stat("/tmp/a/b")).mode) == (0o755, 0o700)

    async def test_move_replaces_files_but_no_directories(self, files: Files) -> None:
        await write_file(files, "/tmp/a", b"a")
        await write_file(files, "/tmp/b", b"b")
        await files.move("/tmp/a", "/tmp/b")
        assert await read_file(files, "/tmp/b") == b"a"
        await files.make_directory("/tmp/d")
        await files.make_directory("/tmp/e")
        for source in ("/tmp/b", "/tmp/e"):
            with pytest.raises(IsADirectoryInSandboxError):
                await files.move(source, "/tmp/d")
        await files.move("/tmp/b", "/tmp/d/b")
        await files.move("/tmp/d", "/tmp/f")
        assert await read_file(files, "/tmp/f/b") == b"a"

    async def test_remove_takes_a_tree_only_when_recursive(self, files: Files) -> None:
        await write_file(files, "/tmp/a/b/c", b"")
        with pytest.raises(DirectoryNotEmptyError):
            await files.remove("/tmp/a")
        await files.remove("/tmp/a", recursive=True)
        assert await files.list("/tmp") == ()
        await files.make_directory("/tmp/empty")
        await files.remove("/tmp/empty")
        assert await files.list("/tmp") == ()

    async def test_the_root_is_not_removed(self, files: Files) -> None:
        with pytest.raises(InvalidRequestError):
            await files.remove("/", recursive=True)

    async def test_a_file_that_is_replaced_or_added_to_keeps_its_permissions(self, files: Files) -> None:
        for mode in (WriteMode.CREATE, WriteMode.REPLACE, WriteMode.APPEND):
            writer = await files.open_write(
                "/tmp/script", mode=mode, permissions=0o750 if mode is WriteMode.CREATE else 0o644
            )
            await writer.write(b"x")
            await writer.commit()
            assert (await files.stat("/tmp/script")).mode == 0o750

    async def test_what_is_moved_onto_itself_stays(self, files: Files) -> None:
        await files.make_directory("/tmp/a/b")
        await files.move("/tmp/a", "/tmp/a")
        await files.move("/tmp/a/b", "/tmp/a/b")
        assert [info.path for info in await files.list("/tmp/a")] == ["/tmp/a/b"]

    async def test_permissions_of_the_user_count(self, files: Files) -> None:
        await write_file(files, "/secret", b"s")
        await files.make_directory("/closed", permissions=0o700)
        writer = await files.open_write("/private", permissions=0o600)
        await writer.commit()
        for refused in (
            files.open_read("/private", user="user"),
            files.open_write("/secret", user="user"),
            files.open_write("/new", user="1000"),
            files.make_directory("/new", user="1000:1000"),
            files.move("/secret", "/tmp/secret", user="user"),
            files.list("/closed", user="user"),
        ):
            with pytest.raises(PermissionDeniedError):
                await refused
        assert await read_file(files, "/secret", user="user") == b"s"

    async def test_unknown_users_are_named(self, files: Files) -> None:
        with pytest.raises(UserNotFoundError):
            await files.stat("/", user="nobody-here")

    async def test_upload_and_download_keep_a_tree(self, files: Files) -> None:
        archive = make_archive([
            (member("d", tarfile.DIRTYPE, mode=0o750), b""),
            (member("d/script", mode=0o755), b"#!/bin/sh\n"),
            (member("d/big"), bytes(range(256)) * 8192),
            (member("d/link", tarfile.SYMTYPE, link="script"), b""),
            (member("implicit/parents/file"), b"x"),
            (member("long/" + "n" * 200 + "/" + "m" * 200), b"long"),
            (member("uml\u00e4ut"), b"u"),
        ])  # fmt: skip
        await upload(files, "/tmp/target", archive, piece=1000)
        with archive_of(await read_all(await files.download("/tmp/target"))) as back:
            assert back.extractfile("d/script").read() == b"#!/bin/sh\n"  # type: ignore[union-attr]
            assert back.extractfile("d/big").read() == bytes(range(256)) * 8192  # type: ignore[union-attr]
            assert (back.getmember("d").mode, back.getmember("d/script").mode) == (0o750, 0o755)
            assert back.getmember("d/link").linkname == "script"
            assert back.extractfile("long/" + "n" * 200 + "/" + "m" * 200).read() == b"long"  # type: ignore[union-attr]
            assert back.extractfile("uml\u00e4ut").read() == b"u"  # type: ignore[union-attr]

    async def test_download_of_a_file_has_its_own_name(self, files: Files) -> None:
        await write_file(files, "/tmp/a", b"content")
        with archive_of(await read_all(await files.download("/tmp/a"), limit=100)) as archive:
            assert archive.getnames() == ["a"]
            assert archive.extractfile("a").read() == b"content"  # type: ignore[union-attr]

    async def test_what_a_user_uploads_is_theirs(self, files: Files) -> None:
        await upload(files, "/home/user/d", make_archive([(member("f", uid=0), b"x")]), user="user")
        assert (await files.stat("/home/user/d/f")).uid == 1000

    @pytest.mark.parametrize(
        "refused",
        [
            member("/absolute"),
            member("../climbs"),
            member("a/../../climbs"),
            member("device", tarfile.CHRTYPE),
            member("disk", tarfile.BLKTYPE),
            member("fifo", tarfile.FIFOTYPE),
            member("link", tarfile.SYMTYPE, link="../../../../../etc/passwd"),
        ],
        ids=lambda info: info.name,
    )
    async def test_unsafe_entries_end_an_upload(self, files: Files, refused: tarfile.TarInfo) -> None:
        archive = make_archive([(member("good"), b"1"), (refused, b""), (member("after"), b"2")])
        with pytest.raises(UnsafeArchiveError):
            await upload(files, "/tmp/d", archive)
        with pytest.raises(PathNotFoundError):
            await files.stat("/tmp/d/after")

    async def test_an_archive_can_be_unpacked_at_the_root(self, files: Files) -> None:
        await upload(files, "/", make_archive([(member("unpacked/at/root"), b"hi")]))
        assert await read_file(files, "/unpacked/at/root") == b"hi"

    async def test_links_of_an_archive_are_stored_as_they_are_and_not_followed(self, files: Files) -> None:
        targets = {"absolute": "/usr/bin/python3", "up": "../../etc", "beside": "absolute"}
        links = [(member(name, tarfile.SYMTYPE, link=target), b"") for name, target in targets.items()]
        await upload(files, "/tmp/d", make_archive(links))
        for name, target in targets.items():
            assert (await files.stat(f"/tmp/d/{name}")).target == target
        through = make_archive([(member("here", tarfile.SYMTYPE, link="/tmp"), b""), (member("here/owned"), b"x")])
        with pytest.raises(UnsafeArchiveError):
            await upload(files, "/tmp/d", through)
        with pytest.raises(PathNotFoundError):
            await files.stat("/tmp/owned")

    async def test_what_is_no_archive_is_refused(self, files: Files) -> None:
        for garbage in (b"x" * 2048, b"\x1f\x8b" + b"x" * 1022):
            with pytest.raises(InvalidRequestError):
                await upload(files, "/tmp/d", garbage)

    async def test_watch_tells_what_happens(self, files: Files) -> None:
        await files.make_directory("/tmp/w")
        async with await files.watch("/tmp/w") as events:
            await write_file(files, "/tmp/w/a", b"1")
            await files.remove("/tmp/w/a")
            seen = await _changes_until(events, FileChangeKind.REMOVED, "a")
        assert (FileChangeKind.CREATED, "a") in seen

    async def test_recursive_watch_tells_of_new_directories(self, files: Files) -> None:
        await files.make_directory("/tmp/w/old")
        async with await files.watch("/tmp/w", recursive=True) as events:
            await write_file(files, "/tmp/w/old/a", b"1")
            await _changes_until(events, FileChangeKind.CREATED, "old/a")
            await write_file(files, "/tmp/w/new/deep/b", b"1")
            await _changes_until(events, FileChangeKind.CREATED, "new/deep/b")

    async def test_every_error_says_what_to_do(self, files: Files) -> None:
        with pytest.raises(DsecError) as caught:
            await files.stat("/nowhere")
        assert "/nowhere" in caught.value.brief


async def _changes_until(events: FileEvents, kind: FileChangeKind, path: str) -> list[tuple[FileChangeKind, str]]:
    """Collect changes until one is seen. Fails after `WAIT_S`."""
    seen: list[tuple[FileChangeKind, str]] = []
    with anyio.fail_after(WAIT_S):
        async for change in events:
            seen.append((change.kind, change.path))
            if seen[-1] == (kind, path):
                return seen
    raise AssertionError(f"the watch ended without {kind} {path}: {seen}")
