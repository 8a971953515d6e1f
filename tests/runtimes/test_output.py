"""Output of commands: bounded memory, exact bytes at the end, and what is handed on."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator

import anyio
import pytest

from dsec.model.process import Stream
from dsec.runtimes.container.output import (
    CHUNK_BYTES,
    CHUNK_OVERHEAD_BYTES,
    DRAIN_INTERVAL_S,
    HIGH_WATER_BYTES,
    Drain,
    OutputReader,
)

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0


class Pipe:
    """A pipe whose reading end is given away; `writing` is non-blocking."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        os.set_blocking(self.writing, False)

    def fill(self) -> int:
        """Write until it is full; return how many bytes went in."""
        count = 0
        try:
            while True:
                count += os.write(self.writing, b"x" * 4096)
        except BlockingIOError:
            return count

    def close(self) -> None:
        """Close the writing end."""
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


@pytest.fixture
def adopted() -> Iterator[list[int]]:
    """Descriptors that readers handed on."""
    descriptors: list[int] = []
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


async def read_all(reader: OutputReader) -> bytes:
    data = b""
    with anyio.fail_after(PATIENCE_S):
        while (chunk := await reader.read()) is not None:
            data += chunk[1]
    return data


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds that nobody announces."""
    with anyio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (there is no event to wait for)
            await anyio.sleep(DRAIN_INTERVAL_S / 5)


async def turns(count: int = 20) -> None:
    """Let the event loop look at its descriptors some times."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


# -- the reader -------------------------------------------------------------------------------------------------------


async def test_streams_are_told_apart(adopted: list[int]) -> None:
    out, err = Pipe(), Pipe()
    reader = OutputReader({Stream.STDOUT: out.reading, Stream.STDERR: err.reading}, adopted.append)
    os.write(err.writing, b"error")
    with anyio.fail_after(PATIENCE_S):
        assert await reader.read() == (Stream.STDERR, b"error")
        os.write(out.writing, b"output")
        assert await reader.read() == (Stream.STDOUT, b"output")
    out.close()
    err.close()
    reader.finish()
    assert await reader.read() is None
    assert not adopted


async def test_writer_stops_while_nobody_reads(pipe: Pipe, adopted: list[int]) -> None:
    reader = OutputReader({Stream.STDOUT: pipe.reading}, adopted.append)
    written = 0
    while (count := pipe.fill()) or written == 0:
        written += count
        await turns()
    held = reader._held_bytes
    assert held <= HIGH_WATER_BYTES + CHUNK_BYTES + CHUNK_OVERHEAD_BYTES
    assert written <= HIGH_WATER_BYTES + 2 * CHUNK_BYTES
    # Reading lets it go on.
    with anyio.fail_after(PATIENCE_S):
        while reader._held_bytes >= HIGH_WATER_BYTES:
            await reader.read()
        await turns()
    assert pipe.fill() > 0
    reader.close()


async def test_small_writes_count_for_what_they_cost(pipe: Pipe, adopted: list[int]) -> None:
    reader = OutputReader({Stream.STDOUT: pipe.reading}, adopted.append)
    written = 0
    with anyio.fail_after(PATIENCE_S):
        while reader._reading:
            written += os.write(pipe.writing, b"x")
            await turns(3)
    assert written <= HIGH_WATER_BYTES // CHUNK_OVERHEAD_BYTES + 1
    reader.finish()
    assert await read_all(reader) == b"x" * written


async def test_end_takes_what_was_written_before_and_nothing_after(pipe: Pipe, adopted: list[int]) -> None:
    reader = OutputReader({Stream.STDOUT: pipe.reading}, adopted.append)
    os.write(pipe.writing, b"before")
    reader.finish()
    os.write(pipe.writing, b"after")
    assert await read_all(reader) == b"before"
    # Something left running still holds the pipe: it is handed on, unread.
    assert adopted == [pipe.reading]
    assert os.read(pipe.reading, 100) == b"after"


async def test_end_gives_every_byte_of_a_full_pipe_and_of_what_was_held(pipe: Pipe, adopted: list[int]) -> None:
    reader = OutputReader({Stream.STDOUT: pipe.reading}, adopted.append)
    written = 0
    while (count := pipe.fill()) or written == 0:
        written += count
        await turns()
    pipe.close()
    reader.finish()
    assert len(await read_all(reader)) == written
    assert not adopted
    assert not is_open(pipe.reading)


async def test_descriptor_at_its_end_is_closed_before_the_command_ends(pipe: Pipe, adopted: list[int]) -> None:
    reader = OutputReader({Stream.STDOUT: pipe.reading}, adopted.append)
    pipe.close()
    await until(lambda: not is_open(pipe.reading))
    reader.finish()
    assert await reader.read() is None


async def test_waiting_reader_wakes_at_the_end(pipe: Pipe, adopted: list[int]) -> None:
    reader = OutputReader({Stream.STDOUT: pipe.reading}, adopted.append)
    seen: list[bytes] = []

    async def read() -> None:
        seen.append(await read_all(reader))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await turns()
        reader.finish()
        reader.finish()
    assert seen == [b""]


async def test_cancelled_read_loses_nothing(pipe: Pipe, adopted: list[int]) -> None:
    reader = OutputReader({Stream.STDOUT: pipe.reading}, adopted.append)
    with anyio.move_on_after(0.01):
        await reader.read()
    os.write(pipe.writing, b"here")
    reader.finish()
    assert await read_all(reader) == b"here"


async def test_close_hands_on_what_is_open_and_ends_reading(pipe: Pipe, adopted: list[int]) -> None:
    reader = OutputReader({Stream.STDOUT: pipe.reading}, adopted.append)
    os.write(pipe.writing, b"never fetched")
    await turns()
    reader.close()
    reader.close()
    assert await reader.read() is None
    assert adopted == [pipe.reading]


async def test_backlog_comes_first_and_holds_back_the_pipe(pipe: Pipe, adopted: list[int]) -> None:
    backlog = deque((Stream.STDOUT, b"old" * 1000) for _ in range(3))
    told: list[int] = []
    reader = OutputReader(
        {Stream.STDOUT: pipe.reading}, adopted.append, returned=lambda _, count: told.append(count), backlog=backlog
    )
    os.write(pipe.writing, b"new")
    reader.finish()
    assert await read_all(reader) == b"old" * 3000 + b"new"
    assert told == [3000, 3000, 3000, 3]


# -- the drain --------------------------------------------------------------------------------------------------------


async def test_drain_reads_on_until_the_other_end_is_closed(pipe: Pipe) -> None:
    drain = Drain()
    drain.add(pipe.reading)
    written = 0
    with anyio.fail_after(PATIENCE_S):
        while written < 4 * CHUNK_BYTES:
            written += pipe.fill()
            await anyio.sleep(DRAIN_INTERVAL_S / 5)
    pipe.close()
    await until(lambda: not is_open(pipe.reading))
    assert len(drain) == 0


async def test_drain_slows_down_whoever_prints_without_end(pipe: Pipe) -> None:
    drain = Drain()
    drain.add(pipe.reading)
    written = pipe.fill()
    began = anyio.current_time()
    while anyio.current_time() - began < 4 * DRAIN_INTERVAL_S:
        await turns(5)
        written += pipe.fill()
    took = anyio.current_time() - began
    # A pipe full at first, then at most one chunk each interval (and one at either edge).
    assert written <= (took / DRAIN_INTERVAL_S + 3) * CHUNK_BYTES
    drain.close()
    assert not is_open(pipe.reading)


async def test_drain_closes_the_oldest_beyond_its_limit() -> None:
    drain = Drain(limit=2)
    pipes = [Pipe() for _ in range(3)]
    for each in pipes:
        drain.add(each.reading)
    assert [is_open(each.reading) for each in pipes] == [False, True, True]
    with pytest.raises(BrokenPipeError):
        os.write(pipes[0].writing, b"x")
    drain.close()
    assert len(drain) == 0
    for each in pipes:
        each.close()


async def test_closed_drain_closes_what_is_still_added(pipe: Pipe) -> None:
    drain = Drain()
    drain.close()
    drain.add(pipe.reading)
    assert not is_open(pipe.reading)


async def test_reader_hands_over_to_the_drain(pipe: Pipe) -> None:
    drain = Drain()
    reader = OutputReader({Stream.STDOUT: pipe.reading}, drain.add)
    os.write(pipe.writing, b"own")
    reader.finish()
    assert await read_all(reader) == b"own"
    assert len(drain) == 1
    os.write(pipe.writing, b"late")
    pipe.close()
    await until(lambda: len(drain) == 0)
