"""Tell what is to be imported, and import it."""

from __future__ import annotations

import enum
from dataclasses import replace
from pathlib import Path

from dsec.base.errors import InvalidRequestError, PathNotFoundError
from dsec.images.entries import EntryKind
from dsec.images.importers.compression import opened_archive
from dsec.images.importers.directory import import_directory
from dsec.images.importers.docker_archive import import_docker_archive
from dsec.images.importers.oci_layout import import_oci_layout
from dsec.images.importers.request import ImportRequest
from dsec.images.importers.rootfs_tar import import_rootfs_tar, stream_limit
from dsec.images.importers.tar_reader import TarReader
from dsec.images.importers.toolkit import check_kind
from dsec.images.names import canonical_name
from dsec.images.store import LocalImageStore
from dsec.images.tree_writer import DEFAULT_LIMITS, TreeWriter
from dsec.model.image import ImageInfo

_PEEKED_ENTRIES = 4096
"""An archive of an image names one of its index files among the first entries, or has nothing but blobs before."""


_PACKED_KINDS = (EntryKind.FILE, EntryKind.DIRECTORY, EntryKind.HARD_LINK, EntryKind.SYMBOLIC_LINK)
"""What an archive of an image consists of. A FIFO would never end when it is read."""


class ImportFormat(enum.Enum):
    AUTO = "auto"
    ROOTFS_TAR = "rootfs-tar"
    OCI_LAYOUT = "oci-layout"
    DOCKER_ARCHIVE = "docker-archive"
    DIRECTORY = "directory"


def import_image(
    store: LocalImageStore, request: ImportRequest, *, kind: ImportFormat = ImportFormat.AUTO
) -> ImageInfo:
    """Import an image from a file or directory of this host.

    Raises:
        PathNotFoundError: nothing is at the path.
        UnsafeArchiveError: the archive could escape, or unfolds without bound.
        InvalidRequestError: it is damaged, or none of the known formats.
    """
    canonical_name(request.name)  # A bad name is said now, not after the work.
    if not request.path.exists():
        raise PathNotFoundError(f"{request.path} does not exist")
    if kind is ImportFormat.AUTO:
        kind = detect(request.path, limit_bytes=stream_limit(request))
    request.progress(f"importing {request.path} as {kind.value}")
    if kind is ImportFormat.ROOTFS_TAR:
        return import_rootfs_tar(store, request)
    if kind is ImportFormat.DIRECTORY:
        _check_directory(request.path)
        return import_directory(store, request)
    if request.as_layer:
        check_kind(str(request.path))
    return _import_packed(store, request, kind)


def detect(path: Path, *, limit_bytes: int = DEFAULT_LIMITS.total_bytes) -> ImportFormat:
    """Return the format of what is at `path`; unpack at most `limit_bytes` to find out."""
    if path.is_dir():
        return ImportFormat.OCI_LAYOUT if (path / "oci-layout").is_file() else ImportFormat.DIRECTORY
    names: set[bytes] = set()
    with opened_archive(path, limit_bytes) as stream:
        for entry, _ in zip(TarReader(stream), range(_PEEKED_ENTRIES), strict=False):
            names.add(entry.path.removeprefix(b"./"))
            if not _may_be_image(entry.path.removeprefix(b"./")):
                break
    if b"oci-layout" in names:
        return ImportFormat.OCI_LAYOUT
    return ImportFormat.DOCKER_ARCHIVE if b"manifest.json" in names else ImportFormat.ROOTFS_TAR


def _may_be_image(name: bytes) -> bool:
    """Tell whether an archive of an image may hold this name; a root file system shows otherwise at once."""
    top = name.split(b"/")[0]
    known = top in (b"", b".", b"blobs", b"oci-layout", b"index.json", b"manifest.json", b"repositories")
    hashed = len(top.removesuffix(b".json").removesuffix(b".tar")) == 64
    return known or hashed


def _import_packed(store: LocalImageStore, request: ImportRequest, kind: ImportFormat) -> ImageInfo:
    importer = import_oci_layout if kind is ImportFormat.OCI_LAYOUT else import_docker_archive
    if request.path.is_dir():
        return importer(store, request)
    with store.work_directory() as work:
        content = work.path / "archive"
        with (
            opened_archive(request.path, stream_limit(request)) as stream,
            TreeWriter(content, limits=request.limits) as writer,
        ):
            reader = TarReader(stream)
            for entry in reader:
                if entry.kind not in _PACKED_KINDS:
                    continue
                # Owners and modes in the archive of an image mean nothing; the files are ours.
                writer.add(replace(entry, uid=0, gid=0, mode=entry.mode | 0o600, xattrs={}), reader.content())
        return importer(store, replace(request, path=content, source=request.told_source))


def _check_directory(path: Path) -> None:
    if not path.is_dir():
        raise InvalidRequestError(f"{path} is not a directory", resolution="leave --format out to have it detected")
