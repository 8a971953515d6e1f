"""A node as the tracker of chunks, over its API: who may speak, and for whom."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from dsec.base.errors import InvalidRequestError, NodeUnavailableError
from dsec.distribution.messages import Announcement, FailureKind, LayerChange, Lookup
from dsec.images.lazy.peers.calling import Caller, PeerFailedError
from dsec.images.lazy.peers.tracking import ANNOUNCE, LOOK_UP, HttpTracker
from dsec.model.peer import Peer, parse_listen, parse_tracker
from dsec.sdk.tracker import tracker_overview
from dsec.testing.http_fleet import SECRET, Served, http_fleet

pytestmark = pytest.mark.anyio

_LAYER, _CHUNK = "ab" * 32, "cd" * 32


@asynccontextmanager
async def tracker_and_caller(tmp_path: Path, own: str = "aaaaa") -> AsyncIterator[tuple[Served, Caller]]:
    async with http_fleet(tmp_path, "track") as fleet:
        served = fleet["track"]
        caller = Caller(own, Peer(node="track", url=served.url), lambda: SECRET)
        try:
            yield served, caller
        finally:
            caller.close()


def _has(node: str, **fields: object) -> Announcement:
    announcement = Announcement(
        node=node,
        address="http://10.0.0.1:8621",
        life="1",
        sequence=1,
        full=True,
        upload_slots=4,
        changes=(LayerChange(layer=_LAYER, gained=(_CHUNK,)),),
    )
    return msgspec.structs.replace(announcement, **fields)


async def test_who_announces_is_proposed_to_others(tmp_path: Path) -> None:
    async with tracker_and_caller(tmp_path) as (served, caller):
        tracker = HttpTracker(caller)
        assert not (await tracker.announce(_has("aaaaa"))).resend
        other = Caller("bbbbb", caller.peer, lambda: SECRET)
        resent: list[bool] = []
        asking = HttpTracker(other)
        asking.on_resend = lambda: resent.append(True)
        reply = await asking.look_up(Lookup(node="bbbbb", layer=_LAYER, chunks=(_CHUNK,)))
        other.close()
        assert [peer.node for peer in reply.answers[0].peers] == ["aaaaa"]
        assert resent, "it has not announced itself"
        known = await tracker_overview("ccccc", f"track={served.url}", tmp_path / "peer-token")
        assert [(peer.node, peer.layers[0].chunks) for peer in known.peers] == [("aaaaa", 1)]


@pytest.mark.parametrize(
    "announcement",
    [_has("bbbbb"), _has("aaaaa", address="file:///etc/passwd"), _has("aaaaa", address="http://user@10.0.0.1:1")],
)
async def test_nobody_speaks_for_another_or_gives_an_address_that_is_none(
    tmp_path: Path, announcement: Announcement
) -> None:
    async with tracker_and_caller(tmp_path) as (served, caller):
        reply = await caller.ask("POST", ANNOUNCE, msgspec.json.encode(announcement), limit=4096, timeout_s=5)
        assert reply.status == 400
        assert served.node.tracker.overview().peers == ()


async def test_a_token_of_the_api_is_no_credential_and_neither_is_another_secret(tmp_path: Path) -> None:
    async with tracker_and_caller(tmp_path) as (served, _):
        stranger = Caller("aaaaa", Peer(node="track", url=served.url), lambda: b"a secret of another fleet")
        with pytest.raises(PeerFailedError) as failed:
            await stranger.ask("POST", LOOK_UP, b"{}", limit=4096, timeout_s=5)
        stranger.close()
        assert failed.value.kind is FailureKind.UNREACHABLE
        (tmp_path / "other").touch(0o600)
        (tmp_path / "other").write_text("a secret of another fleet")
        with pytest.raises(NodeUnavailableError, match="cannot be asked"):
            await tracker_overview("ccccc", f"track={served.url}", tmp_path / "other")


@pytest.mark.parametrize("text", ["", "track", "track=https://10.0.0.1:1", "a2c4e=http://h:1,b2c4e=http://i:1"])
def test_a_tracker_is_one_node_over_http(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_tracker(text)


@pytest.mark.parametrize("text", ["", "10.0.0.1", ":8621", "0.0.0.0:8621", "[::]:1", "h:65536", "h:x"])
def test_an_address_to_listen_on_is_one_that_peers_can_be_told(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_listen(text)
    assert parse_listen("[fd00::1]:8621") == ("fd00::1", 8621)
