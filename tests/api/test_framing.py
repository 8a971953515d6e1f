"""Where a body ends: the same for every way in which its bytes arrive, and nothing but HTTP is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.api.framing import LAST_CHUNK, MAXIMUM_LINE_BYTES, MAXIMUM_TRAILERS, BodyDecoder, FramingError, chunk

NEXT = b"GET / HTTP/1.1\r\n"


def decode(decoder: BodyDecoder, data: bytes, cuts: list[int]) -> tuple[bytes, bytes]:
    """Feed `data` in parts; return the body and what was not used."""
    body = b""
    used = 0
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        pieces, count = decoder.feed(memoryview(data)[start:end])
        body += b"".join(pieces)
        used += count
    return body, data[used:]


@st.composite
def chunked(draw: st.DrawFn) -> tuple[bytes, bytes, list[int]]:
    parts = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=6))
    extension = draw(st.sampled_from([b"", b";name=value", b" ;x"]))
    trailers = draw(st.sampled_from([b"", b"a: b\r\n", b"a: b\r\nc: d\r\n"]))
    framed = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
    data = framed + b"0\r\n" + trailers + b"\r\n" + NEXT
    return b"".join(parts), data, sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))


@given(chunked())
def test_a_chunked_body_is_the_same_however_it_arrives_and_what_follows_is_left(
    case: tuple[bytes, bytes, list[int]],
) -> None:
    body, data, cuts = case
    decoder = BodyDecoder(None)
    assert decode(decoder, data, cuts) == (body, NEXT)
    assert decoder.complete


@given(st.binary(max_size=50), st.integers(0, 50))
def test_a_body_of_known_length_ends_there(body: bytes, cut: int) -> None:
    decoder = BodyDecoder(len(body))
    assert decode(decoder, body + NEXT, [min(cut, len(body))]) == (body, NEXT)
    assert decoder.complete


def test_what_chunk_makes_is_understood() -> None:
    data = b"".join(chunk(b"some")) + b"".join(chunk(b"thing")) + LAST_CHUNK
    assert decode(BodyDecoder(None), data, []) == (b"something", b"")


def test_a_body_that_has_not_ended_is_not_complete() -> None:
    for decoder, data in ((BodyDecoder(5), b"four"), (BodyDecoder(None), b"4\r\nfour\r\n0\r\n")):
        decoder.feed(memoryview(data))
        assert not decoder.complete


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n",
        b"x\r\n",
        b"-1\r\na\r\n",
        b"+1\r\na\r\n",
        b"0x1\r\na\r\n",
        b"1_0\r\n",
        b" 1\r\na\r\n",
        b"1 \r\na\r\n",
        b"1\na\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n",
        b"1" * 16 + b"\r\n",
        b"1;" + b"x" * MAXIMUM_LINE_BYTES + b"\r\n",
        b"1;" + b"x" * 2 * MAXIMUM_LINE_BYTES,
        b"0\r\n" + b"a: b\r\n" * (MAXIMUM_TRAILERS + 1),
    ],
)
def test_what_is_no_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(FramingError):
        decode(BodyDecoder(None), data, list(range(1, len(data))))
    with pytest.raises(FramingError):
        decode(BodyDecoder(None), data, [])
