"""JSON that somebody else wrote, with one kind of error for all that can be wrong with it.

msgspec raises its own errors for what is malformed or of another type, but Python's for what is nested thousands of
levels deep, or holds text that is not UTF-8. A reader who forgets one of them shows a stranger's document as a
traceback, and a server may end by it.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

_Kind = TypeVar("_Kind")


class _Versioned(msgspec.Struct, frozen=True):
    """A document of any version. A mapping of all its fields would take twenty times the memory of a hostile one."""

    version: msgspec.Raw = msgspec.Raw()


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


def version_of(data: bytes) -> bytes:
    """Return the field ``version`` of a document as it is written there; empty: it has none.

    Raises:
        msgspec.MsgspecError: it is no document.
    """
    return bytes(decode_foreign(data, _Versioned).version)
