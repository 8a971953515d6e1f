"""Tar streams are read strictly; Python's and GNU's writers are the oracles."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.base.errors import DsecError, InvalidRequestError, UnsafeArchiveError
from dsec.images.entries import Entry, EntryKind
from dsec.images.importers.tar_reader import TarReader


def read(data: bytes) -> list[tuple[Entry, bytes]]:
    reader = TarReader(io.BytesIO(data))
    return [(entry, b"".join(reader.content())) for entry in reader]


def archive(*members: tuple[tarfile.TarInfo, bytes], kind: int = tarfile.PAX_FORMAT) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=kind, errors="surrogateescape") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return output.getvalue()


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("name", ["short", "d/" * 60 + "long" * 30, "x" * 300, "umlaut-\u00e4", "raw-\udcff"])
def test_names_of_any_length_and_bytes_are_read(kind: int, name: str) -> None:
    info = tarfile.TarInfo(name)
    info.uid, info.mode, info.mtime = 3_000_000, 0o640, 1_600_000_000
    ((entry, content),) = read(archive((info, b"data"), kind=kind))
    assert entry.path == os.fsencode(name)
    assert (entry.uid, entry.mode, entry.mtime_s, content) == (3_000_000, 0o640, 1_600_000_000, b"data")


def test_attributes_are_bytes() -> None:
    info = tarfile.TarInfo("a")
    info.pax_headers = {"SCHILY.xattr.user.note": "\udcff\x01=\n"}
    ((entry, _),) = read(archive((info, b"")))
    assert entry.xattrs == {b"user.note": b"\xff\x01=\n"}


def test_long_link_targets_are_read() -> None:
    for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        info = tarfile.TarInfo("a")
        info.type, info.linkname = tarfile.SYMTYPE, "t/" * 100
        ((entry, _),) = read(archive((info, b""), kind=kind))
        assert (entry.kind, entry.link) == (EntryKind.SYMBOLIC_LINK, b"t/" * 100)


def test_what_gnu_tar_writes_is_read(tmp_path: Path) -> None:
    (tmp_path / "t/d").mkdir(parents=True)
    (tmp_path / "t/d/f").write_bytes(b"x" * 5000)
    os.link(tmp_path / "t/d/f", tmp_path / "t/d/g")
    os.symlink("f", tmp_path / "t/d/l")
    for form in ("gnu", "pax", "ustar", "v7"):
        data = subprocess.run(
            ["tar", f"--format={form}", "--sort=name", "-C", tmp_path / "t", "-c", "."], capture_output=True, check=True
        ).stdout
        kinds = [(entry.path, entry.kind) for entry, _ in read(data)]
        assert kinds == [
            (b"./", EntryKind.DIRECTORY),
            (b"./d/", EntryKind.DIRECTORY),
            (b"./d/f", EntryKind.FILE),
            (b"./d/g", EntryKind.HARD_LINK),
            (b"./d/l", EntryKind.SYMBOLIC_LINK),
        ]


def test_content_that_is_not_asked_for_is_skipped() -> None:
    data = archive((tarfile.TarInfo("a"), b"x" * 100_000), (tarfile.TarInfo("b"), b"y"))
    reader = TarReader(io.BytesIO(data))
    assert [entry.path for entry in reader] == [b"a", b"b"]


@pytest.mark.parametrize("keep", [0, 100, 512, 700, 1024])
def test_cut_off_archive_is_an_error(keep: int) -> None:
    data = archive((tarfile.TarInfo("a"), b"x" * 600))
    with pytest.raises(InvalidRequestError, match="ends in the middle"):
        read(data[:keep])


@pytest.mark.parametrize("keep", [512 + 600, 512 + 1000, 512 + 1024])
def test_verified_stream_may_end_without_padding_and_marker(keep: int) -> None:
    data = archive((tarfile.TarInfo("a"), b"x" * 600), kind=tarfile.USTAR_FORMAT)[:keep]
    reader = TarReader(io.BytesIO(data), is_verified=True)
    assert [(entry.path, b"".join(reader.content())) for entry in reader] == [(b"a", b"x" * 600)]
    with pytest.raises(InvalidRequestError, match="ends in the middle"):
        read(data)


def test_damaged_header_in_the_middle_is_an_error_and_not_the_end() -> None:
    data = bytearray(archive((tarfile.TarInfo("a"), b"x"), (tarfile.TarInfo("b"), b"y"), kind=tarfile.USTAR_FORMAT))
    data[1024 + 10] ^= 1
    with pytest.raises(InvalidRequestError, match="byte 1024"):
        read(bytes(data))


def test_something_else_is_no_tar() -> None:
    with pytest.raises(InvalidRequestError, match="no tar"):
        read(b"hello" * 1000)


def test_extended_header_that_would_fill_memory_is_refused() -> None:
    info = tarfile.TarInfo("a")
    info.type, info.size = tarfile.XHDTYPE, 1 << 32
    with pytest.raises(UnsafeArchiveError, match="extended header"):
        read(info.tobuf(tarfile.USTAR_FORMAT) + bytes(1024))


@pytest.mark.parametrize(
    "record",
    [b"nonsense", b"99 path=a\n", b"5 a=\n", b"0 path=a\n", b"12 path=abcd", b"-9 path=a\n", b"11 path\nabc\n"],
)
def test_malformed_pax_record_is_an_error(record: bytes) -> None:
    info = tarfile.TarInfo("a")
    info.type, info.size = tarfile.XHDTYPE, len(record)
    block = info.tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0")
    try:
        entries = read(block + archive((tarfile.TarInfo("a"), b"")))
    except InvalidRequestError:
        return
    # "5 a=\n" is well-formed: an unknown key without a value.
    assert record == b"5 a=\n"
    assert [entry.path for entry, _ in entries] == [b"a"]


SPARSE_WAYS = [["--format=gnu"], ["--format=pax", "--sparse-version=0.1"], ["--format=pax", "--sparse-version=1.0"]]


@pytest.mark.parametrize("way", SPARSE_WAYS, ids=lambda way: way[-1].removeprefix("--"))
@pytest.mark.parametrize(
    "pieces", [[], [0], [3], list(range(0, 120, 2)), [4, 5, 6, 127]], ids=lambda each: f"{len(each)}"
)
def test_sparse_files_are_read_with_their_holes(tmp_path: Path, way: list[str], pieces: list[int]) -> None:
    size = 1 << 22
    with open(tmp_path / "s", "wb") as file:
        for piece in pieces:
            file.seek(piece * 32_768)
            file.write(bytes([piece + 1]) * 9000)
        file.truncate(size)
    (tmp_path / "z").write_bytes(b"behind it")
    tar = ["tar", *way, "--sparse", "-C", str(tmp_path), "-c", "s", "z"]
    data = subprocess.run(tar, capture_output=True, check=True).stdout
    (sparse, content), (behind, rest) = read(data)
    assert len(data) < size // 2
    assert (sparse.path, sparse.size_bytes) == (b"s", size)
    assert content == (tmp_path / "s").read_bytes()
    assert (behind.path, rest) == (b"z", b"behind it")
    # Whoever does not want it skips what is stored, and none of the zeros.
    assert [entry.path for entry in TarReader(io.BytesIO(data))] == [b"s", b"z"]


def pax_archive(records: dict[str, str], content: bytes) -> bytes:
    info = tarfile.TarInfo("s")
    info.size, info.pax_headers = len(content), records
    return archive((info, content))


@pytest.mark.parametrize(
    ("records", "content"),
    [
        ({"GNU.sparse.size": "9", "GNU.sparse.numblocks": "1"}, b"abc"),
        ({"GNU.sparse.size": "9", "GNU.sparse.map": "0,3,2,3"}, b"abcdef"),
        ({"GNU.sparse.size": "9", "GNU.sparse.map": "0,3"}, b"abcdef"),
        ({"GNU.sparse.size": "9", "GNU.sparse.map": "8,3"}, b"abc"),
        ({"GNU.sparse.size": "9", "GNU.sparse.map": "0,3,4"}, b"abc"),
        ({"GNU.sparse.size": "9", "GNU.sparse.map": "0,-3"}, b"abc"),
        ({"GNU.sparse.size": "x", "GNU.sparse.map": "0,3"}, b"abc"),
        ({"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}, b"2\n0\n"),
        ({"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}, b"9" * 600),
        ({"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}, b"9999999\n" * 99),
        ({"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}, b"".ljust(512, b"\n")),
        ({"GNU.sparse.major": "2", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}, b"0\n".ljust(512, b"\0")),
    ],
)
def test_sparse_maps_that_contradict_themselves_are_refused(records: dict[str, str], content: bytes) -> None:
    with pytest.raises(UnsafeArchiveError, match="'s' is refused"):
        read(pax_archive(records, content))


def test_old_sparse_maps_that_go_on_for_ever_are_refused() -> None:
    info = tarfile.TarInfo("s")
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[156:157] = b"S"
    block[482] = 1
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    longer = bytearray((b"00000000001\0" * 42).ljust(512, b"\0"))
    longer[504] = 1
    with pytest.raises(UnsafeArchiveError, match="pieces"):
        read(bytes(block) + bytes(longer) * 50_000)
    with pytest.raises(InvalidRequestError, match="ends in the middle"):
        read(bytes(block) + bytes(longer))


def test_extended_headers_that_add_up_without_bound_are_refused() -> None:
    def header(number: int, kind: bytes) -> bytes:
        record = b"700000 SCHILY.xattr.user.%d=" % number
        record = record + b"x" * (700_000 - len(record) - 1) + b"\n"
        info = tarfile.TarInfo("long")
        info.type, info.size = kind, len(record)
        return info.tobuf(tarfile.USTAR_FORMAT) + record.ljust(-(-len(record) // 512) * 512, b"\0")

    for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE):
        with pytest.raises(UnsafeArchiveError, match="extended headers"):
            read(header(1, kind) + header(2, kind) + archive((tarfile.TarInfo("a"), b"")))


def test_device_numbers_that_do_not_exist_are_refused() -> None:
    info = tarfile.TarInfo("d")
    info.type, info.devmajor = tarfile.CHRTYPE, 1 << 40
    with pytest.raises(UnsafeArchiveError, match="no device"):
        read(archive((info, b""), kind=tarfile.GNU_FORMAT))


@given(data=st.binary(max_size=2048), position=st.integers(0, 3000))
@settings(max_examples=200, deadline=None)
def test_any_damage_is_a_typed_error_or_reads(data: bytes, position: int) -> None:
    whole = bytearray(archive((tarfile.TarInfo("a" * 200), b"x" * 700), (tarfile.TarInfo("b"), b"y")))
    whole[position : position + len(data)] = data
    try:
        read(bytes(whole))
    except DsecError:
        pass
