"""Real layer daemons in networks of their own give each other chunks. Whatever goes wrong among them, no read fails."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from dsec.base.ids import random_body
from dsec.bench.peer_hosts import PeerHost, PeerHosts, peer_hosts
from dsec.distribution.messages import VerdictKind
from dsec.images import erofs
from dsec.images.lazy.formats.manifest import LayerManifest, decode
from dsec.images.lazy.peers.seeder import SHELF
from dsec.images.lazy.publication.conversion import LayerFile, publish
from dsec.images.lazy.verifying.findings import Subject
from dsec.images.lazy.verifying.peer_faults import peer_faults
from dsec.stores.objects_folder import FolderObjectStore

pytestmark = [pytest.mark.root, pytest.mark.slow]

_FILES = 4
_SLOW_BITS = 8_000_000


class World:
    """Three hosts on a switch, and a layer at their origin."""

    def __init__(self, hosts: PeerHosts, root: Path) -> None:
        self.hosts = hosts
        chance = random.Random(1)
        self.contents = {f"large-{number}": chance.randbytes(4 << 20) for number in range(_FILES)}
        (root / "tree").mkdir()
        for name, content in self.contents.items():
            (root / "tree" / name).write_bytes(content)
        erofs.make(root / "tree", root / "layer.erofs")
        file = LayerFile(root / "layer.erofs", "sha256:" + "ab" * 32, _FILES + 1)
        self.layer = anyio.run(publish, file, FolderObjectStore(hosts.store)).manifest

    @property
    def manifest(self) -> LayerManifest:
        return decode((self.hosts.store / f"layers/manifests/{self.layer}.json").read_bytes(), "the origin")

    def start(self, number: int, **peers: object) -> PeerHost:
        """Start a host's daemon, and wait until the tracker knows where it gives chunks."""
        host = self.hosts.hosts[number]
        host.start(self.hosts.options(host, **peers))
        wait(lambda: any(peer.node == host.node and peer.address for peer in self.hosts.overview().peers))
        return host

    def fill(self, host: PeerHost) -> None:
        """Have a host read all, and wait until the tracker knows."""
        self.check(host)
        wait(lambda: any(peer.node == host.node and self._knows(peer.layers) for peer in self.hosts.overview().peers))

    def _knows(self, layers: object) -> bool:
        chunks = len({ref.id for ref in (*self.manifest.chunks, *self.manifest.metadata_chunks)})
        return any(layer.complete or layer.chunks >= chunks for layer in layers)  # type: ignore[attr-defined]

    def check(self, host: PeerHost) -> None:
        """Read everything, and compare it."""
        root = host.daemon.mount(self.layer)
        for name, content in self.contents.items():
            assert (root / name).read_bytes() == content


@pytest.fixture(scope="module")
def module_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("hosts")
    with peer_hosts(root / "hosts", 3) as hosts:
        yield World(hosts, root)


@pytest.fixture
def world(module_world: World) -> Iterator[World]:
    yield module_world
    for host in module_world.hosts.hosts:
        host.host.join()
        host.end()
        host.host.unshape()
        # The tracker remembers what it found out about nodes.
        host.node = random_body(5, os.urandom)


def wait(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end_s, "what is waited for does not come"
        time.sleep(0.02)


def seeder_of(host: PeerHost) -> int:
    """Return the process that gives a host's chunks; 0: there is none at the moment."""
    server = host.daemon.status().pid
    children = Path(f"/proc/{server}/task").glob("*/children")
    return next((int(pid) for file in children for pid in file.read_text().split()), 0)


def taken(host: PeerHost) -> int:
    """Return how many chunks a host took from peers."""
    report = host.daemon.status().peers
    assert report is not None
    return report.chunks


def test_chunks_come_from_a_peer_and_the_origin_sends_them_once(world: World) -> None:
    giver, taker = world.start(0), world.start(1)
    world.fill(giver)
    sent_before = world.hosts.origin.sent_bytes()
    world.check(taker)
    assert taken(taker) == len(world.manifest.chunks) + len(world.manifest.metadata_chunks)
    manifest_bytes = len(world.manifest.data)
    assert world.hosts.origin.sent_bytes() - sent_before < manifest_bytes + (1 << 16)
    wait(lambda: bool((given := giver.daemon.status().peers) and given.sent_bytes > world.manifest.size_bytes))


def test_a_peer_that_gives_wrong_bytes_is_named_and_no_read_fails(world: World) -> None:
    giver, taker = world.start(0), world.start(1)
    world.fill(giver)
    for stored in (giver.root / SHELF).iterdir():
        data = stored.read_bytes()
        stored.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])
    world.check(taker)
    events = [event for event in taker.events() if event["kind"] == "bad_peer"]
    assert events
    assert {event["source"] for event in events} == {giver.node}
    names = [ref.id[:12] for ref in (*world.manifest.chunks, *world.manifest.metadata_chunks)]
    assert all(any(name in str(event["brief"]) for name in names) for event in events)
    (finding,) = peer_faults(taker.root, Subject(part="layer-1", digest="sha256:" + "ab" * 32), world.layer)
    assert (finding.part, finding.ok, finding.node) == ("layer-1 peers", False, giver.node)
    assert f"node {giver.node} gave something else for chunk " in finding.detail
    report = taker.daemon.status().peers
    assert report is not None
    # After three it is not asked any more, whatever the tracker says.
    assert report.failures["wrong"] == 3
    wait(lambda: len(world.hosts.overview().verdicts) >= 3)
    verdicts = world.hosts.overview().verdicts
    assert {(each.kind, each.node) for each in verdicts} == {(VerdictKind.BLOCK_QUARANTINED, giver.node)}
    assert {each.reporters for each in verdicts} == {(taker.node,)}


def test_a_peer_that_stalls_is_left(world: World) -> None:
    giver, taker = world.start(0), world.start(1, stall_s=0.2)
    world.fill(giver)
    seeder = seeder_of(giver)
    os.kill(seeder, signal.SIGSTOP)
    try:
        world.check(taker)
    finally:
        os.kill(seeder, signal.SIGCONT)
    report = taker.daemon.status().peers
    assert report is not None
    assert report.failures.keys() <= {"stalled", "unreachable"}
    # Those that were under way when it fell silent, and then one after longer and longer pauses.
    assert 1 <= sum(report.failures.values()) <= 6


def test_a_peer_that_dies_in_the_middle_is_replaced_by_the_origin(world: World) -> None:
    giver, taker = world.start(0), world.start(1)
    world.fill(giver)
    giver.host.shape(_SLOW_BITS)
    with _reading(world, taker):
        wait(lambda: bool((report := giver.daemon.status().peers) and report.sending))
        os.kill(seeder_of(giver), signal.SIGKILL)
        giver.kill()


def test_a_chunk_goes_on_to_the_next_while_it_comes_and_whoever_passed_it_on_may_die(world: World) -> None:
    # It forgets who has ended. Whoever is sent to those first may turn to the origin before it hears of the living.
    world.hosts.tracker.kill()
    world.hosts.tracker.start()
    first, second = world.start(0), world.start(1)
    mounts = [host.daemon.mount(world.layer) for host in (first, second)]  # Metadata is here before the link is slow.
    origin = world.hosts.origin
    origin.shape(_SLOW_BITS)
    try:
        received_before = first.host.received_bytes()
        leading = threading.Thread(target=_read_in_vain, args=(mounts[0] / "large-0",))
        leading.start()
        wait(lambda: first.host.received_bytes() - received_before > 1 << 18)
        with _reading(world, second):
            wait(lambda: bool((report := first.daemon.status().peers) and report.sending))
            assert first.host.received_bytes() - received_before < 4 << 20, "it sends what it has not got all of"
            origin.unshape()
            os.kill(seeder_of(first), signal.SIGKILL)
            first.kill()
        leading.join(30)
        assert not leading.is_alive()
    finally:
        origin.unshape()
    report = second.daemon.status().peers
    assert report is not None
    assert report.failures.keys() <= {"broken", "stalled", "unreachable"}


def _read_in_vain(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.read_bytes()


def test_a_link_that_is_cut_in_the_middle_is_bridged(world: World) -> None:
    giver, taker = world.start(0), world.start(1, stall_s=0.3)
    world.fill(giver)
    giver.host.shape(_SLOW_BITS)
    with _reading(world, taker):
        wait(lambda: bool((report := giver.daemon.status().peers) and report.sending))
        giver.host.cut()
    giver.host.join()
    giver.host.unshape()
    third = world.start(2)
    world.check(third)
    assert taken(third), "who was cut off for a while is asked again by others"


def test_a_tracker_that_is_killed_costs_a_moment_and_knows_all_again_when_it_is_back(world: World) -> None:
    giver, taker = world.start(0), world.start(1)
    world.fill(giver)
    world.hosts.tracker.kill()
    world.check(taker)
    assert taken(taker) == 0
    world.hosts.tracker.start()
    wait(lambda: {giver.node, taker.node} <= {peer.node for peer in world.hosts.overview().peers})
    third = world.start(2)
    world.check(third)
    assert taken(third) > 0


def test_who_has_another_secret_gets_nothing_and_reads_all_the_same(world: World, tmp_path: Path) -> None:
    giver = world.start(0)
    world.fill(giver)
    secret = tmp_path / "peer-token"
    secret.touch(0o600)
    secret.write_text("a secret of another fleet")
    stranger = world.hosts.hosts[1]
    stranger.start(world.hosts.options(stranger, secret_file=str(secret)))
    world.check(stranger)
    assert taken(stranger) == 0
    assert stranger.node not in {peer.node for peer in world.hosts.overview().peers}


def test_a_seeder_that_is_killed_is_started_again(world: World) -> None:
    giver, taker = world.start(0), world.start(1)
    world.fill(giver)
    killed = seeder_of(giver)
    os.kill(killed, signal.SIGKILL)
    wait(lambda: seeder_of(giver) not in (0, killed))
    wait(lambda: bool((report := giver.daemon.status().peers) and report.address))
    world.check(taker)


class _reading:  # noqa: N801 - it is used as a function is.
    """Check all contents in a thread for the duration of the block, at the end of which it must have ended well."""

    def __init__(self, world: World, host: PeerHost) -> None:
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._read, args=(world, host))

    def _read(self, world: World, host: PeerHost) -> None:
        try:
            world.check(host)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits.
            self._failures.append(error)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self._failures == []
