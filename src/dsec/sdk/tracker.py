"""What a fleet's tracker of chunks knows, for people: asked over HTTP as a peer asks."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dsec.base.errors import NodeUnavailableError
from dsec.base.secret_file import read_secret
from dsec.distribution.messages import FailureKind
from dsec.images.lazy.peers.calling import Caller, PeerFailedError
from dsec.model.peer import parse_tracker
from dsec.service.tracking import TrackerOverview

_TARGET = "/v1/peer/chunks"
_REPLY_BYTES = 64 << 20
_TIMEOUT_S = 10.0
_OK = 200


async def tracker_overview(own: str, tracker: str, secret_file: Path) -> TrackerOverview:
    """Ask the tracker what it knows.

    Args:
        own: id of this host's node.
        tracker: the setting `tracker`.
        secret_file: what the nodes of the fleet share.

    Raises:
        InvalidRequestError: the setting is malformed, or the secret cannot be read.
        NodeUnavailableError: the tracker does not answer, or does not believe that this is a node of its fleet.
    """
    secret = read_secret(secret_file)
    peer = parse_tracker(tracker)
    caller = Caller(own, peer, lambda: secret)
    try:
        reply = await caller.ask("GET", _TARGET, b"", limit=_REPLY_BYTES, timeout_s=_TIMEOUT_S)
        if reply.status != _OK:
            raise PeerFailedError(FailureKind.UNREACHABLE, f"it answers with status {reply.status}")
        return msgspec.json.decode(reply.body, type=TrackerOverview)
    except (PeerFailedError, msgspec.MsgspecError) as error:
        raise NodeUnavailableError(
            f"the tracker {peer.node} at {peer.url} cannot be asked",
            detail=str(error),
            resolution="see that the node runs (`dsec up --host ...`), and that both have the same peer_token_file",
        ) from error
    finally:
        caller.close()
