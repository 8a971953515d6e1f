"""Read the files of `dsec plan`."""

from __future__ import annotations

from pathlib import Path

from dsec.base.errors import InvalidRequestError, NotFoundError


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        NotFoundError: it cannot be read.
        InvalidRequestError: it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf8")
    except OSError as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}", resolution="name a file that exists") from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{path} is not UTF-8 text", detail=str(error)) from error
