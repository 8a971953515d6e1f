"""JSON that somebody else wrote, with one kind of error for all that can be wrong with it.

msgspec raises its own errors for what is malformed or of another type, but Python's for what is nested thousands of
levels deep, or holds text that is not UTF-8. A reader who forgets one of them shows a stranger's document as a
traceback, and a server may end by it.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

_Kind = TypeVar("_Kind")


def decode_foreign(data: bytes | str, kind: type[_Kind]) -> _Kind:
    """Read a document of a type.

    Raises:
        msgspec.MsgspecError: it is none; says why, and where in it.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deep") from error
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise msgspec.DecodeError(f"it holds text that is not UTF-8 ({error.reason})") from error
