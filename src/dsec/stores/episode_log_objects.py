"""How the copy of a log lies in an object store; see docs/formats/episode-log.md."""

from __future__ import annotations

import msgspec

from dsec.base.errors import CapabilityMissingError, StateCorruptedError
from dsec.episode.identity import check_episode_id
from dsec.episode.segments import LOG_VERSION, parse_segment_name, segment_name
from dsec.model.value import Value


class Watermark(Value, frozen=True):
    """Up to where the copy is whole: each event up to `sequence` was read back from the store.

    Attributes:
        version: of the format.
        epoch: of the writer that says so.
        sequence: of the last such event; 0: none.
        round: the last committed round among them; 0: none.
        checksum: of that event, so that a writer knows whether the copy is of its own history.
    """

    version: int = LOG_VERSION
    epoch: int = 0
    sequence: int = 0
    round: int = 0
    checksum: str = ""


NOTHING_STORED = Watermark()


def log_prefix(episode_id: str) -> str:
    """Return what the keys of an episode's segments begin with."""
    return f"episodes/{check_episode_id(episode_id)}/log/"


def segment_key(episode_id: str, first: int, epoch: int) -> str:
    """Return the key of a segment."""
    return log_prefix(episode_id) + segment_name(first, epoch)


def parse_segment_key(episode_id: str, key: str) -> tuple[int, int] | None:
    """Return first sequence and epoch of a segment's key, None for another object's."""
    prefix = log_prefix(episode_id)
    return parse_segment_name(key.removeprefix(prefix)) if key.startswith(prefix) else None


def watermark_key(episode_id: str) -> str:
    """Return the key of the watermark."""
    return f"episodes/{check_episode_id(episode_id)}/watermark.json"


def encode_watermark(watermark: Watermark) -> bytes:
    """Return the object of a watermark."""
    return msgspec.json.encode(watermark)


class _Version(msgspec.Struct):
    version: int


def decode_watermark(data: bytes, *, name: str) -> Watermark:
    """Read the object of a watermark.

    Raises:
        CapabilityMissingError: a newer version wrote it.
        StateCorruptedError: it is none.
    """
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version > LOG_VERSION:
            raise CapabilityMissingError(
                f"{name} is of version {version}, and this program knows versions up to {LOG_VERSION}",
                resolution="use the version of dsec that wrote it, or a newer one",
            )
        return msgspec.json.decode(data, type=Watermark)
    except msgspec.DecodeError as error:
        raise StateCorruptedError(f"{name} is no watermark of an episode's log", detail=str(error)) from error
