"""The other nodes that a node, or a client, was told of.

The list says two things: where a node answers, and that secrets may be sent there. Nothing that comes over a network
adds to it: an answer may name an address, but only one that stands in the list is ever called with a token.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from dsec.base.errors import InvalidRequestError
from dsec.base.ids import is_node_id
from dsec.model.value import Value

MAXIMUM_PEERS = 1024
"""Peers of one node. A node asks each of them now and then; larger fleets want a service between them."""
_SEPARATORS = re.compile(r"[,\s]+")
_HIGHEST_PORT = 65_535
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOW = "write ID=URL, separated by commas, such as k3x9a=http://10.0.0.2:8620"


class Peer(Value, frozen=True):
    """Another node.

    Attributes:
        node: its id, five symbols.
        url: where its API answers.
    """

    node: str
    url: str


def parse_peers(text: str) -> tuple[Peer, ...]:
    """Read a list of peers: ``ID=URL``, separated by commas or white space.

    Raises:
        InvalidRequestError: an item is malformed, or an id or URL comes twice; it is named.
    """
    peers = tuple(_parse(item) for item in _SEPARATORS.split(text) if item)
    if len(peers) > MAXIMUM_PEERS:
        raise InvalidRequestError(f"{len(peers)} peers are listed; at most {MAXIMUM_PEERS} are possible")
    for what, values in (("node", [peer.node for peer in peers]), ("URL", [origin(peer.url) for peer in peers])):
        twice = next((value for at, value in enumerate(values) if value in values[:at]), None)
        if twice is not None:
            raise InvalidRequestError(f"the list of peers has the {what} {twice} twice", resolution=_HOW)
    return peers


def parse_tracker(text: str) -> Peer:
    """Read the setting `tracker`: one ``ID=URL``.

    Raises:
        InvalidRequestError: it is not that, or over TLS, which layer daemons do not speak.
    """
    peers = parse_peers(text)
    if len(peers) != 1 or not peers[0].url.startswith("http:"):
        raise InvalidRequestError(
            f"{text[:200]!r} does not name one node over http as the tracker",
            resolution="write ID=URL, such as k3x9a=http://10.0.0.2:8620",
        )
    return peers[0]


def parse_listen(text: str) -> tuple[str, int]:
    """Read the setting `peer_listen`: ``HOST:PORT``; port 0 is any free one.

    Raises:
        InvalidRequestError: it is no address, or one to which others cannot be sent.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isdecimal() and int(port) <= _HIGHEST_PORT):
        raise InvalidRequestError(
            f"{text[:200]!r} is no address to listen on", resolution="write HOST:PORT, such as 10.0.0.2:8621"
        )
    if host in ("0.0.0.0", "::"):
        raise InvalidRequestError(
            f"peers cannot be sent to {text[:200]!r}", resolution="name the address at which they reach this host"
        )
    return host, int(port)


def _parse(item: str) -> Peer:
    node, equals, url = item.partition("=")
    if not equals or not is_node_id(node):
        raise InvalidRequestError(
            f"{item[:200]!r} in the list of peers does not begin with a node's id", resolution=_HOW
        )
    if origin(url) is None:
        raise InvalidRequestError(
            f"{item[:200]!r} in the list of peers names no address",
            resolution="write http://HOST:PORT or https://HOST:PORT, without a path, a user or a query",
        )
    return Peer(node=node, url=url.rstrip("/"))


def origin(url: str) -> str | None:
    """Return scheme, host and port of a server's URL in one spelling, by which two are compared (RFC 6454); None: it is
    no such URL, or has parts that an address of a server has not.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    scheme = parts.scheme
    if scheme not in _DEFAULT_PORTS or not parts.hostname or parts.path not in ("", "/") or parts.query:
        return None
    if parts.fragment or "@" in parts.netloc or not parts.hostname.isascii() or not url.isprintable() or port == 0:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{scheme}://{host}:{port or _DEFAULT_PORTS[scheme]}"
