"""Turn OCI layers into ours: whiteout files become what overlayfs itself uses.

``.wh.NAME`` hides NAME of the layers below: a character device 0:0. ``.wh..wh..opq`` hides all that they have in
its directory: the attribute ``trusted.overlay.opaque``. A whiteout speaks of *lower* layers only, also when the same
layer adds the same name: a directory that is both hidden and added is opaque.

Source: OCI image specification 1.1, "Image Layer Filesystem Changeset".
"""

from __future__ import annotations

from pathlib import Path

from dsec.base.errors import InvalidRequestError, UnsafeArchiveError
from dsec.images.below import is_opaque
from dsec.images.entries import Entry, EntryKind, opaque_xattrs, whiteout
from dsec.images.importers.compression import file_digest, opened_archive
from dsec.images.importers.request import ImportRequest
from dsec.images.importers.rootfs_tar import stream_limit
from dsec.images.importers.tar_reader import TarReader
from dsec.images.opened import opened_layer
from dsec.images.store import LocalImageStore
from dsec.images.tree_writer import TreeWriter
from dsec.linux.userns import is_host_root

_PREFIX = b".wh."
_OPAQUE = b".wh..wh..opq"


class LayerWriter:
    """Apply the entries of one OCI layer to a tree."""

    def __init__(self, writer: TreeWriter) -> None:
        self._writer = writer
        self._opaque = opaque_xattrs(privileged=is_host_root())

    def add(self, entry: Entry, reader: TarReader) -> None:
        """Write an entry or what its whiteout means."""
        parent, _, name = entry.path.rstrip(b"/").rpartition(b"/")
        if any(part.startswith(_PREFIX) for part in parent.split(b"/")):
            raise UnsafeArchiveError(
                f"the layer's entry {entry.path[:200]!r} is refused: it lies below what its name says is hidden"
            )
        if name == _OPAQUE:
            self._writer.add_xattrs(parent, self._opaque)
        elif name.startswith(_PREFIX * 2):
            pass  # Book-keeping of aufs, which the specification tells to ignore.
        elif name.startswith(_PREFIX):
            self._hide(entry, parent, name.removeprefix(_PREFIX))
        else:
            self._add(entry, reader)

    def _hide(self, entry: Entry, parent: bytes, name: bytes) -> None:
        if name in (b"", b".", b".."):
            raise UnsafeArchiveError(f"the layer's whiteout {entry.path[:200]!r} is refused: it hides no name")
        path = parent + b"/" + name if parent else name
        present = self._writer.kind_of(path)
        if present is EntryKind.DIRECTORY:
            self._writer.add_xattrs(path, self._opaque)
        elif present is None:
            self._writer.add(whiteout(path))

    def _add(self, entry: Entry, reader: TarReader) -> None:
        was_hidden = entry.kind is EntryKind.DIRECTORY and self._writer.is_hidden(entry.path)
        self._writer.add(entry, reader.content())
        if was_hidden:
            self._writer.add_xattrs(entry.path, self._opaque)


def import_layer(store: LocalImageStore, blob: Path, diff_id: str, request: ImportRequest) -> str:
    """Store an OCI layer and return our digest of it. One that was unfolded before is not unfolded again.

    Raises:
        InvalidRequestError: its content does not have the digest `diff_id`.
    """
    known = store.layer_of_diff(diff_id)
    if known is not None:
        request.progress(f"layer {diff_id[7:19]} is here")
        return known
    request.progress(f"unpacking layer {diff_id[7:19]}")
    with store.work_directory() as work:
        tree = work.path / "tree"
        with (
            opened_archive(blob, stream_limit(request), digest=True) as stream,
            TreeWriter(tree, limits=request.limits) as writer,
        ):
            layer, reader = LayerWriter(writer), TarReader(stream, is_verified=True)
            for entry in reader:
                if entry.path.strip(b"/") not in request.left_out:
                    layer.add(entry, reader)
            found = stream.finish()
            for warning in writer.warnings:
                request.progress(f"warning: {warning}")
        check_digest(f"layer {blob.name}", diff_id, found)
        digest = store.take_layer(tree)
    store.remember_diff(diff_id, digest)
    return digest


def hides_all_below(store: LocalImageStore, digest: str) -> bool:
    """Tell whether a layer hides everything that lower layers have: its root is opaque.

    Overlayfs does not look for the attribute there, so that such a layer has to be the lowest of its image.
    """
    with store.work_directory() as work, opened_layer(store, digest, work) as root_fd:
        return is_opaque(root_fd)


def check_digest(what: str, expected: str, found: str) -> None:
    """Raise `InvalidRequestError` unless the digests are equal."""
    if expected != found:
        raise InvalidRequestError(
            f"{what} of the image is damaged: its digest is not what the image says",
            detail=f"expected {expected}, found {found}",
            resolution="copy or export the image again",
        )


def check_blob(path: Path, expected: str) -> None:
    """Read a file and compare its digest."""
    check_digest(f"blob {path.name}", expected, file_digest(path))
