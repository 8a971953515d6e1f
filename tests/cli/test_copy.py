"""`dsec sandbox cp` and `files`."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import UnsafeArchiveError
from dsec.cli.sandbox import archive
from dsec.testing.command_line import Dsec


@pytest.fixture
def box(dsec: Dsec) -> str:
    return dsec.create("--id", "sbx-12345", "-u", "root")


def test_a_file_goes_in_and_out_with_content_and_mode(dsec: Dsec, box: str, tmp_path: Path) -> None:
    source = tmp_path / "script"
    source.write_bytes(os.urandom(1 << 20))
    source.chmod(0o750)
    dsec.ok("sandbox", "cp", str(source), f"{box}:/tmp/script")
    dsec.ok("sandbox", "cp", f"{box}:/tmp/script", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    assert stat.S_IMODE((tmp_path / "back").stat().st_mode) == 0o750


def test_a_directory_goes_in_and_out(dsec: Dsec, box: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "file").write_bytes(os.urandom(700_000))
    (tree / "empty").mkdir()
    (tree / "link").symlink_to("a/b/file")
    dsec.ok("sandbox", "cp", str(tree), f"{box}:/tmp/tree")
    dsec.ok("sandbox", "cp", f"{box}:/tmp/tree", str(tmp_path / "back"))
    back = tmp_path / "back"
    assert (back / "a" / "b" / "file").read_bytes() == (tree / "a" / "b" / "file").read_bytes()
    assert (back / "empty").is_dir()
    assert os.readlink(back / "link") == "a/b/file"


def test_an_existing_directory_receives_the_source_under_its_name(dsec: Dsec, box: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    dsec.ok("sandbox", "cp", str(tmp_path / "file"), f"{box}:/tmp")
    assert dsec.ok("sandbox", "cp", f"{box}:/tmp/file", "-") == "x"
    (tmp_path / "into").mkdir()
    dsec.ok("sandbox", "cp", f"{box}:/tmp/file", str(tmp_path / "into"))
    assert (tmp_path / "into" / "file").read_text() == "x"


def test_dash_is_the_standard_streams(dsec: Dsec, box: str) -> None:
    data = bytes(range(256)) * 300
    dsec.ok("sandbox", "cp", "-", f"{box}:/tmp/dir/file", input=data)
    assert dsec("sandbox", "cp", f"{box}:/tmp/dir/file", "-").stdout_bytes == data
    with tarfile.open(fileobj=io.BytesIO(dsec("sandbox", "cp", f"{box}:/tmp/dir", "-").stdout_bytes)) as tar:
        assert tar.getnames() == ["file"]


def test_devices_and_fifos_of_this_host_stay_out_and_are_named(dsec: Dsec, box: str, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    os.mkfifo(tmp_path / "tree" / "fifo")
    (tmp_path / "tree" / "file").write_text("x")
    result = dsec("sandbox", "cp", str(tmp_path / "tree"), f"{box}:/tmp/tree")
    assert (result.exit_code, result.stderr) == (0, "left out: 'fifo'\n")
    names = [row["name"] for row in dsec.json("sandbox", "files", box, "/tmp/tree", "--json")]
    assert names == ["file"]
    assert dsec("sandbox", "cp", str(tmp_path / "tree" / "fifo"), f"{box}:/tmp/x").exit_code == 64


@pytest.mark.anyio
async def test_what_the_server_left_out_of_an_archive_is_named(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        remark = tarfile.TarInfo(".")
        remark.type, remark.mode = tarfile.DIRTYPE, 0o755
        remark.pax_headers = {"DSEC.left_out": '["a fifo", "b/socket"]', "DSEC.left_out_count": "2"}
        tar.addfile(remark)

    async def content() -> AsyncIterator[bytes]:
        yield buffer.getvalue()

    assert await archive.unpack(content(), tmp_path) == ["a fifo", "b/socket"]


@pytest.mark.parametrize(
    ("source", "target", "code"),
    [
        ("a", "b", 64),
        ("sbx-12345:/a", "sbx-12345:/b", 64),
        ("/no/such/file", "sbx-12345:/tmp/x", 66),
        ("sbx-12345:/no/such", "-", 66),
        ("sbx-absent:/x", "-", 66),
        ("sbx-12345:/tmp", "/no/such/directory/x", 66),
    ],
)
def test_what_cannot_be_copied_is_told_with_its_code(source: str, target: str, code: int, dsec: Dsec, box: str) -> None:
    result = dsec("sandbox", "cp", source, target)
    assert result.exit_code == code
    assert result.stderr.startswith("error [")


def test_a_failed_copy_leaves_what_was_there(dsec: Dsec, box: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")
    assert dsec("sandbox", "cp", f"{box}:/no/such", str(tmp_path / "file")).exit_code == 66
    assert (tmp_path / "file").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []


def test_files_lists_with_path_in_place_and_by_option(dsec: Dsec, box: str) -> None:
    dsec.ok("sandbox", "cp", "-", f"{box}:/tmp/dir/file", input=b"12345")
    (row,) = dsec.json("sandbox", "files", box, "/tmp/dir", "--json")
    assert (row["path"], row["kind"], row["size_bytes"]) == ("/tmp/dir/file", "file", 5)
    assert dsec.json("sandbox", "files", "--id", box, "/tmp/dir", "--json") == [row]
    assert "-rw-r--r--" in dsec.ok("sandbox", "files", box, "/tmp/dir/file")


def test_names_that_a_guest_chose_do_not_steer_the_terminal(dsec: Dsec, box: str, tmp_path: Path) -> None:
    (tmp_path / "\x1b[31mred\n").write_text("x")
    dsec.ok("sandbox", "cp", str(tmp_path / "\x1b[31mred\n"), f"{box}:/tmp/")
    text = dsec.ok("sandbox", "files", box, "/tmp")
    assert "\x1b" not in text
    assert "\\x1b[31mred\\x0a" in text


# -- archives that a hostile guest could send ---------------------------------------------------------------------


def _tar(*members: tuple[str, str, bytes, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, content, link in members:
            member = tarfile.TarInfo(name)
            member.type = {"file": tarfile.REGTYPE, "link": tarfile.SYMTYPE, "device": tarfile.CHRTYPE}[kind]
            member.size, member.linkname, member.mode = len(content), link, 0o4755
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _unpack(data: bytes, directory: Path) -> list[str]:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 1000):
            yield data[start : start + 1000]

    return anyio.run(archive.unpack, pieces(), directory)


def test_what_would_leave_the_directory_is_left_out_and_named(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    left_out = _unpack(
        _tar(
            ("../escaped", "file", b"x", ""),
            ("out", "link", b"", "/etc"),
            ("out/passwd", "file", b"x", ""),
            ("null", "device", b"", ""),
            ("good", "file", b"y", ""),
        ),
        target,
    )
    assert left_out == ["../escaped", "out", "null"]
    assert not (tmp_path / "escaped").exists()
    assert (target / "good").read_bytes() == b"y"
    assert not (target / "out").is_symlink()
    assert stat.S_IMODE((target / "good").stat().st_mode) & stat.S_ISUID == 0


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsafeArchiveError):
        _unpack(b"this is not a tar archive" * 100, tmp_path)


def test_a_reader_that_leaves_early_ends_the_packing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(8 << 20))

    async def leave() -> None:
        async with archive.pack(tmp_path, []) as content:
            async for _ in content:
                break

    anyio.run(leave)
