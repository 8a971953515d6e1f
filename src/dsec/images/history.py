"""What an image's name meant before: the versions of a repository, newest last (docs/formats/image-store.md).

The rate at which the parts of an environment change decides how it should be cut into layers. Nobody declares it; what
can be known is how often each layer was another one from version to version, and what the builder said of when and
how a layer was made. Both are noted here when an image gets its name. It is a memory, not a promise: a version whose
note is lost makes the rate a little less sure, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from dsec.images.durable import write_atomically
from dsec.images.names import file_name, name_of_file
from dsec.model.image import ImageInfo
from dsec.model.value import Value

MAXIMUM_VERSIONS = 50


class LayerStory(Value, frozen=True, omit_defaults=True):
    """What is told of one layer of a version.

    Attributes:
        digest: the layer's.
        created_s: when it was made, in seconds since the epoch; None: nobody says.
        made_by: the step that made it, for people; of a merged one, its last.
    """

    digest: str
    created_s: float | None = None
    made_by: str = ""


class Version(Value, frozen=True, kw_only=True):
    """What a name meant from some time on.

    Attributes:
        version: of this format; 1.
        name: with its tag.
        image_id: the image.
        created_at_s: when it got the name, in seconds since the epoch.
        layers: from the lowest up.
    """

    version: int = 1
    name: str
    image_id: str
    created_at_s: float
    layers: tuple[LayerStory, ...]


def repository_of(name: str) -> str:
    """Return a canonical name without its tag: all that have it are versions of one thing."""
    return name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name


class History:
    """The directory of versions: one file a repository. Writers hold the store's lock."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def versions(self, repository: str) -> tuple[Version, ...]:
        """Return what is noted, the oldest first; nothing where that cannot be read."""
        try:
            lines = self._path(repository).read_bytes().splitlines()
        except FileNotFoundError:
            return ()
        return tuple(_readable(lines))

    def note(self, image: ImageInfo, stories: Mapping[str, LayerStory]) -> None:
        """Note that an image has got its name.

        Args:
            stories: what is told of its layers, by digest.
        """
        repository = repository_of(image.name)
        versions = self.versions(repository)
        known = {story.digest: story for version in versions for story in version.layers}
        layers = tuple(
            stories.get(layer.digest) or known.get(layer.digest) or LayerStory(digest=layer.digest)
            for layer in image.layers
        )
        if versions and (versions[-1].name, versions[-1].layers) == (image.name, layers):
            return
        version = Version(name=image.name, image_id=image.image_id, created_at_s=image.created_at_s, layers=layers)
        kept = (*versions, version)[-MAXIMUM_VERSIONS:]
        write_atomically(self._path(repository), b"".join(msgspec.json.encode(each) + b"\n" for each in kept))

    def keep(self, names: Iterable[str]) -> None:
        """Forget the repositories of which no name is left."""
        kept = {repository_of(name) for name in names}
        for path in self._root.iterdir():
            if name_of_file(path.name) not in kept:
                path.unlink(missing_ok=True)

    def _path(self, repository: str) -> Path:
        return self._root / file_name(repository)


def _readable(lines: Sequence[bytes]) -> Iterator[Version]:
    for line in lines:
        try:
            version = msgspec.json.decode(line, type=Version)
        except msgspec.MsgspecError:
            continue
        if version.version == 1:
            yield version
