"""Import a directory of the host, or an OCI layout in one."""

from __future__ import annotations

from dsec.images.importers.request import ImportRequest
from dsec.images.importers.toolkit import write_parents
from dsec.images.store import LocalImageStore
from dsec.images.tree_writer import TreeWriter, copy_tree
from dsec.model.image import ImageInfo


def import_directory(store: LocalImageStore, request: ImportRequest) -> ImageInfo:
    """Import a directory tree as an image of one layer: links are copied, never followed."""
    with store.work_directory() as work:
        tree = work.path / "tree"
        with TreeWriter(tree, limits=request.limits) as writer:
            if request.as_layer:
                write_parents(writer, request.at)
            copy_tree(request.path, writer, lambda count: request.progress(f"copied {count} entries"), request.placed)
            for warning in writer.warnings:
                request.progress(f"warning: {warning}")
        digest = store.take_layer(tree)
    return store.add_image(request.name, [digest], request.settings(), source=request.told_source)
