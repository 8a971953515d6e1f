"""The servers behind one service: its own, and those to which its sandboxes have moved.

A sandbox keeps its id when it moves, and the node it left answers `SandboxMovedError` with a URL. Every operation is
then asked for again there: that error says that nothing was done. Where a sandbox was found is remembered.

A URL in an answer is a hint and no permission. Request and token go only to servers that the configuration names: the
service's own, and its peers (`DSEC_PEERS`, `peers` in the settings), compared by scheme, host and port. Whoever can
forge an answer can therefore send a client around among servers that it trusts anyway, and nowhere else. The peers of
one service get its token: the nodes of one fleet share it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from dsec.base.errors import DsecError, NodeUnavailableError, SandboxMovedError, WrongNodeError
from dsec.model.peer import origin
from dsec.sdk.keepalive import Endpoint, KeepAliveClient
from dsec.sdk.streaming import StreamClient

MAXIMUM_HOPS = 8
"""Servers that one operation is sent on to."""
MAXIMUM_REMEMBERED = 65_536
"""Sandboxes whose new place is remembered, as many as a node remembers."""


class Link:
    """One server.

    Attributes:
        endpoint: where it is.
        unary, streams: its two clients.
        node_id: the id of the node there, once that was asked for.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.unary = KeepAliveClient(endpoint)
        self.streams = StreamClient(endpoint)
        self.node_id: str | None = None

    @property
    def place(self) -> str:
        """The server's address, in the spelling by which two are compared."""
        return origin(self.endpoint.url) or self.endpoint.url

    def close(self) -> None:
        self.unary.close()
        self.streams.close()


class Links:
    """The servers of one service.

    Args:
        home: its own.
        peers: others that may be followed to.
    """

    def __init__(self, home: Endpoint, peers: Iterable[Endpoint] = ()) -> None:
        self.home = Link(home)
        self._by_place = {self.home.place: self.home}
        for link in map(Link, peers):
            self._by_place.setdefault(link.place, link)
        self._moved: OrderedDict[str, Link] = OrderedDict()

    @property
    def has_peers(self) -> bool:
        """Whether anything can be followed."""
        return len(self._by_place) > 1

    def trail(self, sandbox_id: str | None) -> Trail:
        """Begin an operation on a sandbox (None: on the service's own server) where it was last found."""
        if sandbox_id is None or not self._moved:
            return Trail(self, sandbox_id, self.home)
        return Trail(self, sandbox_id, self._moved.get(sandbox_id, self.home))

    def named(self, url: str) -> Link | None:
        """Return the server at a URL, if it is one of ours."""
        place = origin(url)
        return None if place is None else self._by_place.get(place)

    def remember(self, sandbox_id: str, link: Link) -> None:
        """Remember where a sandbox is."""
        self._moved.pop(sandbox_id, None)
        if link is not self.home:
            self._moved[sandbox_id] = link
            if len(self._moved) > MAXIMUM_REMEMBERED:
                self._moved.popitem(last=False)

    def close(self) -> None:
        """Close every connection."""
        for link in self._by_place.values():
            link.close()


class Trail:
    """One operation's way from server to server.

    Attributes:
        link: where to ask now.
    """

    __slots__ = ("_links", "_sandbox_id", "_visited", "link")

    def __init__(self, links: Links, sandbox_id: str | None, link: Link) -> None:
        self._links = links
        self._sandbox_id = sandbox_id
        self._visited: list[str] = []
        self.link = link

    def follow(self, error: DsecError) -> None:
        """Go on to where the sandbox is, or raise `error`.

        Raises:
            SandboxMovedError: it is at a place that the configuration does not name; `url` says where.
            NodeUnavailableError: the servers send each other around.
        """
        if self._sandbox_id is None or not isinstance(error, SandboxMovedError):
            if self._sandbox_id is not None and isinstance(error, WrongNodeError):
                self._links.remember(self._sandbox_id, self._links.home)  # What was known of its place is wrong.
            raise error
        found = self._links.named(error.url)
        if found is None:
            raise _elsewhere(error) from error
        self._visited.append(self.link.place)
        # A place may come twice: who follows a sandbox that moves to and fro is a step behind it.
        if self._visited.count(found.place) > 1 or len(self._visited) > MAXIMUM_HOPS:
            self._links.remember(self._sandbox_id, self._links.home)
            raise NodeUnavailableError(
                f"{self._sandbox_id} is not to be found: its servers name each other",
                detail=" -> ".join((*self._visited, found.place)),
                resolution="ask again; if that goes on, `dsec sandbox inspect` at each of them tells who has it",
            ) from error
        self._links.remember(self._sandbox_id, found)
        self.link = found


def _elsewhere(error: SandboxMovedError) -> SandboxMovedError:
    told = SandboxMovedError(
        error.brief,
        detail=error.detail,
        resolution=f"it is at {error.url[:200]!r}, which is no server of this configuration: name that node in "
        "DSEC_PEERS (ID=URL) to be taken there, or ask it yourself"
        if error.url
        else error.resolution,
    )
    told.url = error.url
    return told
