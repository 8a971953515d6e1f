"""The incremental tar parser: pure, so that its tests are archives in and events out."""

from __future__ import annotations

import io
import itertools
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError, UnsafeArchiveError
from dsec.runtimes.container import tarstream
from dsec.runtimes.container.tarstream import EntryKind, TarEntry, TarParser, parse_pax_records
from dsec.testing.files_suite import make_archive, member

_CONTENT = bytes(range(256)) * 9


def parse(data: bytes, cuts: list[int] | None = None) -> list[tuple[TarEntry, bytes]]:
    """Parse an archive given in pieces that end at `cuts`."""
    parser = TarParser()
    found: list[tuple[TarEntry, bytes]] = []
    edges = [0, *sorted(cuts or []), len(data)]
    for start, end in itertools.pairwise(edges):
        for event in parser.feed(data[start:end]):
            if isinstance(event, TarEntry):
                found.append((event, b""))
            else:
                found[-1] = (found[-1][0], found[-1][1] + event)
    parser.check_ended()
    return found


def _archive(form: int) -> bytes:
    return make_archive(
        [
            (member("d/", tarfile.DIRTYPE), b""),
            (member("./d/" + "n" * 120 + "/" + "m" * 120), _CONTENT),
            (member("d/empty"), b""),
            (member("d/link", tarfile.SYMTYPE, link="x" * 200), b""),
            (member("d/hard", tarfile.LNKTYPE, link="d/empty"), b""),
            (member("last"), b"z" * 512),
        ],
        form=form,
    )


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@given(cuts=st.lists(st.integers(0, 12_000), max_size=12))
def test_any_cut_of_the_stream_gives_the_same_entries(form: int, cuts: list[int]) -> None:
    data = _archive(form)
    found = parse(data, [min(cut, len(data)) for cut in cuts])
    assert [entry.kind for entry, _ in found] == [
        EntryKind.DIRECTORY, EntryKind.FILE, EntryKind.FILE, EntryKind.SYMLINK, EntryKind.HARD_LINK, EntryKind.FILE,
    ]  # fmt: skip
    assert [content for _, content in found] == [b"", _CONTENT, b"", b"", b"", b"z" * 512]
    assert found[1][0].parts == (b"d", b"n" * 120, b"m" * 120)
    assert found[3][0].target == b"x" * 200
    assert found[4][0].target_parts == (b"d", b"empty")


@given(data=st.binary(max_size=4096))
def test_garbage_ends_in_a_typed_error(data: bytes) -> None:
    if data[:512].strip(b"\0"):
        with pytest.raises(InvalidRequestError):
            parse(data)


@given(at=st.integers(0, 511), byte=st.integers(0, 255))
def test_a_damaged_header_never_escapes_the_typed_errors(at: int, byte: int) -> None:
    data = bytearray(make_archive([(member("name"), b"x")]))
    data[at] = byte
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + sum(data[156:512]) + 8 * 32)
    try:
        parse(bytes(data))
    except InvalidRequestError:
        pass


@pytest.mark.parametrize(
    ("archive", "why"),
    [
        (make_archive([(member("/etc/passwd"), b"")]), "absolute"),
        (make_archive([(member("a/../../b"), b"")]), "climbs"),
        (make_archive([(member("/".join("d" * 300)), b"")]), "levels deep"),
        (make_archive([(member("n" * 256), b"")]), "too long"),
        (make_archive([(member("x/" * 2100), b"")]), "bytes"),
        (make_archive([(member("s", tarfile.SYMTYPE, link="x" * 5000), b"")]), "target"),
        (make_archive([(member("h", tarfile.LNKTYPE, link="../x"), b"")]), "climbs"),
        (make_archive([(member("s", tarfile.GNUTYPE_SPARSE), b"")]), "sparse"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_entries_out_of_bounds_are_refused_by_name(archive: bytes, why: str) -> None:
    with pytest.raises(UnsafeArchiveError, match=why):
        parse(archive)


def test_sparse_files_of_pax_archives_are_refused() -> None:
    info = member("sparse")
    info.pax_headers = {"GNU.sparse.major": "1"}
    with pytest.raises(UnsafeArchiveError, match="sparse"):
        parse(make_archive([(info, b"")]))


def test_a_size_beyond_the_bound_is_refused_at_its_header() -> None:
    info = member("bomb")
    info.size = tarstream.MAXIMUM_BYTES + 1
    with pytest.raises(UnsafeArchiveError, match="bomb"):
        parse(info.tobuf(tarfile.PAX_FORMAT))


def test_too_many_entries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tarstream, "MAXIMUM_ENTRIES", 3)
    with pytest.raises(UnsafeArchiveError, match="entry number 4"):
        parse(make_archive([(member(str(number)), b"") for number in range(9)]))


def test_an_extended_header_without_bound_is_refused() -> None:
    info = member("././@LongLink", tarfile.GNUTYPE_LONGNAME)
    info.size = tarstream.MAXIMUM_EXTENSION_BYTES + 1
    with pytest.raises(UnsafeArchiveError, match="extended header"):
        parse(info.tobuf(tarfile.GNU_FORMAT))


def test_global_headers_may_comment_but_not_rename() -> None:
    plain = make_archive([(member("f"), b"x")])
    comment = tarfile.TarInfo.create_pax_global_header({"comment": "a commit"})
    assert [entry.name for entry, _ in parse(comment + plain)] == [b"f"]
    renaming = tarfile.TarInfo.create_pax_global_header({"path": "/etc/passwd"})
    with pytest.raises(UnsafeArchiveError, match="path"):
        parse(renaming + plain)


def test_a_compressed_archive_is_named_so() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(member("f"))
    with pytest.raises(InvalidRequestError, match="compressed"):
        parse(buffer.getvalue() + bytes(1024))


@pytest.mark.parametrize("content", [b"x", b"9 a=b\n", b"0 a=b\n", b"6 ab\n\n", b"99999999 a=b\n"])
def test_malformed_pax_records_are_refused(content: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        parse_pax_records(content)


def test_pax_records_may_hold_newlines_and_equals_signs() -> None:
    assert parse_pax_records(b"11 a=b=c\nd\n") == {"a": b"b=c\nd"}
