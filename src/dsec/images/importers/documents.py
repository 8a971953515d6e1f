"""Read the JSON documents of an image, which whoever made it wrote: bounded, and from regular files only."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.base.foreign_json import decode_foreign
from dsec.base.units import MIB
from dsec.images.importers.compression import open_regular

MAXIMUM_DOCUMENT_BYTES = 8 * MIB
_Document = TypeVar("_Document")


def read_document(path: Path, kind: type[_Document], what: str = "") -> _Document:
    """Return a document.

    Args:
        what: how it is called where that says more than its path.

    Raises:
        InvalidRequestError: it is missing, no regular file, too large, too deep, or says something else.
    """
    told = what or str(path)
    try:
        # What is in an archive may be a FIFO, which would never end, or lead to a device.
        with open_regular(path) as file:
            data = file.read(MAXIMUM_DOCUMENT_BYTES + 1)
        if len(data) > MAXIMUM_DOCUMENT_BYTES:
            raise InvalidRequestError(f"{told} is larger than {MAXIMUM_DOCUMENT_BYTES} bytes")
        return decode_foreign(data, kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidRequestError(
            f"{told} is not a readable document of an image", detail=str(error), resolution="export the image again"
        ) from error
