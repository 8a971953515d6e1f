"""Records that this program cannot understand are refused, with the file's name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dsec.base.errors import StateCorruptedError
from dsec.gateway import ledger_record, recording_record
from dsec.gateway.decoding import decode_record

FILE = Path("ledger-1")
OPENED = (
    ledger_record.Opened(version=7, wall_s=0.0, sequence=1),
    recording_record.Opened(version=7, wall_s=0.0),
)


@pytest.mark.parametrize("opened", OPENED)
def test_a_file_of_the_known_version_is_read_and_one_of_another_is_refused(
    opened: ledger_record.Opened | recording_record.Opened,
) -> None:
    decoder, document = msgspec.json.Decoder(type(opened)), msgspec.json.encode(opened)
    assert decode_record(document, decoder, file=FILE, version=7) == opened
    with pytest.raises(StateCorruptedError, match="ledger-1 has version 7; this program knows 8"):
        decode_record(document, decoder, file=FILE, version=8)


@pytest.mark.parametrize("document", [b"", b"\xff", b"{}", b'{"event":"unheard-of"}'])
def test_what_is_no_record_is_refused(document: bytes) -> None:
    decoder = msgspec.json.Decoder(recording_record.Opened)
    with pytest.raises(StateCorruptedError, match="ledger-1 holds a record that cannot be read"):
        decode_record(document, decoder, file=FILE, version=1)
