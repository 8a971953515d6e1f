"""What a snapshot says about a tree: entries by path, whole or as a change of another manifest's.

Pure values (docs/formats/snapshots.md). A manifest is *complete*, or a *delta*: it names its parent, what is gone and
what is new. Folding a chain of them gives the tree. Nothing here trusts what it was given: `check` and `fold` refuse
what no writer of ours writes.

Paths are bytes, relative to the upper directory, ordered as a walk meets them: each directory before what is in it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from dsec.base.errors import StateCorruptedError
from dsec.model.image import ImageConfig
from dsec.model.sandbox import SandboxSpec
from dsec.model.value import Value
from dsec.stores.chunks import MAXIMUM_CHUNK_BYTES

VERSION = 1
MAXIMUM_ENTRIES = 1_000_000
MAXIMUM_EXTENTS = 4_000_000
MAXIMUM_PATH_BYTES = 16 << 10
MAXIMUM_NAME_BYTES = 255
MAXIMUM_ATTRIBUTES = 128
MAXIMUM_ATTRIBUTE_BYTES = 65_536
MAXIMUM_FILE_BYTES = 1 << 50
MAXIMUM_TARGET_BYTES = 4096
MAXIMUM_EXPORTED_BYTES = 1 << 30
MAXIMUM_EXPORTED_EXTENTS = 65_536
MAXIMUM_PACKS = 65_536
_PACK = re.compile(r"[0-9a-f]{32}")
OVERLAY_ATTRIBUTES = frozenset(
    b"overlay." + name for name in (b"metacopy", b"opaque", b"protattr", b"redirect", b"whiteout", b"whiteouts")
)
"""Marks of overlayfs that mean the same on every host."""
_SYSTEM_ATTRIBUTES = frozenset({b"security.capability", b"system.posix_acl_access", b"system.posix_acl_default"})
_CHUNK_ID_BYTES = 32
_MOST_ID = (1 << 32) - 1


class _Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of a manifest: an array on disk."""


class Extent(_Part, frozen=True):
    """Bytes of a file that a chunk holds.

    Attributes:
        start, length: which bytes of the file.
        chunk: the chunk; empty: zeros.
        offset: where in the chunk they begin.
    """

    start: int
    length: int
    chunk: bytes = b""
    offset: int = 0

    @property
    def end(self) -> int:
        return self.start + self.length


class Status(_Part, frozen=True):
    """What every inode has.

    Attributes:
        mode: permission bits, set-user-id and the like included.
        uid, gid: owners, as inside the sandbox.
        mtime_ns: time of the last change of content, since the epoch.
        attributes: extended attributes by name, those of overlayfs under `overlay.`.
    """

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    attributes: Annotated[tuple[tuple[bytes, bytes], ...], Meta(max_length=MAXIMUM_ATTRIBUTES)] = ()


class Directory(_Part, frozen=True, tag="d"):
    status: Status


class File(_Part, frozen=True, tag="f"):
    """A regular file; what no extent covers is zeros."""

    status: Status
    size: int
    extents: Annotated[tuple[Extent, ...], Meta(max_length=MAXIMUM_EXTENTS)] = ()


class Patch(_Part, frozen=True, tag="p"):
    """A regular file of which the parent manifest has what no extent covers, under `base`."""

    status: Status
    size: int
    extents: Annotated[tuple[Extent, ...], Meta(max_length=MAXIMUM_EXTENTS)]
    base: bytes


class Link(_Part, frozen=True, tag="h"):
    """Another name of an inode; `path` is its first."""

    path: bytes


class Symlink(_Part, frozen=True, tag="l"):
    status: Status
    target: bytes


class Whiteout(_Part, frozen=True, tag="w"):
    """The mark of overlayfs that hides a name of the layers below: a character device 0, 0."""

    status: Status


class Pipe(_Part, frozen=True, tag="n"):
    """A named pipe."""

    status: Status


class Socket(_Part, frozen=True, tag="s"):
    """A socket's name."""

    status: Status


Entry = Directory | File | Patch | Link | Symlink | Whiteout | Pipe | Socket
Inode = Directory | File | Symlink | Whiteout | Pipe | Socket
"""What a folded tree holds under the first name of each inode."""
Tree = dict[bytes, Inode | Link]
"""A whole tree by path, in the order of paths."""


class SnapshotHeader(Value, frozen=True):
    """What a node needs beside files to make the sandbox again, anywhere.

    Attributes:
        sandbox_id: whose state it is.
        node: id of the node that saved it.
        requested, spec: the spec as it was asked for, and as it was enforced.
        image_config: settings of the image's commands, its hooks included.
        layers: digests of the image's layers, from the lowest up.
        checkpoint_id: the checkpoint that it was made from.
        created_at_s: wall-clock seconds since the epoch.
        name, metadata: labels that the caller gave.
    """

    sandbox_id: str
    node: str = ""
    requested: SandboxSpec = SandboxSpec()
    spec: SandboxSpec = SandboxSpec()
    image_config: ImageConfig = ImageConfig()
    layers: tuple[str, ...] = ()
    checkpoint_id: str = ""
    created_at_s: float = 0.0
    name: str = ""
    metadata: dict[str, str] = {}


class Manifest(Value, frozen=True):
    """One manifest (docs/formats/snapshots.md).

    Lists are bounded where they are read: a byte of a document can become a hundred of memory.

    Attributes:
        header: what is needed beside files.
        parent: name of the manifest that it changes; None: complete.
        entries: new and changed entries, in order.
        removed: what is gone, each with all that is below it; applied before `entries`.
        exported, exported_bytes: what the export hook gave; None: none ran.
        packs: where its chunks stood; a hint.
        version: of the format.
    """

    header: SnapshotHeader
    parent: bytes | None = None
    entries: Annotated[tuple[tuple[bytes, Entry], ...], Meta(max_length=MAXIMUM_ENTRIES)] = ()
    removed: Annotated[tuple[bytes, ...], Meta(max_length=MAXIMUM_ENTRIES)] = ()
    exported: Annotated[tuple[Extent, ...], Meta(max_length=MAXIMUM_EXPORTED_EXTENTS)] | None = None
    exported_bytes: int = 0
    packs: Annotated[tuple[str, ...], Meta(max_length=MAXIMUM_PACKS)] = ()
    version: int = VERSION


def order(path: bytes) -> bytes:
    """Return the key by which paths are ordered: each directory, then all that is below it."""
    return path.replace(b"/", b"\0")


def parent_of(path: bytes) -> bytes:
    """Return the directory that holds a path other than the empty one."""
    return path.rpartition(b"/")[0]


def is_kept(attribute: bytes) -> bool:
    """Whether an attribute of this name is kept: what a guest can set, and the marks of overlayfs."""
    if b"\0" in attribute:
        return False
    return (
        (attribute.startswith(b"user.") and len(attribute) > len(b"user."))
        or attribute in OVERLAY_ATTRIBUTES
        or attribute in _SYSTEM_ATTRIBUTES
    )


def check(manifest: Manifest, name: str) -> None:
    """Refuse a manifest that no writer of ours wrote.

    Args:
        manifest: what was read.
        name: the object, for the error.

    Raises:
        StateCorruptedError: it says what is wrong.
    """
    try:
        _check(manifest)
    except ValueError as error:
        raise _refused(name, str(error)) from error


def fold(chain: Sequence[Manifest], names: Sequence[str]) -> Tree:
    """Apply the manifests of a chain, each checked, from the complete one on, and return the tree.

    Args:
        chain: manifests, the complete one first.
        names: their objects, for errors.

    Raises:
        StateCorruptedError: they do not fit together, or the tree is none.
    """
    tree: Tree = {}
    for manifest, name in zip(chain, names, strict=True):
        try:
            _apply(tree, manifest)
        except ValueError as error:
            raise _refused(name, str(error)) from error
    ordered = {path: tree[path] for path in sorted(tree, key=order)}
    try:
        check_tree(ordered)
    except ValueError as error:
        raise _refused(names[-1], str(error)) from error
    return ordered


def overlay_extents(lower: Sequence[Extent], upper: Sequence[Extent], size: int) -> tuple[Extent, ...]:
    """Lay `upper` over `lower` and cut the result at `size`. Both are ordered; zeros of `upper` hide `lower`."""
    result: list[Extent] = []
    rest = iter(upper)
    above = next(rest, None)
    for extent in lower:
        part: Extent | None = extent
        while part is not None and above is not None and above.start < part.end:
            if above.start > part.start:
                result.append(cut(part, part.start, above.start))
            if above.end > part.start:
                if above.end >= part.end:
                    part = None
                    break
                part = cut(part, above.end, part.end)
            result.append(above)
            above = next(rest, None)
        if part is not None:
            result.append(part)
    if above is not None:
        result.append(above)
        result.extend(rest)
    return tuple(cut(each, each.start, min(each.end, size)) for each in result if each.chunk and each.start < size)


def cut(extent: Extent, start: int, end: int) -> Extent:
    """Return the part of an extent between two offsets of the file, which lie in it."""
    if start == extent.start and end == extent.end:
        return extent
    offset = extent.offset + start - extent.start if extent.chunk else 0
    return Extent(start, end - start, extent.chunk, offset)


def chunks_of(entries: Iterable[tuple[bytes, Entry]]) -> Iterator[bytes]:
    """Yield the chunk of every extent of some entries; one may come several times."""
    for _, entry in entries:
        if isinstance(entry, (File, Patch)):
            for extent in entry.extents:
                if extent.chunk:
                    yield extent.chunk


def _apply(tree: Tree, manifest: Manifest) -> None:
    files = {
        entry.base: _file_of(tree, entry.base) for _, entry in manifest.entries if isinstance(entry, Patch)
    }  # Taken before anything is removed: a file may have moved.
    if manifest.removed:
        gone = set(manifest.removed)
        for path in [path for path in tree if _is_gone(path, gone)]:
            del tree[path]
    for path, entry in manifest.entries:
        if isinstance(entry, Patch):
            base = files[entry.base]
            extents = overlay_extents(_shortened(base, entry.size), entry.extents, entry.size)
            tree[path] = File(entry.status, entry.size, extents)
        else:
            tree[path] = entry
    if len(tree) > MAXIMUM_ENTRIES:
        raise ValueError(f"the tree has more than {MAXIMUM_ENTRIES} entries")


def _file_of(tree: Tree, path: bytes) -> File:
    entry = tree.get(path)
    if isinstance(entry, Link):
        entry = tree.get(entry.path)
    if not isinstance(entry, File):
        raise ValueError(f"{path!r} is to be patched and is no file of its parent")
    return entry


def _shortened(file: File, size: int) -> list[Extent]:
    return [cut(each, each.start, min(each.end, size)) for each in file.extents if each.start < size]


def _is_gone(path: bytes, gone: set[bytes]) -> bool:
    while path not in gone:
        if not path:
            return False
        path = parent_of(path)
    return True


def check_tree(tree: Tree) -> None:
    """Raise ValueError unless every entry has its directory and every link leads to an inode."""
    if not isinstance(tree.get(b""), Directory):
        raise ValueError("it has no top directory")
    extents = 0
    for path, entry in tree.items():
        if path and not isinstance(tree.get(parent_of(path)), Directory):
            raise ValueError(f"{path!r} is in no directory")
        if isinstance(entry, Link) and isinstance(tree.get(entry.path), (Link, Directory, type(None))):
            raise ValueError(f"{path!r} is a link to {entry.path!r}, which is no file")
        if isinstance(entry, Link) and order(entry.path) > order(path):
            raise ValueError(f"{path!r} is a link to {entry.path!r}, which comes after it")
        if isinstance(entry, File):
            extents += len(entry.extents)
    if extents > MAXIMUM_EXTENTS:
        raise ValueError(f"its files have more than {MAXIMUM_EXTENTS} extents")


def _check(manifest: Manifest) -> None:
    if manifest.version != VERSION:
        raise ValueError(f"its version is {manifest.version}")
    if max(len(manifest.entries), len(manifest.removed)) > MAXIMUM_ENTRIES:
        raise ValueError(f"it has more than {MAXIMUM_ENTRIES} entries")
    _check_paths([path for path, _ in manifest.entries])
    _check_paths(manifest.removed)
    if manifest.removed and (manifest.parent is None or manifest.removed[0] == b""):
        raise ValueError("it removes what was never there")
    if manifest.parent is not None and len(manifest.parent) != _CHUNK_ID_BYTES:
        raise ValueError("its parent has no name of a manifest")
    for path, entry in manifest.entries:
        _check_entry(path, entry, is_delta=manifest.parent is not None)
    if manifest.exported_bytes > MAXIMUM_EXPORTED_BYTES:
        raise ValueError(f"its exported state has {manifest.exported_bytes} bytes")
    _check_extents(b"(exported state)", manifest.exported or (), manifest.exported_bytes)
    if len(manifest.packs) > MAXIMUM_PACKS or not all(map(_PACK.fullmatch, manifest.packs)):
        raise ValueError("its packs have no names of packs, or are too many")


def _check_paths(paths: Sequence[bytes]) -> None:
    for before, after in itertools.pairwise(map(order, paths)):
        if before >= after:
            raise ValueError(f"{after[:200]!r} is out of order or there twice")
    for path in paths:
        _check_path(path)


def _check_path(path: bytes) -> None:
    if len(path) > MAXIMUM_PATH_BYTES:
        raise ValueError(f"a path has {len(path)} bytes")
    if path and (b"\0" in path or not all(map(_is_name, path.split(b"/")))):
        raise ValueError(f"{path[:200]!r} is no path")


def _is_name(name: bytes) -> bool:
    return name not in (b"", b".", b"..") and len(name) <= MAXIMUM_NAME_BYTES


def _check_entry(path: bytes, entry: Entry, *, is_delta: bool) -> None:
    if path == b"" and not isinstance(entry, Directory):
        raise ValueError("its top is no directory")
    match entry:
        case Link(target):
            _check_path(target)
            return
        case Patch(base=base):
            if not is_delta:
                raise ValueError(f"{path!r} is a patch, and the manifest has no parent")
            _check_path(base)
            _check_extents(path, entry.extents, entry.size)
        case File():
            _check_extents(path, entry.extents, entry.size)
        case Symlink(target=text):
            if not 0 < len(text) <= MAXIMUM_TARGET_BYTES or b"\0" in text:
                raise ValueError(f"{path!r} has no target of a link")
    _check_status(path, entry.status)


def _check_status(path: bytes, status: Status) -> None:
    if not (0 <= status.mode <= 0o7777 and 0 <= status.uid < _MOST_ID and 0 <= status.gid < _MOST_ID):
        raise ValueError(f"{path!r} has no mode or owner of a file")
    if not -(1 << 63) <= status.mtime_ns < 1 << 63:
        raise ValueError(f"{path!r} was changed at no time")
    names = [name for name, _ in status.attributes]
    if names != sorted(set(names)) or len(names) > MAXIMUM_ATTRIBUTES:
        raise ValueError(f"{path!r} has attributes out of order, twice or too many")
    for name, value in status.attributes:
        if not is_kept(name) or len(name) > MAXIMUM_NAME_BYTES or len(value) > MAXIMUM_ATTRIBUTE_BYTES:
            raise ValueError(f"{path!r} has an attribute that no sandbox can have set")


def _check_extents(path: bytes, extents: Sequence[Extent], size: int) -> None:
    if not 0 <= size <= MAXIMUM_FILE_BYTES:
        raise ValueError(f"{path!r} has {size} bytes")
    end = 0
    for each in extents:
        if each.start < end or each.length <= 0 or each.end > size:
            raise ValueError(f"{path!r} has extents that overlap or lie outside of it")
        if each.chunk and (len(each.chunk) != _CHUNK_ID_BYTES or not _is_in_chunk(each)):
            raise ValueError(f"{path!r} has an extent in no chunk")
        end = each.end


def _is_in_chunk(extent: Extent) -> bool:
    return extent.offset >= 0 and extent.offset + extent.length <= MAXIMUM_CHUNK_BYTES


def _refused(name: str, reason: str) -> StateCorruptedError:
    return StateCorruptedError(
        f"{name} is no manifest of a snapshot",
        detail=reason,
        resolution="bring the object back from a copy of the store, or restore another snapshot",
    )
