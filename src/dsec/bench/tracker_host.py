"""A tracker and nothing else: the API's server with the tracker's routes, where no sandboxes are needed.

Run as ``python -m dsec.bench.tracker_host NODE SECRET_FILE HOST PORT``; says a line when it takes requests.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import anyio

from dsec.api.face import SANDBOXES, Face
from dsec.api.server import TcpAddress, serve
from dsec.base.clock import SystemClock
from dsec.base.secret_file import read_secret
from dsec.model.peer_proof import PeerGate
from dsec.node.settings import NodeSettings
from dsec.node.tracking import NodeTracker, tracker_policy
from dsec.service.port import SandboxService


class _TrackerOnly:
    """Stands where a node would, and has its tracker."""

    def __init__(self, tracker: NodeTracker) -> None:
        self.tracker = tracker


async def _serve(node: str, secret_file: str, host: str, port: str) -> None:
    tracker = NodeTracker(node, tracker_policy(NodeSettings()), SystemClock())
    service: SandboxService = _TrackerOnly(tracker)  # type: ignore[assignment]
    routes = {name: route for name, route in SANDBOXES.routes.items() if name.startswith(("tracker_", "peer_hello"))}
    face = Face(
        routes=routes,
        values={name: SANDBOXES.values[name] for name in routes},
        events={},
        octets={},
        filter_of=SANDBOXES.filter_of,
        shorts=SANDBOXES.shorts,
    )
    tcp = TcpAddress(token=secrets.token_hex(16), host=host, port=int(port))
    async with anyio.create_task_group() as group:
        group.start_soon(tracker.run)
        async with serve(service, tcp=tcp, gate=PeerGate(node, read_secret(Path(secret_file))), face=face):
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await anyio.sleep_forever()


def main(arguments: list[str]) -> None:
    """Serve until killed."""
    node, secret_file, host, port = arguments
    anyio.run(_serve, node, secret_file, host, port)


if __name__ == "__main__":
    main(sys.argv[1:])
