"""Bodies of which only the top is understood."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.gateway.json_object import join_object, member, read_object

VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=6), st.booleans())
def test_what_is_joined_again_says_the_same(plain: dict[str, Any], spaced: bool) -> None:
    body = json.dumps(plain, indent=1 if spaced else None).encode()
    assert json.loads(join_object(read_object(body))) == plain


def test_members_keep_their_very_bytes() -> None:
    body = b'{"a": 1.000,"b":{ "c" : "\\u00e9" }}'
    assert join_object(read_object(body)) == b'{"a":1.000,"b":{ "c" : "\\u00e9" }}'


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"{", b'{"a":}', b'{"a":1}x', b'{"a":"\xff"}', b"\xef\xbb\xbf{}", b'{"a":1,}']
)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        read_object(body)


def test_depth_without_end_is_refused_or_passed_and_never_a_crash() -> None:
    body = b'{"model":"m","messages":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    try:
        read_object(body)
    except InvalidRequestError:
        pass


def test_a_member_of_another_type_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="`stream`"):
        member(read_object(b'{"stream": "yes"}'), "stream", msgspec.json.Decoder(bool), False)


def test_a_body_of_more_members_than_any_protocol_has_is_refused() -> None:
    body = b"{" + b",".join(b'"k%d":1' % number for number in range(1001)) + b"}"
    with pytest.raises(InvalidRequestError, match="1,001 members"):
        read_object(body)
