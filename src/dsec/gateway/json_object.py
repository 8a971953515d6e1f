"""A JSON object of which only the top is understood: its members stay the bytes that they came as.

What a call says is read from a few members; the others, known or not, are passed on byte for byte. The text that is
sent on is joined again from the members: a name given twice, of which two parsers may take different ones, is sent
once, as the one that was read here.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from dsec.base.errors import InvalidRequestError

T = TypeVar("T")
_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode
_MOST_MEMBERS = 1_000
"""Protocols have some dozens; joining millions would keep all other calls waiting for seconds."""


def read_object(body: bytes) -> dict[str, bytes]:
    """Return the members of a body, each as its JSON text.

    Raises:
        InvalidRequestError: it is not one JSON object in UTF-8, or has more members than any protocol.
    """
    try:
        body.decode()
        members: dict[str, bytes] = {**_decoder.decode(body)}
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"the body is not UTF-8: byte {error.start} cannot be decoded", resolution="send JSON in UTF-8"
        ) from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequestError(
            f"the body is not a JSON object: {error}",
            resolution="send one JSON object, such as the official clients do",
        ) from error
    if len(members) > _MOST_MEMBERS:
        raise InvalidRequestError(
            f"the body has {len(members):,} members", resolution=f"send at most {_MOST_MEMBERS:,}"
        )
    return members


def join_object(members: dict[str, bytes]) -> bytes:
    """Return the text of an object from its members."""
    parts: list[bytes] = []
    for name, value in members.items():
        parts += (b"," if parts else b"{", _encode(name), b":", value)
    parts.append(b"}" if parts else b"{}")
    return b"".join(parts)


def member(members: dict[str, bytes], name: str, decoder: msgspec.json.Decoder[T], default: T) -> T:
    """Return one member, understood; `default` where it is absent.

    Raises:
        InvalidRequestError: it is not of that type; the brief names it.
    """
    raw = members.get(name)
    if raw is None:
        return default
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"`{name}` is wrong: {error}", resolution=f"see the API's reference of `{name}`"
        ) from error
