"""Manifests: folding, and refusing what no writer of ours wrote."""

from __future__ import annotations

import itertools
import struct
import sys
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.base.errors import LimitExceededError, StateCorruptedError
from dsec.state import manifest_codec
from dsec.state.manifest import (
    Directory,
    Entry,
    Extent,
    File,
    Link,
    Manifest,
    Patch,
    SnapshotHeader,
    Status,
    Symlink,
    Whiteout,
    fold,
    overlay_extents,
)
from dsec.state.manifest_codec import decode_manifest, encode_manifest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

HEADER = SnapshotHeader(sandbox_id="sbx-1")
STATUS = Status(0o644, 0, 0, 0)
TOP = (b"", Directory(STATUS))
CHUNK = b"c" * 32


def with_attributes(*names: bytes) -> Status:
    return Status(0o644, 0, 0, 0, tuple((name, b"") for name in names))


def written(entries: Any, **fields: Any) -> bytes:
    """Return a manifest's object, unchecked."""
    document = msgspec.msgpack.encode(Manifest(header=HEADER, entries=tuple(entries), **fields))
    return struct.pack("<8sQ", b"DSECMF01", len(document)) + zstd.compress(document)


HOSTILE: dict[str, list[tuple[bytes, Entry]]] = {
    "a path that leaves the tree": [TOP, (b"../evil", File(STATUS, 0))],
    "a path that leaves it on the way": [TOP, (b"a", Directory(STATUS)), (b"a/../../evil", File(STATUS, 0))],
    "an absolute path": [TOP, (b"/etc/passwd", File(STATUS, 0))],
    "an empty name": [TOP, (b"a", Directory(STATUS)), (b"a//b", File(STATUS, 0))],
    "a NUL in a name": [TOP, (b"a\0b", File(STATUS, 0))],
    "a name that is too long": [TOP, (b"x" * 256, File(STATUS, 0))],
    "a path that is too long": [TOP, (b"/".join([b"x" * 200] * 90), File(STATUS, 0))],
    "a path twice": [TOP, (b"a", File(STATUS, 0)), (b"a", File(STATUS, 0))],
    "paths out of order": [TOP, (b"b", File(STATUS, 0)), (b"a", File(STATUS, 0))],
    "no top": [(b"a", File(STATUS, 0))],
    "a top that is a file": [(b"", File(STATUS, 0))],
    "an entry in no directory": [TOP, (b"a/b", File(STATUS, 0))],
    "an entry in a link": [TOP, (b"a", Symlink(STATUS, b"/etc")), (b"a/b", File(STATUS, 0))],
    "an entry in a file": [TOP, (b"a", File(STATUS, 0)), (b"a/b", File(STATUS, 0))],
    "a link to a directory": [TOP, (b"a", Directory(STATUS)), (b"b", Link(b"a"))],
    "a link to itself": [TOP, (b"a", Link(b"a"))],
    "a link to a link": [TOP, (b"a", File(STATUS, 0)), (b"b", Link(b"a")), (b"c", Link(b"b"))],
    "a link to what comes later": [TOP, (b"a", Link(b"b")), (b"b", File(STATUS, 0))],
    "a link out of the tree": [TOP, (b"a", Link(b"../../etc/shadow"))],
    "a link to nothing": [TOP, (b"a", Link(b"z"))],
    "a target without an end": [TOP, (b"a", Symlink(STATUS, b"x" * 5000))],
    "a target with a NUL": [TOP, (b"a", Symlink(STATUS, b"x\0y"))],
    "a patch of nothing": [TOP, (b"a", Patch(STATUS, 0, (), b"a"))],
    "an absurd size": [TOP, (b"a", File(STATUS, 1 << 60))],
    "a negative size": [TOP, (b"a", File(STATUS, -1))],
    "extents that overlap": [TOP, (b"a", File(STATUS, 20, (Extent(0, 10, CHUNK), Extent(5, 10, CHUNK))))],
    "an extent behind the end": [TOP, (b"a", File(STATUS, 5, (Extent(0, 10, CHUNK),)))],
    "an empty extent": [TOP, (b"a", File(STATUS, 5, (Extent(0, 0, CHUNK),)))],
    "an extent before the beginning": [TOP, (b"a", File(STATUS, 5, (Extent(-5, 10, CHUNK),)))],
    "an extent outside of any chunk": [TOP, (b"a", File(STATUS, 5, (Extent(0, 5, CHUNK, 1 << 40),)))],
    "a chunk without a name": [TOP, (b"a", File(STATUS, 5, (Extent(0, 5, b"short"),)))],
    "a mode with a kind": [TOP, (b"a", File(Status(0o100644, 0, 0, 0), 0))],
    "a negative owner": [TOP, (b"a", File(Status(0o644, -1, 0, 0), 0))],
    "an owner that is nobody's": [TOP, (b"a", File(Status(0o644, 0xFFFFFFFF, 0, 0), 0))],
    "a time beyond all": [TOP, (b"a", File(Status(0o644, 0, 0, 1 << 63), 0))],
    "an attribute of the host": [TOP, (b"a", File(with_attributes(b"security.selinux"), 0))],
    "a trusted attribute": [TOP, (b"a", File(with_attributes(b"trusted.overlay.opaque"), 0))],
    "a handle of another host": [TOP, (b"a", File(with_attributes(b"overlay.origin"), 0))],
    "an attribute twice": [TOP, (b"a", File(with_attributes(b"user.a", b"user.a"), 0))],
    "attributes out of order": [TOP, (b"a", File(with_attributes(b"user.b", b"user.a"), 0))],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_manifest_is_refused_by_name(what: str) -> None:
    with pytest.raises(StateCorruptedError, match="manifests/x"):
        fold([decode_manifest(written(HOSTILE[what]), "manifests/x")], ["manifests/x"])


def test_what_is_harmless_beside_them_is_read() -> None:
    entries = [TOP, (b"a", File(with_attributes(b"overlay.opaque", b"user.a"), 5, (Extent(0, 5, CHUNK),)))]
    assert fold([decode_manifest(written(entries), "x")], ["x"]) == dict(entries)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"DSECMF01",
        b"DSECMF01" + bytes(100),
        struct.pack("<8sQ", b"DSECMF01", 1 << 60) + zstd.compress(b"x"),
        struct.pack("<8sQ", b"DSECMF01", 10) + zstd.compress(bytes(1 << 24)),
        struct.pack("<8sQ", b"DSECMF02", 1) + zstd.compress(b"x"),
        struct.pack("<8sQ", b"DSECMF01", 3) + zstd.compress(b"\xc1\xc1\xc1"),
        struct.pack("<8sQ", b"DSECMF01", 100_000) + zstd.compress(b"\x91" * 100_000),
        written([TOP], version=2),
        written([TOP], parent=b"short"),
        written([TOP], removed=(b"a",)),
        written([TOP], parent=bytes(32), removed=(b"",)),
        written([TOP], exported=(Extent(0, 10, CHUNK),), exported_bytes=5),
        written([TOP], exported=(), exported_bytes=1 << 40),
        written([TOP], packs=("../../etc/passwd",)),
        written([TOP])[:-3],
    ],
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(StateCorruptedError, match="manifests/x"):
        decode_manifest(data, "manifests/x")


@settings(max_examples=40)
@given(data=st.binary(max_size=200))
def test_random_documents_are_refused_and_nothing_else_happens(data: bytes) -> None:
    with pytest.raises(StateCorruptedError):
        decode_manifest(struct.pack("<8sQ", b"DSECMF01", len(data)) + zstd.compress(data), "x")


NOTHING = {
    "hints": ("packs", b"\xa0"),
    "removed paths": ("removed", b"\xc4\0"),
    "entries": ("entries", msgspec.msgpack.encode((b"", Directory(STATUS)))),
    "extents of the exported state": ("exported", b"\x92\0\0"),
}


@pytest.mark.parametrize("what", NOTHING)
def test_long_lists_of_nothing_are_refused_before_they_fill_memory(what: str) -> None:
    name, item = NOTHING[what]
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(Manifest(header=HEADER)))
    count = 1_100_000
    rest = [msgspec.msgpack.encode(each) for field in fields.items() for each in field if field[0] != name]
    long = [msgspec.msgpack.encode(name), b"\xdd" + struct.pack(">I", count), item * count]
    document = bytes([0x80 + len(fields)]) + b"".join(rest + long)
    data = struct.pack("<8sQ", b"DSECMF01", len(document)) + zstd.compress(document)
    tracemalloc.start()
    try:
        with pytest.raises(StateCorruptedError, match=f"length.*{name}"):
            decode_manifest(data, "x")
        # The document itself is unpacked into a buffer that doubles.
        assert tracemalloc.get_traced_memory()[1] < 3 * len(document) + (4 << 20)
    finally:
        tracemalloc.stop()


def test_extents_are_counted_over_all_files_while_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_codec, "MAXIMUM_EXTENTS", 10)
    files = [(name, File(STATUS, 100, tuple(Extent(at, 1, CHUNK) for at in range(5)))) for name in (b"a", b"b", b"c")]
    assert dict(decode_manifest(written([TOP, *files[:2]]), "x").entries) == dict([TOP, *files[:2]])
    with pytest.raises(StateCorruptedError, match="more than 10 extents"):
        decode_manifest(written([TOP, *files]), "x")


def test_a_writer_refuses_what_a_reader_would() -> None:
    many = with_attributes(*(b"user.%03d" % number for number in range(200)))
    entries: tuple[tuple[bytes, Entry], ...] = (TOP, (b"a", File(many, 0)))
    with pytest.raises(LimitExceededError):
        encode_manifest(Manifest(header=HEADER, entries=entries))


def test_a_moved_file_is_patched_from_where_it_was_and_links_count_as_files() -> None:
    before = File(STATUS, 10, (Extent(0, 10, CHUNK),))
    base = Manifest(header=HEADER, entries=(TOP, (b"a", before), (b"b", Link(b"a"))))
    change = Manifest(
        header=HEADER,
        parent=bytes(32),
        removed=(b"a", b"b"),
        entries=((b"c", Patch(STATUS, 12, (Extent(8, 4, b"d" * 32, 3),), b"b")), (b"w", Whiteout(STATUS))),
    )
    tree = fold([base, change], ["one", "two"])
    assert tree[b"c"] == File(STATUS, 12, (Extent(0, 8, CHUNK), Extent(8, 4, b"d" * 32, 3)))
    assert list(tree) == [b"", b"c", b"w"]


@pytest.mark.parametrize("base", [b"nothing", b"directory"])
def test_a_patch_of_what_is_no_file_is_refused(base: bytes) -> None:
    first = Manifest(header=HEADER, entries=(TOP, (b"directory", Directory(STATUS))))
    second = Manifest(header=HEADER, parent=bytes(32), entries=((b"c", Patch(STATUS, 0, (), base)),))
    with pytest.raises(StateCorruptedError, match="two"):
        fold([first, second], ["one", "two"])


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20), st.booleans()), max_size=8)


def extents_of(spans: list[tuple[int, int, bool]], name: bytes) -> list[Extent]:
    found: list[Extent] = []
    for start, length, is_zeros in sorted(spans):
        if not found or start >= found[-1].end:
            found.append(Extent(start, length) if is_zeros else Extent(start, length, name * 32, start))
    return found


def bytes_of(extents: list[Extent] | tuple[Extent, ...]) -> list[tuple[bytes, int] | None]:
    content: list[tuple[bytes, int] | None] = [None] * 100
    for each in extents:
        for at in range(each.length):
            content[each.start + at] = (each.chunk, each.offset + at) if each.chunk else None
    return content


@settings(max_examples=40)
@given(lower=SPANS, upper=SPANS, size=st.integers(0, 90))
def test_extents_laid_over_others_say_what_each_byte_is(
    lower: list[tuple[int, int, bool]], upper: list[tuple[int, int, bool]], size: int
) -> None:
    below = [each for each in extents_of(lower, b"l") if each.chunk]
    above = extents_of(upper, b"u")
    expected = bytes_of(below)
    for each in above:
        expected[each.start : each.end] = bytes_of([each])[each.start : each.end]
    result = overlay_extents(below, above, size)
    assert bytes_of(result) == expected[:size] + [None] * (100 - size)
    assert all(one.end <= other.start for one, other in itertools.pairwise(result))
