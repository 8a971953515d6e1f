"""A tree, made a layer, cut into chunks, put together again from them and mounted, is the tree: entry by entry."""

from __future__ import annotations

import os
import stat
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsec.images import erofs
from dsec.images.lazy.caching.cached_layer import METADATA, CachedLayer
from dsec.images.lazy.erofs.layout import lay_out
from dsec.images.lazy.erofs.metadata import Extent, metadata_extents
from dsec.images.lazy.formats.stored import decode
from dsec.images.lazy.publication.conversion import LayerFile, convert
from dsec.linux import mounts

pytestmark = pytest.mark.root

_LAYER = "sha256:" + "ab" * 32
_CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
"""cap_net_bind_service+ep (capabilities(7), ``struct vfs_cap_data``)."""

_names = st.binary(min_size=1, max_size=12).map(lambda name: name.translate(bytes.maketrans(b"\0/.", b"\x80\xff_")))
_owners = st.sampled_from([0, 1, 1000, 65_534, 70_000, 2_000_000_000])
_times = st.integers(0, 2**33).map(lambda s: s * 10**9) | st.integers(10**9, 2 * 10**18)
_attributes = st.dictionaries(
    st.sampled_from([b"user.one", b"user.\xc3\xa9", b"trusted.x", b"user.long" + b"g" * 200]),
    st.binary(max_size=40) | st.binary(min_size=300, max_size=900),
    max_size=3,
)
_contents = st.binary(max_size=40) | st.tuples(
    st.sampled_from([4095, 4096, 4097, 8191, 9000, 70_000]), st.binary(min_size=1, max_size=3)
).map(lambda pair: (pair[1] * pair[0])[: pair[0]])


@dataclass(frozen=True)
class _Made:
    """One entry to make. What a field means depends on the kind."""

    kind: str
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    attributes: dict[bytes, bytes]
    content: bytes


_kinds = st.sampled_from("file file directory directory link hard fifo socket whiteout device opaque capable".split())
_entries = st.builds(
    _Made,
    kind=_kinds,
    mode=st.integers(0, 0o7777),
    uid=_owners,
    gid=_owners,
    mtime_ns=_times,
    attributes=_attributes,
    content=_contents,
)
_trees = st.lists(st.tuples(st.lists(_names, min_size=1, max_size=3), _entries), min_size=1, max_size=14)


def _make(root: bytes, entries: list[tuple[list[bytes], _Made]]) -> None:
    files: list[bytes] = []
    made: list[tuple[bytes, _Made]] = []
    for parts, entry in entries:
        parent = root
        for part in parts[:-1]:
            step = os.path.join(parent, part)
            parent = step if _is_directory(step) or not os.path.lexists(step) else parent
            os.makedirs(parent, exist_ok=True)
        path = os.path.join(parent, parts[-1])
        if not os.path.lexists(path) and _make_one(path, entry, files):
            made.append((path, entry))
    # From the deepest up, so that times of directories stay.
    for path, entry in sorted(made, key=lambda pair: -pair[0].count(b"/")):
        _dress(path, entry)


def _is_directory(path: bytes) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _make_one(path: bytes, entry: _Made, files: list[bytes]) -> bool:
    if entry.kind in ("file", "capable"):
        Path(os.fsdecode(path)).write_bytes(entry.content)
        files.append(path)
    elif entry.kind in ("directory", "opaque"):
        os.mkdir(path)
    elif entry.kind == "link":
        os.symlink(entry.content.replace(b"\0", b"?")[:3000] or b"nowhere", path)
    elif entry.kind == "hard":
        if not files:
            return False
        os.link(files[len(entry.content) % len(files)], path)
        return False
    else:
        kind, device = {
            "fifo": (stat.S_IFIFO, 0),
            "socket": (stat.S_IFSOCK, 0),
            "whiteout": (stat.S_IFCHR, 0),
            "device": (stat.S_IFBLK, os.makedev(300, 70_000)),
        }[entry.kind]
        os.mknod(path, kind | 0o600, device)
    return True


def _dress(path: bytes, entry: _Made) -> None:
    os.chown(path, entry.uid, entry.gid, follow_symlinks=False)
    if entry.kind != "link":
        os.chmod(path, entry.mode)
    for name, value in entry.attributes.items():
        if entry.kind in ("file", "directory", "opaque", "capable") or name.startswith(b"trusted."):
            os.setxattr(path, name, value, follow_symlinks=False)
    if entry.kind == "opaque":
        os.setxattr(path, b"trusted.overlay.opaque", b"y")
    if entry.kind == "capable":
        os.setxattr(path, b"security.capability", _CAPABILITY)
    os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)


def _described(root: bytes) -> dict[bytes, object]:
    """Return everything about each entry; links by the first path of their inode."""
    first: dict[int, bytes] = {}
    found: dict[bytes, object] = {}
    for path in _paths(root):
        status = os.lstat(path)
        name = os.path.relpath(path, root)
        kind = stat.S_IFMT(status.st_mode)
        content: object = None
        if kind == stat.S_IFREG:
            content = Path(os.fsdecode(path)).read_bytes()
        elif kind == stat.S_IFLNK:
            content = os.readlink(path)
        found[name] = (
            oct(status.st_mode),
            status.st_uid,
            status.st_gid,
            status.st_mtime_ns,
            status.st_rdev if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0,
            status.st_nlink if kind == stat.S_IFREG else 1,
            first.setdefault(status.st_ino, name),
            {each: os.getxattr(path, each, follow_symlinks=False) for each in sorted(_attribute_names(path))},
            content,
        )
    return found


def _attribute_names(path: bytes) -> list[str]:
    return os.listxattr(path, follow_symlinks=False)


def _paths(root: bytes) -> Iterator[bytes]:
    yield root
    for name in sorted(os.listdir(root)):
        path = os.path.join(root, name)
        if _is_directory(path):
            yield from _paths(path)
        else:
            yield path


def _put_together(work: Path) -> CachedLayer:
    """Convert a layer's file and fill a cached layer from nothing but what came out."""
    kept: dict[str, bytes] = {}
    manifest = convert(LayerFile(work / "layer.erofs", _LAYER, 1), kept.__setitem__)
    layer = CachedLayer.create(work / manifest.id, manifest)
    # Metadata last, over the chunks: it must say the same.
    for position, ref in enumerate(manifest.chunks):
        layer.store(position, decode(ref, kept[ref.id], "kept"))
    layer.store(METADATA, b"".join(decode(ref, kept[ref.id], "kept") for ref in manifest.metadata_chunks))
    layer.flush()
    return layer


@contextmanager
def _mounted(file: Path, target: Path) -> Iterator[bytes]:
    target.mkdir()
    erofs.mount_file(file, target)
    try:
        yield os.fsencode(target)
    finally:
        mounts.unmount(target)


@pytest.mark.slow
@given(entries=_trees)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_converted_layer_is_its_tree(entries: list[tuple[list[bytes], _Made]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        tree = work / "tree"
        tree.mkdir()
        _make(os.fsencode(tree), entries)
        expected = _described(os.fsencode(tree))
        erofs.make(tree, work / "layer.erofs")
        layer = _put_together(work)
        try:
            assert layer.is_complete
            assert layer.path.read_bytes() == (work / "layer.erofs").read_bytes()
            with _mounted(layer.path, work / "mount") as root:
                assert _described(root) == expected
        finally:
            layer.close()


@pytest.mark.slow
@given(entries=_trees, reads=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=6))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_layer_that_was_laid_out_anew_is_its_tree(
    entries: list[tuple[list[bytes], _Made]], reads: list[tuple[int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        tree = work / "tree"
        tree.mkdir()
        _make(os.fsencode(tree), entries)
        expected = _described(os.fsencode(tree))
        erofs.make(tree, work / "made.erofs")
        first = [Extent(block * 4096, count * 4096) for block, count in reads]
        moves = lay_out(work / "made.erofs", work / "layer.erofs", first)
        old, new = (work / "made.erofs").read_bytes(), (work / "layer.erofs").read_bytes()
        assert len(new) <= len(old) + 4096 * len(entries), "no file has become longer by more than its end"
        for block in range(len(old) // 4096):
            for target, _ in moves.of(block, 1):
                assert new[target * 4096 :][:4096] == old[block * 4096 :][:4096]
        assert len(metadata_extents(work / "layer.erofs")) == 1, "metadata lies together"
        with _mounted(work / "layer.erofs", work / "mount") as root:
            assert _described(root) == expected
