"""Images in memory: names without content, for tests of what stands above the store."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Sequence
from pathlib import Path

from dsec.base.errors import ImageNotFoundError
from dsec.images.port import MountedImage
from dsec.model.image import ImageConfig, ImageInfo, LayerFormat, LayerInfo

DEFAULT_CONFIG = ImageConfig(
    env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/user", "LANG": "C.UTF-8"},
    workdir="/home/user",
    user="user",
)


class MemoryImages:
    """An `ImageStore` that holds names and configs. It begins with one image, ``python``."""

    def __init__(self, *names: str) -> None:
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
        layers = [layer for image in images for layer in image.layers]
        return MountedImage(
            info=images[0], layer_paths=tuple(Path("/memory/layers") / layer.digest for layer in layers)
        )

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

    def release(self) -> None:
        """Nothing is mounted."""

    @staticmethod
    def _digest(data: bytes) -> str:
        return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _with_tag(name: str) -> str:
    return name if ":" in name else f"{name}:latest"
