"""The mount table, and mounts that nobody sees until they are attached."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.linux import mounts
from dsec.linux.userns import make_user_namespace

FIRST = 0x60_0000


def test_table_is_parsed_with_its_escapes(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "21 1 8:1 / / rw,relatime shared:1 master:2 - ext4 /dev/sda1 rw,errors=remount-ro\n"
        "30 21 0:5 /a /mnt/with\\040space\\011tab\\134n ro - tmpfs none rw,size=1k\n"
    )
    first, second = mounts.mount_table(str(table))
    assert (first.mount_id, first.target, first.kind, first.source) == (21, "/", "ext4", "/dev/sda1")
    assert "errors=remount-ro" in first.options
    assert (second.target, second.kind, second.options) == ("/mnt/with space\ttab\\n", "tmpfs", "ro,rw,size=1k")


def test_own_table_holds_proc() -> None:
    assert any(entry.target == "/proc" and entry.kind == "proc" for entry in mounts.mount_table())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory; what is still mounted below it at the end is unmounted."""
    directory = tmp_path / "place with space"
    directory.mkdir()
    yield directory
    for entry in mounts.mounts_under(directory):
        mounts.unmount(entry.target, detach=True)


@pytest.mark.root
def test_mounts_below_a_directory_are_listed_deepest_first(place: Path) -> None:
    mounts.mount("tmpfs", place, "tmpfs", mounts.MS_NOSUID | mounts.MS_NODEV, "size=64k")
    (place / "inner").mkdir()
    mounts.mount("tmpfs", place / "inner", "tmpfs")
    (place.parent / "place with space and more").mkdir()
    listed = [entry.target for entry in mounts.mounts_under(place)]
    assert listed == [str(place / "inner"), str(place)]
    for target in listed:
        mounts.unmount(target)
    assert list(mounts.mounts_under(place)) == []


@pytest.mark.root
def test_detached_mount_is_in_no_table_until_it_is_attached(place: Path) -> None:
    descriptor = mounts.new_mount("tmpfs", [("size", "64k"), ("mode", "0711")])
    try:
        os.mkdir("made", dir_fd=descriptor)
        assert list(mounts.mounts_under(place)) == []
        mounts.move_mount(descriptor, place)
    finally:
        os.close(descriptor)
    assert os.listdir(place) == ["made"]
    assert place.stat().st_mode & 0o7777 == 0o711
    mounts.unmount(place)
    assert os.listdir(place) == []


@pytest.mark.root
def test_file_system_refuses_in_its_own_words() -> None:
    with pytest.raises(OSError, match="no-such-option") as caught:
        mounts.new_mount("tmpfs", [("no-such-option", "x")])
    assert caught.value.filename == "tmpfs option no-such-option"
    with pytest.raises(OSError, match="No such device"):
        mounts.new_mount("no-such-file-system", [])


@pytest.mark.root
def test_errors_name_the_path(place: Path) -> None:
    for call in (
        lambda: mounts.unmount(place),
        lambda: mounts.open_tree(place / "nothing"),
        lambda: mounts.mount("tmpfs", place / "nothing", "tmpfs"),
    ):
        with pytest.raises(OSError) as caught:  # noqa: PT011 (each has a number of its own)
            call()
        assert str(place) in str(caught.value.filename)


@pytest.mark.root
def test_owners_are_mapped_both_ways(place: Path) -> None:
    (place / "of-root").touch()
    (place / "of-user").touch()
    os.chown(place / "of-user", 1000, 1001)
    (place / "of-nobody").touch()
    os.chown(place / "of-nobody", 0x70_0000, 0x70_0000)
    namespace = make_user_namespace(FIRST)
    tree = mounts.open_tree(place)
    try:
        mounts.map_ids(tree, namespace)
        owners = {name: os.stat(name, dir_fd=tree)[4:6] for name in os.listdir(place)}
        os.chown("of-root", FIRST + 7, FIRST + 8, dir_fd=tree)
    finally:
        os.close(tree)
        os.close(namespace)
    assert owners["of-root"] == (FIRST, FIRST)
    assert owners["of-user"] == (FIRST + 1000, FIRST + 1001)
    assert owners["of-nobody"] == (65_534, 65_534)
    assert (place / "of-root").stat()[4:6] == (7, 8)
