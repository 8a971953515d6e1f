"""Lists of peers are read, compared and refused by what they say."""

from __future__ import annotations

import pytest

from dsec.base.errors import InvalidRequestError
from dsec.model.peer import MAXIMUM_PEERS, Peer, origin, parse_peers
from dsec.node.settings import NodeSettings, settings_from


def test_a_list_may_be_separated_by_commas_and_white_space() -> None:
    assert parse_peers(" k3x9a=http://10.0.0.2:8620,p8z1m=https://two.example/\n") == (
        Peer(node="k3x9a", url="http://10.0.0.2:8620"),
        Peer(node="p8z1m", url="https://two.example"),
    )
    assert parse_peers("") == ()


@pytest.mark.parametrize(
    "text",
    [
        "http://10.0.0.2:8620",
        "k3x9a",
        "k3x9a=",
        "k3x9a=10.0.0.2:8620",
        "k3x9a=ftp://10.0.0.2",
        "k3x9a=http://",
        "k3x9a=http://host:0",
        "k3x9a=http://host:99999",
        "k3x9a=http://host:8620/v1",
        "k3x9a=http://host:8620?a=b",
        "k3x9a=http://host:8620#a",
        "k3x9a=http://user:secret@host:8620",
        "k3x9a=http://h\u043est:8620",
        "k3x9a=unix:/run/node.sock",
        "K3X9A=http://host",
        "k3x9=http://host",
        "k3x9a=http://host,k3x9a=http://other",
        "k3x9a=http://host:80,p8z1m=http://HOST",
    ],
)
def test_what_is_no_list_of_peers_is_refused_in_settings_too(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_peers(text)
    with pytest.raises(InvalidRequestError):
        settings_from({"peers": text})


def test_there_is_a_bound() -> None:
    items = [f"{number:05d}=http://host{number}" for number in range(MAXIMUM_PEERS + 1)]
    with pytest.raises(InvalidRequestError, match="at most"):
        parse_peers(",".join(items))


def test_settings_hold_the_list_as_it_was_written() -> None:
    assert settings_from({"peers": "k3x9a=http://a"}) == NodeSettings(peers="k3x9a=http://a")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://host", "http://HOST:80/", True),
        ("HTTP://host", "http://host", True),
        ("https://host", "https://host:443", True),
        ("http://[::1]:8620", "http://[::1]:8620/", True),
        ("http://host", "https://host", False),
        ("http://host", "http://host.", False),
        ("http://host:80", "http://host:8080", False),
        ("http://host", "http://host@evil", False),
        ("http://host", "http://evil#host", False),
        ("http://host", "http://host\\@evil", False),
        ("http://host", "http://host:80:80", False),
    ],
)
def test_two_urls_are_one_server_by_scheme_host_and_port(one: str, other: str, same: bool) -> None:
    assert (origin(one) == origin(other)) is same
