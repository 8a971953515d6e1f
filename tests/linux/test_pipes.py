"""Pipes as buffers: what goes in comes out, at every kind of end."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.linux.pipes import Pipe


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    with Pipe() as pipe:
        yield pipe


def open_file(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    return os.open(path, flags, 0o600)


def test_a_file_goes_into_another_with_no_byte_read(pipe: Pipe, tmp_path: Path) -> None:
    data = os.urandom(pipe.piece_bytes + 5)
    (tmp_path / "a").write_bytes(data)
    source, target = open_file(tmp_path / "a"), open_file(tmp_path / "b")
    while count := pipe.fill_from_file(source, pipe.piece_bytes):
        pipe.empty_to_file(target, count)
    assert (tmp_path / "b").read_bytes() == data
    os.close(source)
    os.close(target)


def test_a_full_pipe_is_told_from_the_end_of_a_file(pipe: Pipe, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(2 * pipe.capacity_bytes))
    source = open_file(tmp_path / "a")
    held = pipe.fill_from_file(source, pipe.capacity_bytes)
    while held < pipe.capacity_bytes:
        held += pipe.fill_from_file(source, pipe.capacity_bytes)
    with pytest.raises(BlockingIOError):
        pipe.fill_from_file(source, pipe.capacity_bytes)
    assert pipe.put(b"x") == 0
    assert len(pipe.take(held)) == held
    assert pipe.take(1) == b""
    os.lseek(source, 0, os.SEEK_END)
    assert pipe.fill_from_file(source, 1) == 0
    os.close(source)


def test_files_that_take_no_pages_are_written_all_the_same(pipe: Pipe, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"before ")
    target = open_file(tmp_path / "a", os.O_WRONLY | os.O_APPEND)
    data = os.urandom(200_000)
    count = pipe.put(data)
    pipe.empty_to_file(target, count)
    assert (tmp_path / "a").read_bytes() == b"before " + data
    os.close(target)


def test_files_that_give_no_pages_are_read_all_the_same(pipe: Pipe) -> None:
    source = os.open("/proc/self/status", os.O_RDONLY)
    assert pipe.take(pipe.fill_from_file(source, 5)) == b"Name:"
    os.close(source)


def test_sockets_say_when_they_have_nothing_when_they_are_full_and_when_they_end(pipe: Pipe) -> None:
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    with left, right:
        with pytest.raises(BlockingIOError):
            pipe.fill_from_socket(left.fileno(), 10)
        sent = _send_until_full(pipe, right)
        right.shutdown(socket.SHUT_WR)
        with Pipe() as other:
            received = 0
            while count := other.fill_from_socket(left.fileno(), other.piece_bytes):
                other.take(count)
                received += count
        assert received == sent


def _send_until_full(pipe: Pipe, connection: socket.socket) -> int:
    sent = 0
    try:
        while True:
            count = pipe.put(bytes(65_536))
            while count:
                taken = pipe.empty_to_socket(connection.fileno(), count)
                count, sent = count - taken, sent + taken
    except BlockingIOError:
        pipe.take(pipe.capacity_bytes)
    return sent


@given(st.lists(st.binary(min_size=1, max_size=10_000), max_size=20))
def test_pieces_of_any_size_come_out_in_order(pieces: list[bytes]) -> None:
    with Pipe() as pipe:
        count = sum(pipe.put(piece) for piece in pieces)
        assert pipe.take(1 << 20) == b"".join(pieces)[:count]
        assert count == len(b"".join(pieces)) or count >= pipe.capacity_bytes // 4


def test_a_user_whose_pipes_take_all_they_may_gets_a_small_one(tmp_path: Path) -> None:
    data = os.urandom(100_000)
    (tmp_path / "a").write_bytes(data)
    source, target = open_file(tmp_path / "a"), open_file(tmp_path / "b")
    with Pipe(1 << 40) as pipe:  # More than anybody is given.
        assert 0 < pipe.piece_bytes <= pipe.capacity_bytes < 1 << 20
        while count := pipe.fill_from_file(source, pipe.piece_bytes):
            pipe.empty_to_file(target, count)
    assert (tmp_path / "b").read_bytes() == data
    os.close(source)
    os.close(target)


def test_closing_twice_is_closing_once() -> None:
    pipe = Pipe()
    pipe.close()
    pipe.close()
