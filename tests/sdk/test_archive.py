"""Downloads are a hostile guest's word: nothing lands outside the target."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.base.errors import PathNotFoundError, UnsafeArchiveError, UnsupportedFileError
from dsec.sdk.archive import UnpackLimits, pack, unpack, unpack_stream


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", content: bytes = b""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, link, len(content), 0o6755
    return info, content


def archive(*entries: tuple[tarfile.TarInfo, bytes]) -> Iterator[bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    data = buffer.getvalue()
    return (data[start : start + 1000] for start in range(0, len(data), 1000))


@pytest.mark.parametrize(
    "entries",
    [
        [entry("/absolute", content=b"x")],
        [entry("../above", content=b"x")],
        [entry("a/../../above", content=b"x")],
        [entry("link", tarfile.SYMTYPE, link="/etc")],
        [entry("link", tarfile.SYMTYPE, link="..")],
        [entry("a/link", tarfile.SYMTYPE, link="../../x")],
        [entry("y", tarfile.SYMTYPE, link="."), entry("x", tarfile.SYMTYPE, link="y/..")],
        [entry("here", tarfile.SYMTYPE, link="."), entry("here/file", content=b"x")],
        [entry("d", tarfile.SYMTYPE, link="e"), entry("d", tarfile.DIRTYPE)],
        [entry("hard", tarfile.LNKTYPE, link="../outside")],
        [entry("hard", tarfile.LNKTYPE, link="not-there")],
        [entry("device", tarfile.CHRTYPE)],
        [entry("fifo", tarfile.FIFOTYPE)],
        [entry("/".join("d" * 1 for _ in range(200)), tarfile.DIRTYPE)],
    ],
)
def test_what_leads_out_is_refused(tmp_path: Path, entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    target = tmp_path / "target"
    (tmp_path / "outside").write_text("untouched")
    with pytest.raises(UnsafeArchiveError):
        unpack(archive(*entries), target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "target"]
    assert (tmp_path / "outside").read_text() == "untouched"


def test_a_link_that_was_there_before_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "outside").mkdir()
    (target / "door").symlink_to(tmp_path / "outside")
    (target / "file").symlink_to(tmp_path / "outside" / "made")
    with pytest.raises(UnsafeArchiveError):
        unpack(archive(entry("door/x", content=b"x")), target)
    unpack(archive(entry("file", content=b"x")), target)
    assert list((tmp_path / "outside").iterdir()) == []
    assert not (target / "file").is_symlink()


def test_outward_links_can_be_left_out_and_are_named(tmp_path: Path) -> None:
    entries = [entry("bin/python", tarfile.SYMTYPE, link="/usr/bin/python3"), entry("bin/x", content=b"x")]
    unpacked = unpack(archive(*entries), tmp_path / "t", skip_outward_links=True)
    assert unpacked.left_out == ("bin/python",)
    assert os.listdir(tmp_path / "t" / "bin") == ["x"]


def test_set_user_id_is_not_taken_over_and_links_inside_are(tmp_path: Path) -> None:
    entries = [
        entry("a/file", content=b"x"),
        entry("a/hard", tarfile.LNKTYPE, link="a/file"),
        entry("a/soft", tarfile.SYMTYPE, link="../a/file"),
    ]
    unpack(archive(*entries), tmp_path)
    assert (tmp_path / "a/file").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "a/hard").stat().st_nlink == 2
    assert (tmp_path / "a/soft").read_text() == "x"


def test_bytes_and_entries_are_bounded(tmp_path: Path) -> None:
    entries = [entry(str(number), content=b"x" * 600) for number in range(3)]
    with pytest.raises(UnsafeArchiveError, match="more than"):
        unpack(archive(*entries), tmp_path, limits=UnpackLimits(total_bytes=1500))
    with pytest.raises(UnsafeArchiveError, match="entries"):
        unpack(archive(*entries), tmp_path, limits=UnpackLimits(entries=2))


@pytest.mark.parametrize("data", [b"not a tar" * 200, next(iter(archive(entry("a", content=b"x" * 2000))))[:700]])
def test_a_damaged_archive_is_a_typed_error(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(UnsafeArchiveError):
        unpack([data], tmp_path)


@pytest.mark.anyio
async def test_the_streamed_way_raises_the_same_error(tmp_path: Path) -> None:
    async def chunks() -> object:
        for chunk in archive(entry("../x", content=b"x" * 5000)):
            yield chunk

    with pytest.raises(UnsafeArchiveError):
        await unpack_stream(chunks(), tmp_path)  # type: ignore[arg-type]


def test_any_tree_packs_into_a_tar_that_others_read(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff" + b"n" * 150)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / name).write_bytes(b"x" * 513)
    (tmp_path / "link").symlink_to("anywhere")
    with tarfile.open(fileobj=io.BytesIO(b"".join(pack(tmp_path))), errors="surrogateescape") as tar:
        assert tar.getnames() == ["d", "link", f"d/{name}"]
        extracted = tar.extractfile(f"d/{name}")
        assert extracted is not None
        assert extracted.read() == b"x" * 513


def test_special_files_are_refused_before_the_first_byte(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    os.mkfifo(tmp_path / "z")
    with pytest.raises(UnsupportedFileError, match="z"):
        next(pack(tmp_path))
    with pytest.raises(PathNotFoundError):
        next(pack(tmp_path / "none"))
