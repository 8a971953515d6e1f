"""Trees written from entries that nobody trusts stay inside their root."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError, UnsafeArchiveError
from dsec.images.entries import Entry, EntryKind
from dsec.images.staging import remove_tree
from dsec.images.tree_writer import ArchiveLimits, TreeWriter


def file(path: bytes, **fields: object) -> Entry:
    return Entry(path=path, kind=EntryKind.FILE, size_bytes=1, **fields)  # type: ignore[arg-type]


def link(path: bytes, target: bytes) -> Entry:
    return Entry(path=path, kind=EntryKind.SYMBOLIC_LINK, link=target)


def hard_link(path: bytes, target: bytes) -> Entry:
    return Entry(path=path, kind=EntryKind.HARD_LINK, link=target)


def directory(path: bytes, **fields: object) -> Entry:
    return Entry(path=path, kind=EntryKind.DIRECTORY, **fields)  # type: ignore[arg-type]


def write(root: Path, *entries: Entry, limits: ArchiveLimits | None = None) -> TreeWriter:
    with TreeWriter(root, limits=limits or ArchiveLimits()) as writer:
        for entry in entries:
            writer.add(entry, [b"x"] * (entry.kind is EntryKind.FILE))
    return writer


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.mkdir()
    (path / "secret").write_text("secret")
    return path


@pytest.mark.parametrize("path", [b"/etc/passwd", b"../x", b"a/../../x", b"..", b"a\0b", b"a" * 256, b"a/" * 2000])
def test_path_that_could_escape_or_is_too_long_is_refused(tmp_path: Path, path: bytes) -> None:
    with pytest.raises(UnsafeArchiveError) as caught:
        write(tmp_path / "root", file(path))
    assert repr(path[:8].decode())[1:5] in caught.value.brief
    assert list((tmp_path / "root").iterdir()) == []


@pytest.mark.parametrize("target", [b"/", b"..", b"../outside", b"/proc/self/root"])
def test_nothing_is_written_through_a_link_of_the_archive(tmp_path: Path, outside: Path, target: bytes) -> None:
    with pytest.raises(UnsafeArchiveError, match="link"):
        write(tmp_path / "root", link(b"way", target), file(b"way/planted"))
    assert not (outside / "planted").exists()


def test_link_through_two_directories_is_not_followed_either(tmp_path: Path, outside: Path) -> None:
    with pytest.raises(UnsafeArchiveError):
        write(tmp_path / "root", directory(b"a"), link(b"a/b", b"../../outside"), directory(b"a/b/c"))
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_file_over_a_link_replaces_the_link_and_not_its_target(tmp_path: Path, outside: Path) -> None:
    write(tmp_path / "root", link(b"a", os.fsencode(outside / "secret")), file(b"a"))
    assert (tmp_path / "root/a").read_text() == "x"
    assert (outside / "secret").read_text() == "secret"


@pytest.mark.parametrize("target", [b"../outside/secret", b"/etc/passwd", b"missing", b"", b"d"])
def test_hard_link_to_what_the_archive_does_not_hold_is_refused(tmp_path: Path, outside: Path, target: bytes) -> None:
    with pytest.raises(UnsafeArchiveError):
        write(tmp_path / "root", directory(b"d"), hard_link(b"a", target))


def test_hard_link_through_a_link_is_refused(tmp_path: Path, outside: Path) -> None:
    with pytest.raises(UnsafeArchiveError):
        write(tmp_path / "root", link(b"way", b"../outside"), hard_link(b"a", b"way/secret"))


def test_hard_link_joins_two_entries(tmp_path: Path) -> None:
    write(tmp_path / "root", file(b"d/a"), hard_link(b"b", b"d/a"), hard_link(b"b", b"b"))
    assert os.stat(tmp_path / "root/b").st_ino == os.stat(tmp_path / "root/d/a").st_ino


def test_directory_with_content_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    with pytest.raises(UnsafeArchiveError, match="directory"):
        write(tmp_path / "root", file(b"d/a"), file(b"d"))


def test_directory_over_a_link_replaces_it(tmp_path: Path, outside: Path) -> None:
    write(tmp_path / "root", link(b"d", b"../outside"), directory(b"d"), file(b"d/a"))
    assert not (tmp_path / "root/d").is_symlink()
    assert not (outside / "a").exists()


DISK = Entry(
    path=b"disk", kind=EntryKind.BLOCK_DEVICE, mode=0o640, uid=3, gid=6, mtime_s=7, device=os.makedev(8, 70_000)
)


@pytest.mark.root
def test_devices_have_their_numbers_owners_modes_and_names(tmp_path: Path) -> None:
    other = Entry(path=b"d/null", kind=EntryKind.CHARACTER_DEVICE, mode=0o4666, device=os.makedev(1, 3))
    writer = write(tmp_path / "root", file(b"disk"), DISK, other, hard_link(b"again", b"disk"))
    found, null = os.lstat(tmp_path / "root/disk"), os.lstat(tmp_path / "root/d/null")
    assert (found.st_mode, found.st_rdev) == (stat.S_IFBLK | 0o640, os.makedev(8, 70_000))
    assert (found.st_uid, found.st_gid, found.st_mtime, found.st_nlink) == (3, 6, 7, 2)
    assert (null.st_mode, null.st_rdev) == (stat.S_IFCHR | 0o4666, os.makedev(1, 3))
    assert writer.warnings == ()


def test_devices_are_left_out_and_counted_with_all_their_names_without_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if os.geteuid() == 0:
        monkeypatch.setattr(os, "mknod", refused)
    names = hard_link(b"again", b"disk"), hard_link(b"and/again", b"again")
    writer = write(tmp_path / "root", DISK, *names)
    assert sorted(os.listdir(tmp_path / "root")) == ["and"]
    assert writer.warnings == (
        "1 x device nodes left out, since making them needs root",
        "2 x further names of device nodes left out",
    )


def test_archive_cannot_make_a_whiteout_or_steer_overlayfs(tmp_path: Path) -> None:
    attributes = {b"trusted.overlay.opaque": b"y", b"trusted.overlay.redirect": b"/etc", b"security.selinux": b"x"}
    writer = write(
        tmp_path / "root",
        Entry(path=b"gone", kind=EntryKind.CHARACTER_DEVICE),
        hard_link(b"too", b"gone"),
        directory(b"d", xattrs=attributes),
    )
    assert os.listdir(tmp_path / "root") == ["d"]
    assert os.listxattr(tmp_path / "root/d") == []
    assert len(writer.warnings) == 5


@pytest.mark.root
def test_owner_mode_time_and_capability_are_kept(tmp_path: Path) -> None:
    capability = bytes.fromhex("0100000200200000000000000000000000000000")
    entries = [
        directory(b"d", mode=0o1770, uid=3, gid=4, mtime_s=1_500_000_000),
        file(
            b"d/f",
            mode=0o4755,
            uid=1000,
            gid=1001,
            mtime_s=1_600_000_000.9,
            xattrs={b"security.capability": capability},
        ),
    ]
    write(tmp_path / "root", *entries)
    seen = os.stat(tmp_path / "root/d")
    assert (stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid, seen.st_mtime) == (0o1770, 3, 4, 1_500_000_000)
    seen = os.stat(tmp_path / "root/d/f")
    assert (stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid, seen.st_mtime) == (0o4755, 1000, 1001, 1_600_000_000)
    assert os.getxattr(tmp_path / "root/d/f", "security.capability") == capability


@pytest.mark.parametrize(
    "limits",
    [
        ArchiveLimits(entries=2),
        ArchiveLimits(names_bytes=5),
        ArchiveLimits(total_bytes=2),
        ArchiveLimits(path_bytes=3),
        ArchiveLimits(depth=1),
    ],
)
def test_passing_a_limit_names_the_entry(tmp_path: Path, limits: ArchiveLimits) -> None:
    with pytest.raises(UnsafeArchiveError, match="c/cc"):
        write(tmp_path / "root", file(b"a"), file(b"b"), file(b"c/cc"), limits=limits)


_NAMES = st.sampled_from([b"a", b"b", b"..", b".", b"", b"\xff", b"/", b"way"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=4).map(b"/".join)
_ENTRIES: st.SearchStrategy[Entry] = st.one_of(
    st.builds(file, _PATHS),
    st.builds(directory, _PATHS),
    st.builds(link, _PATHS, st.one_of(_PATHS, st.just(b"../outside"), st.just(b"../../outside"))),
    st.builds(hard_link, _PATHS, st.one_of(_PATHS, st.just(b"../outside/secret"))),
)


@given(entries=st.lists(_ENTRIES, max_size=12))
@settings(max_examples=150, deadline=None)
def test_no_sequence_of_entries_reaches_outside(tmp_path_factory: pytest.TempPathFactory, entries: list[Entry]) -> None:
    base = tmp_path_factory.mktemp("case")
    outside = base / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    before = _fingerprint(outside)
    with TreeWriter(base / "root") as writer:
        for entry in entries:
            try:
                writer.add(entry, [b"x"] * (entry.kind is EntryKind.FILE))
            except InvalidRequestError:
                continue
    assert sorted(path.name for path in base.iterdir()) == ["outside", "root"]
    assert _fingerprint(outside) == before
    remove_tree(base)


def _fingerprint(path: Path) -> list[tuple[str, int, int]]:
    return [(entry.name, entry.stat().st_nlink, entry.stat().st_mtime_ns) for entry in os.scandir(path)]


def test_warnings_stay_few_and_short_whatever_an_archive_calls_its_attributes(tmp_path: Path) -> None:
    entries = (file(b"%d" % number, xattrs={b"evil.%d" % number + b"x" * 10_000: b""}) for number in range(200))
    warnings = write(tmp_path / "root", *entries).warnings
    assert len(warnings) == 101
    assert "100 x further things left out or changed" in warnings
    assert max(map(len, warnings)) < 200


def test_open_descriptors_are_closed_after_an_error(tmp_path: Path) -> None:
    count: Callable[[], int] = lambda: len(os.listdir("/proc/self/fd"))  # noqa: E731
    before = count()
    for number in range(5):
        with pytest.raises(UnsafeArchiveError):
            write(tmp_path / f"root{number}", file(b"a/b/c/d"), hard_link(b"x/y", b"nowhere/z"))
    assert count() == before
