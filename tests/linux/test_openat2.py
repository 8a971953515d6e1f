"""Resolution below a root, with the links and moves of somebody who wants out."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dsec.linux import openat2, statfs
from dsec.linux.rename import rename_no_replace

CANARY = b"of the host"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A root directory beside a canary of the host."""
    (tmp_path / "canary").write_bytes(CANARY)
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/passwd").write_bytes(b"of the sandbox")
    return root


def _read(root: Path, path: bytes) -> bytes:
    root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        fd = openat2.open_in_root(root_fd, path, os.O_RDONLY)
        with open(fd, "rb") as file:
            return file.read()
    finally:
        os.close(root_fd)


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../../../../../../etc/passwd", "/../../etc/passwd", "etc/../../../etc/passwd"]
)
def test_links_out_end_inside(tree: Path, target: str) -> None:
    (tree / "link").symlink_to(target)
    assert _read(tree, b"/link") == b"of the sandbox"
    assert _read(tree, target.encode()) == b"of the sandbox"


def test_links_to_a_file_of_the_host_lead_nowhere(tree: Path) -> None:
    canary = tree.parent / "canary"
    (tree / "absolute").symlink_to(canary)
    (tree / "relative").symlink_to("../canary")
    assert (tree / "absolute").read_bytes() == (tree / "relative").read_bytes() == CANARY
    for name in (b"absolute", b"relative"):
        with pytest.raises(FileNotFoundError):
            _read(tree, name)


def test_magic_links_of_proc_are_refused() -> None:
    with pytest.raises(OSError, match="symbolic links") as caught:
        _read(Path("/proc"), b"/self/root/etc/passwd")
    assert caught.value.errno == errno.ELOOP


def test_a_path_with_nul_is_refused_and_not_cut(tree: Path) -> None:
    with pytest.raises(OSError, match="NUL"):
        _read(tree, b"/etc/passwd\0.txt")


def test_a_child_is_neither_link_nor_path_out(tree: Path) -> None:
    (tree / "link").symlink_to("etc")
    fd = os.open(tree, os.O_RDONLY)
    try:
        os.close(openat2.open_child(fd, b"etc", os.O_RDONLY))
        for name, code in ((b"link", errno.ELOOP), (b"..", errno.EXDEV), (b"/etc", errno.EXDEV)):
            with pytest.raises(OSError) as caught:  # noqa: PT011 (the errno is what is checked)
                openat2.open_child(fd, name, os.O_RDONLY)
            assert caught.value.errno == code
    finally:
        os.close(fd)


def test_reopening_opens_what_was_checked_even_when_the_name_moved(tree: Path) -> None:
    fd = os.open(tree / "etc/passwd", os.O_PATH)
    (tree / "etc/passwd").unlink()
    (tree / "etc/passwd").symlink_to(tree.parent / "canary")
    again = openat2.reopen(fd, os.O_RDONLY)
    os.close(fd)
    with open(again, "rb") as file:
        assert file.read() == b"of the sandbox"


def test_renaming_without_replacing_keeps_the_target(tree: Path) -> None:
    (tree / "a").mkdir()
    (tree / "b").mkdir()
    fd = os.open(tree, os.O_RDONLY)
    try:
        with pytest.raises(FileExistsError):
            rename_no_replace(fd, b"a", fd, b"b")
        rename_no_replace(fd, b"a", fd, b"c")
    finally:
        os.close(fd)
    assert sorted(os.listdir(tree)) == ["b", "c", "etc"]


def test_the_type_of_a_file_system_is_told() -> None:
    fd = os.open("/dev/shm", os.O_PATH)
    try:
        assert statfs.file_system_type(fd) == statfs.TMPFS
    finally:
        os.close(fd)
