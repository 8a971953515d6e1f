"""Object stores: the conformance suite over every driver, and what each promises beyond it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dsec.base.errors import (
    DsecError,
    InvalidRequestError,
    NotFoundError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StoreUnavailableError,
    UnauthorizedError,
)
from dsec.stores.objects import ObjectStore, PiecewiseObjectStore
from dsec.stores.objects_folder import FolderObjectStore
from dsec.stores.objects_memory import MemoryObjectStore
from dsec.stores.opening import open_store
from dsec.testing.faulty_store import FaultyObjectStore
from dsec.testing.objects_suite import ObjectStoreSuite
from dsec.testing.s3_server import S3Server
from dsec.testing.server_process import standing_still


class TestMemory(ObjectStoreSuite):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryObjectStore()


class TestFolder(ObjectStoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return FolderObjectStore(tmp_path / "store")


class TestFaultyWithoutFaults(ObjectStoreSuite):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return FaultyObjectStore(MemoryObjectStore())


@pytest.mark.slow
class TestS3(ObjectStoreSuite):
    @pytest.fixture
    def store(self, s3_server: S3Server, s3_url: str) -> ObjectStore:
        return open_store(s3_url, environment=s3_server.environment)

    @pytest.mark.anyio
    async def test_a_missing_bucket_is_named(self, s3_server: S3Server) -> None:
        store = open_store("s3://no-such-bucket", environment=s3_server.environment)
        with pytest.raises(NotFoundError, match="no such bucket"):
            await store.put("a/object", b"x", timeout_s=10)

    @pytest.mark.anyio
    async def test_a_wrong_secret_is_not_tried_again(self, s3_server: S3Server, s3_url: str) -> None:
        store = open_store(s3_url, environment=s3_server.environment | {"AWS_SECRET_ACCESS_KEY": "wrong"})
        with pytest.raises((UnauthorizedError, PermissionDeniedError)):
            await store.put("a/object", b"x", timeout_s=10)

    @pytest.mark.anyio
    async def test_a_server_that_stands_still_is_given_up_at_the_deadline(
        self, s3_server: S3Server, s3_url: str
    ) -> None:
        store = open_store(s3_url, environment=s3_server.environment)
        with standing_still(s3_server.process.pid), pytest.raises(StoreUnavailableError, match=r"within 0\.5 s"):
            await store.put("a/object", b"x", timeout_s=0.5)

    @pytest.mark.anyio
    async def test_what_comes_is_given_away_while_it_comes(self, store: ObjectStore) -> None:
        assert isinstance(store, PiecewiseObjectStore)
        data = os.urandom(1 << 20)
        await store.put("a/object", data)
        for start, length in ((0, len(data)), (100, 300_000), (500_000, 1 << 30)):
            told: list[int] = []
            pieces: list[bytes] = []

            def begin(size: int, told: list[int] = told, pieces: list[bytes] = pieces) -> Callable[[bytes], None]:
                told.append(size)
                pieces.clear()
                return pieces.append

            wanted = data[start : start + length]
            assert await store.get_pieces("a/object", start, length, begin) == wanted
            assert (told, b"".join(pieces)) == ([len(wanted)], wanted)
        with pytest.raises(ObjectNotFoundError):
            await store.get_pieces("no/object", 0, 10, begin)


@pytest.mark.parametrize(
    "url",
    ["", "store", "/var/store", "ftp://x/y", "file://host/path", "file:///", "s3://", "s3://UPPER/x", "s3://b/a/../c",
     "s3://key:secret@bucket/x", "s3://bucket/x?region=y", "file:///a b"],
)  # fmt: skip
def test_a_malformed_url_is_refused_in_words(url: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"no (URL|key)"):
        open_store(url)


_KEEP_PUTTING = """
import itertools, sys, anyio
from pathlib import Path
from dsec.stores.objects_folder import FolderObjectStore
async def main():
    store = FolderObjectStore(Path(sys.argv[1]))
    for number in itertools.count():
        await store.put(f"a/{number}", bytes([number % 251]) * 300_000)
        print(number, flush=True)
anyio.run(main)
"""


def _kill_a_writer(directory: Path, after: int) -> int:
    """Kill a writer after so many acknowledgements; return the number of the last acknowledged object."""
    command = [sys.executable, "-c", _KEEP_PUTTING, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        acknowledged = [int(writer.stdout.readline()) for _ in range(after)]
        os.kill(writer.pid, signal.SIGKILL)
        return max(acknowledged + [int(line) for line in writer.stdout.read().split()])


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("after", [1, 3, 7])
async def test_a_killed_writer_leaves_whole_objects_and_no_leftovers(tmp_path: Path, after: int) -> None:
    last = _kill_a_writer(tmp_path, after)
    store = FolderObjectStore(tmp_path)
    assert not [path for path in tmp_path.rglob(".put-*") if path.stat().st_size > 0]
    found = [info async for info in store.list("a/")]
    assert {info.key for info in found} >= {f"a/{number}" for number in range(last + 1)}
    for info in found:
        assert await store.get(info.key) == bytes([int(info.key[2:]) % 251]) * 300_000


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DsecError, match="file"):
        FolderObjectStore(tmp_path / "file" / "store")


def _make_fifo(path: Path) -> None:
    os.mkfifo(path)


def _make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def _make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.anyio
@pytest.mark.parametrize("make", [_make_fifo, _make_socket, _make_device, Path.mkdir])
async def test_what_others_put_into_a_folder_and_is_no_file_is_no_object(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """Opening a FIFO would wait for a writer for ever, and opening the store with one in it all the more."""
    make(tmp_path / "a")
    make(tmp_path / ".put-a")
    store = FolderObjectStore(tmp_path)
    with pytest.raises(ObjectNotFoundError):
        await store.get("a", timeout_s=1)
    with pytest.raises(ObjectNotFoundError):
        await store.get_range("a", 0, 10, timeout_s=1)
    assert await store.head("a") is None
    assert [info async for info in store.list()] == []


def test_keys_that_are_missing_are_told_in_words() -> None:
    with pytest.raises(InvalidRequestError, match="AWS_") as raised:
        open_store("s3://bucket/x", environment={"AWS_SECRET_ACCESS_KEY": "x"})
    assert "AccessKeyId" in raised.value.detail
    assert "source" not in raised.value.detail, "that is for whoever debugs the library"
