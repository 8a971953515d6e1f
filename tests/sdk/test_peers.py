"""Peers over HTTP: the contract, the faults of a network, and who is let in."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import anyio
import anyio.abc
import httpx2
import pytest

from dsec.api.application import Limits
from dsec.api.server import Serving, TcpAddress, serve
from dsec.base.errors import (
    CapabilityMissingError,
    DsecError,
    InvalidRequestError,
    NodeUnavailableError,
    UnauthorizedError,
)
from dsec.base.secret_file import read_secret
from dsec.linux.pipes import Pipe
from dsec.model.peer import Peer as ListedPeer
from dsec.model.peer_proof import HelloAnswer, PeerCall, PeerGate
from dsec.node.node import Node
from dsec.sdk.http import HttpService
from dsec.sdk.keepalive import Endpoint
from dsec.sdk.peers import HttpPeer, HttpPeers
from dsec.service.content import GeneratedStream
from dsec.service.migration import MigrationCommit
from dsec.service.peers import Peer
from dsec.service.port import SandboxService
from dsec.testing.fleet import _MemoryPeer as memory_peer
from dsec.testing.fleet import fleet_of
from dsec.testing.loopback import on_loopback
from dsec.testing.peer_suite import (
    LAYER_ROUND,
    MIGRATION,
    OFFER,
    SOURCE,
    TARGET,
    Connect,
    Content,
    PeerSuite,
    ScriptedSide,
)
from dsec.testing.relay import Relay
from dsec.testing.relay import relayed as relay_to

pytestmark = pytest.mark.anyio

SECRET = b"a-secret-of-the-fleet"
TOKEN = "a-token-for-tests"
STALL_S = 0.05


@dataclass
class Half:
    """A service that is a receiving half and nothing else."""

    migrations: ScriptedSide


@asynccontextmanager
async def serving(side: ScriptedSide, *, secret: bytes | None = SECRET, port: int = 0) -> AsyncIterator[Serving]:
    gate = None if secret is None else PeerGate(side.node, secret)
    service = cast(SandboxService, Half(side))
    tcp = TcpAddress(token=TOKEN, port=port)
    async with serve(service, tcp=tcp, gate=gate, limits=Limits(grace_s=1)) as served:
        yield served


@asynccontextmanager
async def http_peer(url: str, *, node: str = TARGET, secret: bytes = SECRET) -> AsyncIterator[HttpPeer]:
    peer = HttpPeer(SOURCE, ListedPeer(node=node, url=url), lambda: secret, stall_s=STALL_S)
    yield peer
    peer.close()


class TestPeersInOneProcess(PeerSuite):
    @pytest.fixture
    def connect(self) -> Connect:
        @asynccontextmanager
        async def direct(side: ScriptedSide) -> AsyncIterator[Peer]:
            yield side

        return direct


class TestPeersOfAMemoryFleet(PeerSuite):
    @pytest.fixture
    def connect(self) -> Connect:
        @asynccontextmanager
        async def in_a_fleet(side: ScriptedSide) -> AsyncIterator[Peer]:
            async with fleet_of() as fleet:
                fleet.nodes[TARGET] = cast(Node, Half(side))
                yield memory_peer(fleet, TARGET)

        return in_a_fleet


class TestPeersOverHttp(PeerSuite):
    @pytest.fixture
    def connect(self) -> Connect:
        @asynccontextmanager
        async def over_http(side: ScriptedSide) -> AsyncIterator[Peer]:
            async with serving(side) as served:
                peer = HttpPeer(SOURCE, ListedPeer(node=side.node, url=served.url), lambda: SECRET)
                yield peer
                peer.close()

        return over_http


def relayed(served: Serving) -> AbstractAsyncContextManager[Relay]:
    return relay_to(int(served.url.rpartition(":")[2]))


async def wait_failed(side: ScriptedSide) -> None:
    with anyio.fail_after(60):
        await side.failed.wait()


async def test_an_answer_that_is_lost_is_no_outcome_and_the_message_is_not_repeated() -> None:
    side = ScriptedSide()
    async with serving(side) as served, relayed(served) as relay, http_peer(relay.url) as peer:
        await peer.status(MIGRATION)
        relay.answers = False
        with pytest.raises(NodeUnavailableError, match="did not come"):
            await peer.release(MIGRATION)
        with pytest.raises(NodeUnavailableError):
            await peer.round(MIGRATION, LAYER_ROUND, Content([b"x"]).stream())
        relay.answers = True
        await peer.release(MIGRATION)
    assert side.heard == ["status", "release", "round", "release"]


async def test_a_round_that_is_cut_fails_at_both_ends() -> None:
    side, content = ScriptedSide(), Content([b"x" * (1 << 16)] * 100)
    async with serving(side) as served, relayed(served) as relay, http_peer(relay.url) as peer:
        await peer.status(MIGRATION)
        relay.cut_there_at = relay.passed_there + (1 << 20)
        with pytest.raises(NodeUnavailableError):
            await peer.round(MIGRATION, LAYER_ROUND, content.stream())
        await wait_failed(side)
    assert not side.finished
    assert content.closed


async def test_a_peer_that_takes_nothing_is_given_up() -> None:
    side, content = ScriptedSide(), Content([b"x" * (1 << 20)] * 100)
    async with serving(side) as served, relayed(served) as relay, http_peer(relay.url) as peer:
        await peer.status(MIGRATION)
        relay.takes = False
        with pytest.raises(NodeUnavailableError, match="took nothing"):
            await peer.round(MIGRATION, LAYER_ROUND, content.stream())
    assert content.closed or not content.produced


async def test_a_peer_that_sends_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsec.api.body.PacedStream.__init__.__defaults__", (STALL_S,))
    side = ScriptedSide()

    async def pieces() -> AsyncGenerator[bytes | int, Pipe | None]:
        pipe = yield 0
        pipe = yield b"x" if pipe is None else pipe.put(b"x")
        await anyio.sleep_forever()

    async with serving(side) as served, anyio.create_task_group() as group:
        patient = HttpPeer(SOURCE, ListedPeer(node=TARGET, url=served.url), lambda: SECRET)
        group.start_soon(patient.round, MIGRATION, LAYER_ROUND, GeneratedStream(pieces()))
        await wait_failed(side)
        group.cancel_scope.cancel()
    patient.close()
    assert isinstance(side.failure, NodeUnavailableError)


async def test_a_round_that_lies_about_its_size_is_not_taken_for_whole() -> None:
    side = ScriptedSide()
    async with serving(side) as served:
        credential = await acquainted(served.url)
        head = (
            f"PUT /v1/peer/migrations/{MIGRATION}/rounds?number=0&part=layer&of=present HTTP/1.1\r\nhost: x\r\n"
            f"authorization: Bearer {credential}\r\ncontent-type: application/octet-stream\r\n"
        ).encode()
        for rest in (b"content-length: 100\r\n\r\n0123456789", b"transfer-encoding: chunked\r\n\r\nff\r\n0123456789"):
            side.failed = anyio.Event()
            port = int(served.url.rpartition(":")[2])
            async with await anyio.connect_tcp("127.0.0.1", port) as connection:
                await connection.send(head + rest)
            await wait_failed(side)
    assert not side.finished


@pytest.mark.slow
async def test_a_peer_that_starts_anew_is_met_again() -> None:
    side = ScriptedSide()
    async with serving(side) as served:
        port = int(served.url.rpartition(":")[2])
        async with http_peer(served.url) as peer:
            await peer.view()
            first = peer._link
    async with serving(side, port=port) as served:
        peer._link = first
        with pytest.raises(NodeUnavailableError, match="started anew"):
            await peer.round(MIGRATION, LAYER_ROUND, Content([b"x"]).stream())
        peer._link = first
        await peer.commit(MIGRATION, MigrationCommit(rounds=1))
        peer.close()
    assert side.heard == ["view", "commit"]


@pytest.mark.parametrize(
    ("side", "secret", "error"),
    [
        (ScriptedSide(), b"another-secret-there", NodeUnavailableError),
        (ScriptedSide(node="anth0"), SECRET, NodeUnavailableError),
        (ScriptedSide(), None, CapabilityMissingError),
    ],
    ids=["another secret", "another node", "no secret"],
)
async def test_nothing_is_told_to_who_only_answers_at_the_address(
    side: ScriptedSide, secret: bytes | None, error: type[DsecError]
) -> None:
    async with serving(side, secret=secret) as served, http_peer(served.url) as peer:
        with pytest.raises(error):
            await peer.offer(OFFER)
    assert not side.heard


async def test_the_secret_never_travels_and_a_stranger_hears_no_credential() -> None:
    heard = bytearray()

    async def listen(client: anyio.abc.SocketStream) -> None:
        async with client:
            heard.extend(await client.receive())
            body = b'{"node": "trgt0", "answer": "%s", "proof": "%s"}' % (b"0" * 64, b"0" * 64)
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            await client.send(head + body)
            heard.extend(await client.receive())

    async with on_loopback(listen) as port, http_peer(f"http://127.0.0.1:{port}") as peer:
        with pytest.raises(DsecError):
            await peer.offer(OFFER)
    assert b"/v1/peer/hello" in heard
    assert SECRET not in heard
    assert b"uthorization" not in heard


async def acquainted(url: str, secret: bytes = SECRET, source: str = SOURCE) -> str:
    call = PeerCall(source, TARGET, secret)
    async with httpx2.AsyncClient(base_url=url) as client:
        body = {"node": call.hello.node, "challenge": call.hello.challenge}
        answer = (await client.post("/v1/peer/hello", json=body)).json()
        return call.credential(HelloAnswer(**answer))


async def test_who_is_no_peer_is_refused_everywhere() -> None:
    side = ScriptedSide()
    async with serving(side) as served, httpx2.AsyncClient(base_url=served.url) as client:
        good = await acquainted(served.url)
        prefix, caller, challenge, answer, mac = good.split(".")
        bad = [
            TOKEN,
            "x",
            good[:-1],
            good + "x",
            ".".join((prefix, "anth0", challenge, answer, mac)),
            ".".join((prefix, caller, "0" * 32, answer, mac)),
            ".".join((prefix, caller, challenge, "0" * 64, mac)),
            ".".join(("peer", caller, challenge, answer, "é" * 64)),
            "peer....",
        ]
        for credential in bad:
            for path in ("/v1/peer/view", f"/v1/peer/migrations/{MIGRATION}"):
                headers = {"authorization": f"Bearer {credential}".encode("latin1")}
                reply = await client.get(path, headers=headers)
                assert (reply.status_code, reply.json()["code"]) == (401, "unauthorized"), credential
        assert not side.heard
        headers = {"authorization": f"Bearer {good}"}
        assert (await client.get("/v1/peer/view", headers=headers)).status_code == 200
        # And a peer is nobody to the sandboxes.
        assert (await client.get("/v1/sandboxes", headers=headers)).status_code == 401


async def test_a_peer_offers_in_its_own_name_and_names_migrations_as_they_are_named() -> None:
    side = ScriptedSide()
    async with serving(side) as served:
        other = HttpPeer("anth0", ListedPeer(node=TARGET, url=served.url), lambda: SECRET)
        with pytest.raises(InvalidRequestError, match="in the name of"):
            await other.offer(OFFER)
        for name in ("mig-", "mig-../../x", "sbx-0123456789abcdef", MIGRATION + "0"):
            with pytest.raises(InvalidRequestError):
                await other.status(name)
        other.close()
    assert not side.heard


async def test_a_hello_that_is_none_is_refused() -> None:
    async with serving(ScriptedSide()) as served, httpx2.AsyncClient(base_url=served.url) as client:
        for body in ({"node": "x", "challenge": "0" * 32}, {"node": SOURCE, "challenge": "Z" * 32}, {}):
            assert (await client.post("/v1/peer/hello", json=body)).status_code == 400


async def test_peers_are_found_by_id_and_url_and_oneself_is_none(tmp_path: Path) -> None:
    peers = HttpPeers(SOURCE, f"{SOURCE}=http://a:1,{TARGET}=http://B:80", tmp_path / "none")
    assert [peer.node for peer in peers.known()] == [TARGET]
    assert (await peers.find(TARGET)) is (await peers.find("http://b/"))
    for name in (SOURCE, "http://a:1", "other", ""):
        with pytest.raises(InvalidRequestError):
            await peers.find(name)
    with pytest.raises(InvalidRequestError, match="is this node itself") as itself:
        await peers.find(SOURCE)
    assert "setting `peers`" not in itself.value.resolution
    with pytest.raises(InvalidRequestError, match="secret of the peers"):
        await peers.known()[0].view()


def test_the_file_of_the_secret_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "peer-token"
    path.write_bytes(SECRET + b"\n")
    path.chmod(0o600)
    assert read_secret(path) == SECRET
    path.chmod(0o640)
    with pytest.raises(InvalidRequestError, match="others may read"):
        read_secret(path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(InvalidRequestError, match="at least"):
        read_secret(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(InvalidRequestError):
        read_secret(link)


async def test_an_unreachable_peer_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with http_peer(f"http://127.0.0.1:{port}") as peer:
        with pytest.raises(NodeUnavailableError):
            await peer.view()


async def test_a_sandbox_client_sees_no_peer_routes_without_a_gate(tmp_path: Path) -> None:
    async with serving(ScriptedSide(), secret=None) as served:
        service = HttpService(Endpoint(url=served.url, token=TOKEN))
        with pytest.raises((CapabilityMissingError, UnauthorizedError)):
            await service._call("peer_view")
        await service.aclose()
