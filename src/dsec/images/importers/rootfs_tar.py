"""Import a tar of a root file system as an image of one layer."""

from __future__ import annotations

from dsec.images.importers.compression import LimitedStream, opened_archive
from dsec.images.importers.request import ImportRequest
from dsec.images.importers.tar_reader import TarReader
from dsec.images.importers.toolkit import write_parents
from dsec.images.store import LocalImageStore
from dsec.images.tree_writer import TreeWriter
from dsec.model.image import ImageInfo

_PROGRESS_ENTRIES = 2000


def import_rootfs_tar(store: LocalImageStore, request: ImportRequest) -> ImageInfo:
    """Import ``.tar``, ``.tar.gz``, ``.tar.zst``, ``.tar.xz`` or ``.tar.bz2``.

    Raises:
        UnsafeArchiveError: an entry would leave the tree, or a limit is passed.
        InvalidRequestError: it is no tar, or damaged.
    """
    with store.work_directory() as work:
        tree = work.path / "tree"
        with (
            opened_archive(request.path, stream_limit(request)) as stream,
            TreeWriter(tree, limits=request.limits) as to,
        ):
            unpack(stream, to, request)
        digest = store.take_layer(tree)
    return store.add_image(request.name, [digest], request.settings(), source=request.told_source)


def unpack(stream: LimitedStream, writer: TreeWriter, request: ImportRequest) -> None:
    """Write all entries of a tar stream; say how far it is, and what was left out."""
    reader = TarReader(stream)
    if request.as_layer:
        write_parents(writer, request.at)
    for count, entry in enumerate(reader, start=1):
        if entry.path.removeprefix(b"./").strip(b"/") not in request.left_out:
            writer.add(request.placed(entry), reader.content())
        if count % _PROGRESS_ENTRIES == 0:
            request.progress(f"unpacked {count} entries")
    for warning in writer.warnings:
        request.progress(f"warning: {warning}")


def stream_limit(request: ImportRequest) -> int:
    """Bound the stream by the content's limit, plus room for headers (about 1 KiB an entry)."""
    return request.limits.total_bytes + min(request.limits.total_bytes, request.limits.entries * 1024)
