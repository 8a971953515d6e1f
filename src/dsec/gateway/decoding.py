"""Records of ledgers and of recordings, as they are read back: a file of another version is refused, not guessed at."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from dsec.base.errors import StateCorruptedError
from dsec.gateway import ledger_record, recording_record

R = TypeVar("R")


def decode_record(document: bytes, decoder: msgspec.json.Decoder[R], *, file: Path, version: int) -> R:
    """Return a record.

    Args:
        document: its bytes.
        decoder: of the records that such a file holds.
        file: where it stands, for errors.
        version: of the format, that this program knows.

    Raises:
        StateCorruptedError: it cannot be understood, or begins a file of another version.
    """
    try:
        record = decoder.decode(document)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StateCorruptedError(
            f"{file} holds a record that cannot be read", detail=f"{error}: {document[:200]!r}"
        ) from error
    if isinstance(record, ledger_record.Opened | recording_record.Opened) and record.version != version:
        raise StateCorruptedError(
            f"{file} has version {record.version}; this program knows {version}",
            resolution="use the program that wrote it",
        )
    return record
