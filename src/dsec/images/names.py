"""Names of images: check them, bring them to one form, turn them into file names, and find close ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote, unquote

from dsec.base.errors import ImageNotFoundError, InvalidRequestError
from dsec.images.registry.reference import names_registry

MAX_NAME_LENGTH = 200
"""Longest name; escaped it must fit a file name of 255 bytes together with its suffix."""

_COMPONENT = r"[A-Za-z0-9]+(?:[._-]+[A-Za-z0-9]+)*"
_NAME = re.compile(
    rf"(?:{_COMPONENT}(?::[0-9]{{1,5}})?/)?{_COMPONENT}(?:/{_COMPONENT})*(?::[A-Za-z0-9_][A-Za-z0-9._-]*)?"
)


def canonical_name(name: str) -> str:
    """Return `name` in its one form: the tag ``latest`` is left out.

    Raises:
        InvalidRequestError: not a name.
    """
    if not _NAME.fullmatch(name) or len(quote(name, safe="")) > MAX_NAME_LENGTH:
        raise InvalidRequestError(
            f"{name[:80]!r} is not an image name",
            resolution="use letters, digits, '.', '_', '-' and '/', with an optional ':tag', such as my-env:v2",
        )
    return name.removesuffix(":latest")


IMPLIED_PREFIXES = ("docker.io/library/", "docker.io/", "localhost/")
"""What a name may begin with although the image is stored without it: Docker implies these."""


def file_name(name: str) -> str:
    """Return the file that holds the image `name` (a canonical one)."""
    return quote(name, safe="") + ".json"


def name_of_file(file: str) -> str:
    """Undo `file_name`."""
    return unquote(file.removesuffix(".json"))


def not_found(name: str, known: Iterable[str]) -> ImageNotFoundError:
    """Return the error for an unknown name, with the closest known ones."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    detail = f"closest: {', '.join(close)}" if close else f"known images: {', '.join(names[:20]) or 'none'}"
    published = "" if names_registry(name) else " if it was published"
    return ImageNotFoundError(
        f"there is no image {name!r} on this host",
        detail=detail,
        resolution=f"pull it (dsec image pull {name}){published}, import it (dsec image import PATH --name {name}), "
        f"build it (dsec image build DIR -t {name}), "
        f"or give an image that is here this name (dsec image tag SOURCE {name})",
    )


def layers_not_found(digests: Sequence[str]) -> ImageNotFoundError:
    """Return the error for layers that are not stored on this host."""
    return ImageNotFoundError(
        f"the node lacks {len(digests)} of the layers",
        detail="\n".join(digests),
        resolution="bring it the image that the sandbox was made from: `dsec image export` where that is, "
        "`dsec image import` on the node that lacks it",
    )
