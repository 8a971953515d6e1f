"""Trees of EROFS files, read without a mount: what the kernel would show, and no harm from what is damaged."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from dsec.base.errors import DsecError, InvalidRequestError
from dsec.images import erofs
from dsec.images.lazy.erofs.tree import unpack_erofs
from dsec.images.listing import directory_digest
from dsec.images.staging import remove_tree
from dsec.images.tree_writer import ArchiveLimits, TreeWriter
from dsec.testing.image_suite import make_tree, tree_with_everything

pytestmark = pytest.mark.root
BOUNDS = ArchiveLimits(total_bytes=1 << 22, entries=2000)


def _unpacked(file: Path, root: Path) -> str:
    with TreeWriter(root, keep_devices=True) as writer:
        unpack_erofs(file, writer)
    return directory_digest(root)[0]


def _varied(root: Path) -> Path:
    """Make a tree with what mkfs.erofs lays out in different ways."""
    tree_with_everything(root)
    for size in (0, 1, 4095, 4096, 4097, 12_288, 3_000_000):
        (root / f"of-{size}").write_bytes(random.Random(size).randbytes(size))
    (root / "sparse").touch()
    os.truncate(root / "sparse", 1 << 20)
    make_tree(root / "many", **{f"name-of-some-length-{number:04}": str(number) for number in range(600)})
    for number in range(20):
        os.setxattr(root / f"many/name-of-some-length-{number:04}", "user.shared", b"the same")
    os.chown(root / "many", 70_000, 70_001)
    os.symlink("x" * 4000, root / "long")
    os.mknod(root / "disk", 0o060640, os.makedev(300, 70_000))
    os.utime(root / "one", (2**32 + 5, 2**32 + 5))
    return root


def test_a_tree_is_unpacked_as_it_was(tmp_path: Path) -> None:
    tree, file = _varied(tmp_path / "tree"), tmp_path / "file"
    erofs.make(tree, file)
    assert _unpacked(file, tmp_path / "unpacked") == directory_digest(tree)[0]


@pytest.mark.slow
def test_damage_anywhere_is_an_error_or_another_tree_within_bounds(tmp_path: Path) -> None:
    file, damaged, root = tmp_path / "file", tmp_path / "damaged", tmp_path / "root"
    erofs.make(tree_with_everything(tmp_path / "tree"), file)
    sound, drawn = file.read_bytes(), random.Random(7)
    refused = 0
    for _ in range(400):
        data = bytearray(sound)
        for _ in range(drawn.choice((1, 4, 40))):
            data[drawn.randrange(1024, len(data))] = drawn.choice((0, 1, 0x7F, 0xFF, drawn.randrange(256)))
        damaged.write_bytes(data[: drawn.choice((len(data), drawn.randrange(len(data))))])
        try:
            with TreeWriter(root, limits=BOUNDS) as writer:
                unpack_erofs(damaged, writer)
        except DsecError:
            refused += 1
        remove_tree(root)
    assert refused > 100
    assert sorted(os.listdir(tmp_path)) == ["damaged", "file", "tree"]


def test_what_is_no_layer_is_refused(tmp_path: Path) -> None:
    for number, data in enumerate((b"", b"x" * 5000)):
        (tmp_path / "file").write_bytes(data)
        with pytest.raises(InvalidRequestError, match="EROFS"):
            _unpacked(tmp_path / "file", tmp_path / f"root-{number}")
