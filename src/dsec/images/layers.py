"""Layers on disk: write one into a directory, read its record, find what is mountable in it.

A layer's directory is made in the staging area, complete and synced, and appears under its digest by one rename.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dsec.base.errors import HostDiskFullError, InvalidRequestError, StateCorruptedError
from dsec.base.units import format_size
from dsec.images import erofs
from dsec.images.command import run
from dsec.images.durable import sync_path, write_atomically
from dsec.images.lazy.erofs.metadata import metadata_extents
from dsec.images.lazy.erofs.tree import unpack_erofs
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.listing import directory_digest, tree_digest, walk
from dsec.images.staging import WorkDirectory, remove_tree
from dsec.images.tree_writer import TreeWriter, copy_tree
from dsec.model.image import LayerFormat, LayerInfo

RECORD = "layer.json"
EROFS_FILE = "layer.erofs"
TREE = "tree"
MANIFEST_FILE = "manifest.json"
_UNSOUND = (errno.EIO, errno.ELOOP, errno.EUCLEAN, errno.EOVERFLOW, errno.EINVAL, errno.ENAMETOOLONG, errno.EOPNOTSUPP)
"""What the kernel says of a tree that contradicts itself: such as directories in circles, and files beyond the end."""
MAXIMUM_ORIGINS = 8
"""Of one layer; those that it was pulled from last count."""


class LayerRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The content of ``layer.json``.

    Attributes:
        version: of this format; 1.
        digest: the layer's.
        format: how it is stored beside this file.
        size_bytes: bytes on disk: the file's size, or the sum of the sizes of all regular files.
        entries: number of entries, the root included.
        manifest: name of the manifest of a lazy one, or of one that was lazy before all of it was here; empty: neither.
        origins: where the chunks of such a one can be had, in the order in which to ask (`dsec.images.lazy.origins`);
            none: in the store that whoever serves it was started with.
    """

    version: int
    digest: str
    format: LayerFormat
    size_bytes: int
    entries: int
    manifest: str = ""
    origins: tuple[str, ...] = ()

    @property
    def info(self) -> LayerInfo:
        return LayerInfo(digest=self.digest, format=self.format, size_bytes=self.size_bytes)

    def pulled_from(self, origins: Sequence[str]) -> LayerRecord:
        """Return the record of this layer once it was pulled again, from there: the latest origins are asked first."""
        known = tuple(dict.fromkeys((*origins, *self.origins)))[:MAXIMUM_ORIGINS]
        return msgspec.structs.replace(self, origins=known)


def hex_of(digest: str) -> str:
    """Return the digest without its algorithm; layers' directories are named so, since overlayfs splits at colons."""
    return digest.removeprefix("sha256:")


def write_erofs(tree: Path, work: WorkDirectory) -> tuple[Path, LayerRecord]:
    """Store `tree` as an EROFS file in a new directory below `work`.

    Raises:
        HostDiskFullError: it will not fit: what is holes in the tree is zeros in the file, of which some kilobytes of
            an archive may make all that the disk has.
    """
    _check_room(tree)
    target = work.path / "layer"
    target.mkdir(mode=0o700)
    file = target / EROFS_FILE
    erofs.make(tree, file, lock_fd=work.lock_fd)
    sync_path(file)
    return target, _read_and_finish(target, file, work)


def _check_room(tree: Path) -> None:
    fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        statuses = (node.status for node in walk(fd))
        # Those of one name: of others it is not worth remembering which were counted.
        least_bytes = sum(each.st_size for each in statuses if stat.S_ISREG(each.st_mode) and each.st_nlink == 1)
    finally:
        os.close(fd)
    disk = os.statvfs(tree)
    if least_bytes > disk.f_bavail * disk.f_frsize:
        raise HostDiskFullError(
            f"no space left for a layer of {format_size(least_bytes)}",
            resolution="free space on the disk of the state directory, or remove images (dsec image rm)",
        )


def write_directory(tree: Path, work: WorkDirectory, *, take: bool) -> tuple[Path, LayerRecord]:
    """Store `tree` as a directory below `work`; with `take`, by moving it there."""
    target = work.path / "layer"
    target.mkdir(mode=0o700)
    stored = target / TREE
    if take:
        tree.rename(stored)
    else:
        with TreeWriter(stored, keep_devices=True) as writer:
            copy_tree(tree, writer)
    return target, _finish_directory(target)


def adopt_erofs(file: Path, work: WorkDirectory) -> tuple[Path, LayerRecord]:
    """Store an EROFS file that came from elsewhere, and lies in `work`, by the digest of what is in it.

    Raises:
        StateCorruptedError: it is no sound EROFS file.
    """
    target = work.path / "layer"
    target.mkdir(mode=0o700)
    file = file.rename(target / EROFS_FILE)
    sync_path(file)
    try:
        metadata_extents(file)  # A kernel reads it next: what is not made as ours are is not shown to one.
        return target, _read_and_finish(target, file, work)
    except InvalidRequestError as error:
        raise _unsound(f"{error.brief}: {error.detail}") from error
    except OSError as error:
        if error.errno not in _UNSOUND:
            raise
        raise _unsound(str(error)) from error


def _unsound(detail: str) -> StateCorruptedError:
    return StateCorruptedError(
        "what was fetched is not a sound EROFS file",
        detail=detail,
        resolution="publish the image again; if its publisher has it sound, look at this host's disk",
    )


def unpack_erofs_file(file: Path, work: WorkDirectory) -> tuple[Path, LayerRecord, tuple[str, ...]]:
    """Store what is in an EROFS file that came from elsewhere, and lies in `work`, as a directory.

    Returns:
        What was made, its record, and what of the tree could not be written here.

    Raises:
        InvalidRequestError: it is no EROFS file that we can take apart.
        UnsafeArchiveError: what it holds would leave its tree, or passes a limit.
    """
    target = work.path / "layer"
    target.mkdir(mode=0o700)
    with TreeWriter(target / TREE) as writer:
        unpack_erofs(file, writer)
    file.unlink()
    lost = writer.warnings or (("all owners left out, since setting them needs root",) if os.geteuid() else ())
    return target, _finish_directory(target), lost


def make_whole(target: Path, made: Path, record: LayerRecord, lazy: LayerRecord) -> None:
    """Put what was made in a work directory in place of a lazy layer of the same digest.

    Its manifest stays beside it: who has read the record before may still open it. A crash leaves the lazy layer, with
    a file that means nothing, which is replaced the next time.

    Args:
        target: directory of the lazy layer.
        made: directory of the whole one.
        record: of the whole one.
        lazy: record of the lazy one; its manifest and origins stay known, by which the file can be mended.
    """
    content = content_path(target, record)
    if content.is_dir():
        remove_tree(content)
    content_path(made, record).rename(content)
    sync_path(target)
    write_record(target, msgspec.structs.replace(record, manifest=lazy.manifest, origins=lazy.origins))


def put_anew(target: Path, made: Path, record: LayerRecord, manifest: LayerManifest, origins: tuple[str, ...]) -> None:
    """Put what was made in a work directory in place of a whole layer of the same digest, whose file is another one.

    A crash leaves the old file or the new one, and beside it a manifest that the record names or does not.

    Args:
        target: directory of the layer.
        made: directory of the new one.
        record: of the new one.
        manifest: of its file.
        origins: where its chunks can be had.
    """
    write_atomically(target / MANIFEST_FILE, manifest.data)
    content_path(made, record).rename(content_path(target, record))
    sync_path(target)
    write_record(target, msgspec.structs.replace(record, manifest=manifest.id, origins=origins))


def _finish_directory(target: Path) -> LayerRecord:
    stored = target / TREE
    digest, entries = directory_digest(stored)
    _sync_file_system(stored)
    return _finish(target, digest, LayerFormat.DIRECTORY, _size_of(stored), entries)


def _read_and_finish(target: Path, file: Path, work: WorkDirectory) -> LayerRecord:
    scratch = work.path / "mount"
    scratch.mkdir()
    with erofs.opened(file, scratch) as root_fd:
        digest, entries = tree_digest(root_fd, file_bytes=file.stat().st_size)
    return _finish(target, digest, LayerFormat.EROFS, file.stat().st_size, entries)


def write_lazy(manifest: LayerManifest, work: WorkDirectory, origins: tuple[str, ...] = ()) -> tuple[Path, LayerRecord]:
    """Store a layer of which nothing but its manifest is here in a new directory below `work`."""
    target = work.path / "layer"
    target.mkdir(mode=0o700)
    write_atomically(target / MANIFEST_FILE, manifest.data)
    record = LayerRecord(
        version=1,
        digest=manifest.layer,
        format=LayerFormat.LAZY,
        size_bytes=manifest.size_bytes,
        entries=manifest.entries,
        manifest=manifest.id,
        origins=origins,
    )
    write_record(target, record)
    return target, record


def _finish(target: Path, digest: str, kind: LayerFormat, size_bytes: int, entries: int) -> LayerRecord:
    record = LayerRecord(version=1, digest=digest, format=kind, size_bytes=size_bytes, entries=entries)
    write_record(target, record)
    return record


def write_record(layer: Path, record: LayerRecord) -> None:
    """Write the record of a layer into its directory, in place of one that may be there."""
    write_atomically(layer / RECORD, msgspec.json.encode(record))


def _size_of(tree: Path) -> int:
    fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return sum(node.status.st_size for node in walk(fd) if stat.S_ISREG(node.status.st_mode))
    finally:
        os.close(fd)


def _sync_file_system(path: Path) -> None:
    """Flush the whole file system: fsync(2) of every file of a tree takes longer (see sync(1), option -f)."""
    if shutil.which("sync") is None:
        os.sync()
    else:
        run(["sync", "-f", str(path)], package="coreutils")


def is_lazy(layer: Path) -> bool:
    """Whether a stored layer is loaded when touched; False for one that is just going, or damaged."""
    try:
        return read_record(layer).format is LayerFormat.LAZY
    except StateCorruptedError:
        return False


def read_record(layer: Path) -> LayerRecord:
    """Return the record of a stored layer.

    Raises:
        StateCorruptedError: there is none, or it does not parse, or what it describes is gone or has another size.
    """
    try:
        record = msgspec.json.decode((layer / RECORD).read_bytes(), type=LayerRecord)
        content = content_path(layer, record)
        status = content.stat()
    except (OSError, msgspec.MsgspecError) as error:
        raise _corrupted(layer, str(error)) from error
    if record.format is LayerFormat.EROFS and status.st_size != record.size_bytes:
        raise _corrupted(layer, f"{EROFS_FILE} has {status.st_size} bytes, its record says {record.size_bytes}")
    return record


def content_path(layer: Path, record: LayerRecord) -> Path:
    """Return the EROFS file, the directory or the manifest of a layer."""
    names = {LayerFormat.EROFS: EROFS_FILE, LayerFormat.DIRECTORY: TREE, LayerFormat.LAZY: MANIFEST_FILE}
    return layer / names[record.format]


def compute_digest(layer: Path, record: LayerRecord, scratch: Path) -> str:
    """Read the whole layer and return the digest of what is there."""
    if record.format is LayerFormat.DIRECTORY:
        return directory_digest(layer / TREE)[0]
    with erofs.opened(layer / EROFS_FILE, scratch) as root_fd:
        return tree_digest(root_fd, file_bytes=(layer / EROFS_FILE).stat().st_size)[0]


def _corrupted(layer: Path, detail: str) -> StateCorruptedError:
    return StateCorruptedError(
        f"layer {layer.name[:12]} of the image store is damaged",
        detail=detail,
        resolution="remove the images that use it (dsec image ls) and import them again",
    )
