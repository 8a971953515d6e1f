"""Traces: what counts as a command, what a trace holds, and what of a hostile one is refused."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import StateCorruptedError
from dsec.images.lazy.erofs.metadata import Extent
from dsec.images.lazy.tracing import traces
from dsec.images.lazy.tracing.traces import (
    MAXIMUM_TRACES,
    ReadLog,
    Trace,
    TracedLayer,
    TraceShelf,
    command_of,
    file_of,
    in_common,
    merged,
    window,
)
from dsec.stores.objects import check_key

_IMAGE = "sha256:" + "ab" * 32
_SIZE = 64 << 20
_CHUNK_BLOCKS = 1024


def _trace(*reads: traces.Read, command: str = "python3", recorded_at_s: float = 1.0) -> Trace:
    layers = (
        TracedLayer(digest="sha256:" + "01" * 32, size_bytes=_SIZE, manifest="aa" * 32),
        TracedLayer(digest="sha256:" + "02" * 32, size_bytes=_SIZE, manifest="bb" * 32),
    )
    return Trace(
        version=1,
        image_id=_IMAGE,
        command=command,
        argv=(command, "-c", "pass"),
        source="trace",
        runs=1,
        recorded_at_s=recorded_at_s,
        layers=layers,
        reads=reads,
    )


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["python3", "-m", "pytest"], "python3"),
        (["/usr/bin/python3"], "python3"),
        (["sh", "-c", "cd /work && PYTHONPATH=. pytest -q | tail"], "pytest"),
        (["bash", "-lc", "set -e; make test"], "make"),
        (["env", "A=1", "git", "status"], "git"),
        (["sh", "-c", "echo 'unclosed"], "sh"),
        (["sh", "-c", "$(cat what)"], "sh"),
        (["bash", "script.sh"], "bash"),
        (["sh", "-c", "bash -c 'go build'"], "go"),
        ([], ""),
    ],
)
def test_a_command_is_known_by_its_program(argv: list[str], command: str) -> None:
    assert command_of(argv) == command


@given(st.lists(st.text(max_size=40), max_size=5))
def test_any_command_has_a_name_and_a_file(argv: list[str]) -> None:
    name = file_of(command_of(argv))
    assert "/" not in name
    check_key(f"layers/traces/x/{name}")


def test_each_block_stands_in_it_once_and_metadata_does_not() -> None:
    log = ReadLog([[Extent(8192, 4096)]])
    log.add(0, 0, 16384, 0.5)
    log.add(0, 4096, 8192, 1.0)
    log.add(0, 16384, 4096, 2.0)
    assert log.reads() == ((0, 0, 2, 500), (0, 3, 2, 500))


def test_chunks_come_in_the_order_in_which_they_were_read_first() -> None:
    trace = _trace((1, 2 * _CHUNK_BLOCKS - 1, 2, 0), (0, 5, 1, 1), (1, 3, 1, 2))
    assert trace.chunks() == ((1, 1), (1, 2), (0, 0), (1, 0))


def test_later_runs_add_what_the_first_did_not_read() -> None:
    both = merged(_trace((0, 10, 4, 0)), _trace((0, 0, 1, 5), (0, 12, 4, 9)))
    assert both.reads == ((0, 10, 4, 0), (0, 0, 1, 5), (0, 14, 2, 9))
    assert both.runs == 2


def test_a_window_asks_for_what_is_of_these_files_only() -> None:
    trace = _trace((1, 0, 3 * _CHUNK_BLOCKS, 0), (0, 5, 1, 1))
    asked = window("box", [[trace], [trace]], {trace.layers[1].digest: "bb" * 32, trace.layers[0].digest: "cc" * 32})
    assert asked.layers == ("bb" * 32,)
    assert asked.steps == (((0, 0, 3),), ((0, 0, 3),))


def test_what_is_kept_is_read_again_and_bounded(tmp_path: Path) -> None:
    shelf = TraceShelf(tmp_path)
    assert shelf.of(_IMAGE) == ()
    assert shelf.first(_IMAGE) is None
    for number in range(MAXIMUM_TRACES + 3):
        shelf.put(_trace((0, number, 1, 0), command=f"c{number}", recorded_at_s=float(number)))
        path = next(tmp_path.rglob(f"run-c{number}.json"))
        os.utime(path, (number, number))
    kept = shelf.of(_IMAGE)
    assert [trace.command for trace in kept] == [f"c{number}" for number in range(MAXIMUM_TRACES + 2, 2, -1)]
    assert shelf.get(_IMAGE, "c0") is None
    assert shelf.first(_IMAGE) == kept[0]
    shelf.put(_trace(command=""))
    first = shelf.first(_IMAGE)
    assert first is not None
    assert first.command == ""
    shelf.prune([])
    assert shelf.of(_IMAGE) == ()


def test_a_damaged_trace_is_none(tmp_path: Path) -> None:
    shelf = TraceShelf(tmp_path)
    shelf.put(_trace())
    next(tmp_path.rglob("run-python3.json")).write_bytes(b"{}")
    assert shelf.get(_IMAGE, "python3") is None
    assert shelf.of(_IMAGE) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"reads": ((2, 0, 1, 0),)},
        {"reads": ((-1, 0, 1, 0),)},
        {"reads": ((0, 0, 0, 0),)},
        {"reads": ((0, -1, 1, 0),)},
        {"reads": ((0, 0, 1 << 60, 0),)},
        {"layers": (TracedLayer(digest="x", size_bytes=1 << 62),)},
    ],
)
def test_a_trace_that_contradicts_itself_is_refused(change: dict[str, object]) -> None:
    data = traces.encode(msgspec.structs.replace(_trace((0, 0, 1, 0)), **change))
    with pytest.raises(StateCorruptedError, match="trace"):
        traces.decode(data, "somebody")


@given(st.binary(max_size=300))
def test_what_is_no_trace_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(StateCorruptedError):
        traces.decode(data, "somebody")


def test_what_traces_have_in_common_are_the_reads_of_chunks_that_all_of_them_read() -> None:
    first = _trace((0, 0, 8, 0), (0, _CHUNK_BLOCKS, 8, 1), (1, 2 * _CHUNK_BLOCKS - 4, 8, 2), (1, 0, 1, 3))
    second = _trace((0, 40, 1, 0), (1, 9, 1, 0), (1, _CHUNK_BLOCKS, 1, 1), command="git")
    assert in_common(first, [first, second]).reads == (first.reads[0], first.reads[3])
    assert in_common(first, [first]) == first
    elsewhere = msgspec.structs.replace(second, layers=(second.layers[1], second.layers[0]))
    assert [read[:2] for read in in_common(first, [elsewhere]).reads] == [(0, 0), (0, _CHUNK_BLOCKS), (1, 0)]
