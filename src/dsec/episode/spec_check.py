"""What a spec may be, whoever sends it: small enough to be listed with thousands of others, and the same when it is
read again from the disk or told to somebody else.
"""

from __future__ import annotations

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.base.units import KIB, MIB
from dsec.episode.spec import EpisodeSpec

MAXIMUM_NAME_BYTES = 1 * KIB
"""Of a task or a job."""
MAXIMUM_METADATA_BYTES = 64 * KIB
MAXIMUM_SPEC_BYTES = 16 * MIB
"""As JSON. Instructions, scripts and options of plug-ins are most of it."""


def check_spec_values(spec: EpisodeSpec) -> None:
    """Refuse a spec that is too large, or that would be another one when it is read again.

    Raises:
        InvalidRequestError: it is; says what is wrong.
    """
    if not spec.task:
        raise InvalidRequestError("the spec names no task", resolution="give the task a name")
    for what, text in (("task", spec.task), ("job", spec.job)):
        if len(text.encode(errors="replace")) > MAXIMUM_NAME_BYTES:
            raise InvalidRequestError(f"the name of the {what} is longer than {MAXIMUM_NAME_BYTES} bytes")
    document = _document(spec)
    if len(document) > MAXIMUM_SPEC_BYTES:
        raise InvalidRequestError(
            f"the spec is {len(document)} bytes long, and may be {MAXIMUM_SPEC_BYTES}",
            resolution="put large input into the image, and name it",
        )
    if len(msgspec.json.encode(spec.metadata)) > MAXIMUM_METADATA_BYTES:
        raise InvalidRequestError(f"the metadata are longer than {MAXIMUM_METADATA_BYTES} bytes")


def _document(spec: EpisodeSpec) -> bytes:
    """Return the spec as it is kept.

    Raises:
        InvalidRequestError: it cannot be kept as it is.
    """
    try:
        document = msgspec.json.encode(spec)
        again = msgspec.json.encode(msgspec.json.decode(document, type=EpisodeSpec))
        msgspec.msgpack.encode(spec)  # Who lists episodes is told in it, and it has no numbers beyond 64 bits.
    except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError, TypeError, RecursionError) as error:
        raise _odd(str(error)) from error
    if msgspec.json.decode(again) != msgspec.json.decode(document):  # JSON has no number that is not finite.
        raise _odd("a number in it is not finite")
    return document


def _odd(detail: str) -> InvalidRequestError:
    return InvalidRequestError(
        "the spec would be another one when it is read again",
        detail=detail,
        resolution="use UTF-8 text, finite numbers of at most 64 bits, and options that JSON can hold",
    )
