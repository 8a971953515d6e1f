"""What a spec may be, and what is said of an episode, whoever sends it: small enough to be listed with thousands of
others, and the same when it is read again from the disk or told to somebody else.
"""

from __future__ import annotations

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.base.units import KIB, MIB
from dsec.episode.spec import AgentPolicy, EpisodeSpec

MAXIMUM_NAME_BYTES = 1 * KIB
"""Of a task, a job, a model, or of who says something."""
MAXIMUM_REASON_BYTES = 4 * KIB
"""Of why an episode is where it is: that is told with each listing."""
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
    check_length("the name of the task", spec.task)
    check_length("the name of the job", spec.job)
    if isinstance(spec.policy, AgentPolicy):
        for endpoint in (spec.policy.model, *spec.policy.stronger):
            check_length("the name of a model", endpoint.name)
        if spec.policy.history_bytes < 1:
            raise InvalidRequestError("an agent has to be shown something", resolution="raise history_bytes")
    document = _document(spec)
    if len(document) > MAXIMUM_SPEC_BYTES:
        raise InvalidRequestError(
            f"the spec is {len(document)} bytes long, and may be {MAXIMUM_SPEC_BYTES}",
            resolution="put large input into the image, and name it",
        )
    if len(msgspec.json.encode(spec.metadata)) > MAXIMUM_METADATA_BYTES:
        raise InvalidRequestError(f"the metadata are longer than {MAXIMUM_METADATA_BYTES} bytes")


def check_length(what: str, text: str, limit_bytes: int = MAXIMUM_NAME_BYTES) -> None:
    """Refuse a text that is told with each episode and is too long for that.

    Raises:
        InvalidRequestError: it is longer than `limit_bytes`.
    """
    if len(text.encode(errors="replace")) > limit_bytes:
        raise InvalidRequestError(f"{what} is longer than {limit_bytes} bytes", resolution="say less")


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
