"""Images in memory: names, and the content of those that were packed, for tests of what stands above the store."""

from __future__ import annotations

import copy
import difflib
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dsec.base.errors import AlreadyExistsError, ImageNotFoundError
from dsec.images.entries import Entry, EntryKind
from dsec.images.names import canonical_name, layers_not_found
from dsec.images.packing import Found, Packing, PackOrder
from dsec.images.port import MountedImage
from dsec.images.stacking import stacked
from dsec.model.files import FileKind
from dsec.model.image import ImageConfig, ImageInfo, LayerFormat, LayerInfo
from dsec.model.state import PackReport

DEFAULT_CONFIG = ImageConfig(
    env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/user", "LANG": "C.UTF-8"},
    workdir="/home/user",
    user="user",
)


_KINDS = {
    FileKind.FILE: EntryKind.FILE,
    FileKind.DIRECTORY: EntryKind.DIRECTORY,
    FileKind.SYMLINK: EntryKind.SYMBOLIC_LINK,
}


class MemoryImages:
    """An `ImageStore` that holds names and configs. It begins with one image, ``python``.

    Attributes:
        contents: trees of layers by their path, to be shared with `MemoryRuntime.contents`, which holds what is packed.
    """

    def __init__(self, *names: str) -> None:
        self.contents: dict[Path, dict[str, Any]] = {}
        self._images: dict[str, ImageInfo] = {}
        self._layers: dict[str, LayerInfo] = {}
        for name in names or ("python",):
            digest = self._digest(name.encode())
            self._layers[digest] = LayerInfo(digest=digest, format=LayerFormat.DIRECTORY, size_bytes=0)
            self.add_image(name, (digest,), DEFAULT_CONFIG, source="memory")

    def get(self, name: str) -> ImageInfo:
        info = self._images.get(_with_tag(name))
        if info is None:
            close = difflib.get_close_matches(_with_tag(name), self._images, n=3)
            hint = f"; the closest are: {', '.join(close)}" if close else ""
            raise ImageNotFoundError(
                f"there is no image {name!r}", resolution=f"import it with `dsec image import` or build it{hint}"
            )
        return info

    def list(self) -> tuple[ImageInfo, ...]:
        return tuple(self._images[name] for name in sorted(self._images))

    def mount(self, names: Sequence[str]) -> MountedImage:
        images = [self.get(name) for name in names]
        stack = stacked(images)
        return MountedImage(info=stack, layer_paths=tuple(_layer_path(layer.digest) for layer in stack.layers))

    def mounted(self, names: Sequence[str]) -> MountedImage | None:
        return self.mount(names)

    def mount_layers(self, digests: Sequence[str]) -> tuple[Path, ...]:
        missing = [digest for digest in digests if digest not in self._layers]
        if missing:
            raise layers_not_found(missing)
        return tuple(map(_layer_path, digests))

    def pack(self, order: PackOrder) -> PackReport:
        canonical_name(order.name)
        # A layer in memory holds what those below have as well.
        entries = self.contents[order.upper]
        packing = Packing(order.scrub, lambda path: False)
        kept = {_path_of(entry): entries[_path_of(entry)] for entry, _ in packing.kept(_entries(entries, order))}
        if order.dry_run:
            return packing.report()
        if _with_tag(order.name) in self._images:
            raise AlreadyExistsError(f"there is an image {order.name!r}", resolution="choose another name")
        identity = repr(sorted((path, entry.mode, entry.content, entry.target) for path, entry in kept.items()))
        digest = self._digest(identity.encode(errors="surrogateescape"))
        self.contents[_layer_path(digest)] = copy.deepcopy(kept)
        size_bytes = packing.content_bytes
        self._layers[digest] = LayerInfo(digest=digest, format=LayerFormat.DIRECTORY, size_bytes=size_bytes)
        info = self.add_image(order.name, (*order.base, digest), order.config, source=order.source)
        return packing.report(name=info.name, layer=digest)

    def add_layer(self, tree: Path) -> str:
        listing = sorted(str(path.relative_to(tree)) for path in tree.rglob("*"))
        files = [path.read_bytes() for path in sorted(tree.rglob("*")) if path.is_file() and not path.is_symlink()]
        digest = self._digest("\n".join(listing).encode() + b"\0".join(files))
        size_bytes = sum(map(len, files))
        self._layers[digest] = LayerInfo(digest=digest, format=LayerFormat.DIRECTORY, size_bytes=size_bytes)
        return digest

    def add_image(self, name: str, layers: Sequence[str], config: ImageConfig, *, source: str) -> ImageInfo:
        missing = [digest for digest in layers if digest not in self._layers]
        if missing:
            raise ImageNotFoundError(f"layer {missing[0]} is not in the store", resolution="add the layer first")
        identity = self._digest("\n".join(layers).encode() + repr(config).encode())
        info = ImageInfo(
            name=_with_tag(name),
            image_id=identity,
            layers=tuple(self._layers[digest] for digest in layers),
            config=config,
            source=source,
        )
        self._images[info.name] = info
        return info

    def remove(self, name: str) -> None:
        del self._images[self.get(name).name]

    def release(self, *, idle_s: float = 0.0) -> None:
        """Nothing is mounted."""

    @staticmethod
    def _digest(data: bytes) -> str:
        return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _with_tag(name: str) -> str:
    return name if ":" in name else f"{name}:latest"


def _layer_path(digest: str) -> Path:
    return Path("/memory/layers") / digest


def _path_of(entry: Entry) -> str:
    return "/" + entry.path.decode(errors="surrogateescape")


def _entries(tree: dict[str, Any], order: PackOrder) -> Iterator[Found]:
    for path, entry in sorted(tree.items(), key=lambda item: item[0].split("/") if item[0] != "/" else []):
        order.check()
        yield Found(
            entry=Entry(
                path=path.lstrip("/").encode(errors="surrogateescape"),
                kind=_KINDS[entry.kind],
                mode=entry.mode,
                uid=entry.uid,
                gid=entry.gid,
                size_bytes=len(entry),
                link=entry.target.encode(errors="surrogateescape"),
            )
        )
