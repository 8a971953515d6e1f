"""Two real nodes of a fleet, each in a network of its own: one has pulled an image, the other takes it from there."""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import pytest

from dsec.bench.switched import SwitchedHost, switched_hosts
from dsec.cli.leave import leave_host
from dsec.images.importers.detect import import_image
from dsec.images.importers.request import ImportRequest
from dsec.images.lazy.publication.sharing import publish_image
from dsec.images.lazy.serving.client import end_daemon
from dsec.images.staging import remove_tree
from dsec.images.store import LocalImageStore
from dsec.node.lock import node_id
from dsec.sdk.tracker import tracker_overview
from dsec.service.tracking import TrackerOverview
from dsec.stores.opening import open_store

pytestmark = [pytest.mark.root, pytest.mark.slow]


class Member:
    """A node of the fleet: a host, its state directory, and the variables that its commands are given."""

    def __init__(self, host: SwitchedHost, state: Path) -> None:
        self.host = host
        self.state = state
        state.mkdir(mode=0o700)
        self.node = node_id(state, os.urandom)
        self.url = f"{self.node}=http://{host.address}:8620"
        self.variables: Mapping[str, str] = {}

    def dsec(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = self.host.inside(sys.executable, "-m", "dsec", "--state-dir", str(self.state), *arguments)
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment, timeout=60)
        assert done.returncode == 0, done.stderr
        return done

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.variables}

    def start(self) -> subprocess.Popen[bytes]:
        command = (sys.executable, "-m", "dsec", "--state-dir", str(self.state), "up", "--host", self.host.address)
        return subprocess.Popen(
            self.host.inside(*command, "--json"), stdout=subprocess.PIPE, env=self.environment, start_new_session=True
        )

    def leave(self) -> None:
        """Take everything of it from the machine."""
        remove_tree(self.state / "images/lazy/mounts")
        end_daemon(self.state / "images/lazy")
        leave_host(self.state)
        remove_tree(self.state)


@contextmanager
def up(members: tuple[Member, ...]) -> Iterator[None]:
    """Run the nodes of the fleet."""
    with ExitStack() as stack:
        for member in members:
            stack.callback(member.leave)
        processes = [stack.enter_context(member.start()) for member in members]
        try:
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.readline()
            yield
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                process.wait(30)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[Member, Member]]:
    secret = tmp_path / "peer-token"
    secret.touch(0o600)
    secret.write_text(secrets.token_hex(32))
    with ExitStack() as stack:
        one, other = (
            Member(host, tmp_path / f"state{number}")
            for number, host in enumerate(stack.enter_context(switched_hosts(2)))
        )
        for member in (one, other):
            member.variables = {
                "DSEC_TRACKER": one.url,
                "DSEC_PEER_LISTEN": f"{member.host.address}:8621",
                "DSEC_PEER_TOKEN_FILE": str(secret),
                "DSEC_STORE": (tmp_path / "objects").as_uri(),
            }
        with up((one, other)):
            yield one, other


def tracked(member: Member) -> TrackerOverview:
    """Return what the tracker knows, as a host of the fleet is told it."""
    secret = Path(member.variables["DSEC_PEER_TOKEN_FILE"])
    return member.host.call(lambda: anyio.run(tracker_overview, member.node, member.variables["DSEC_TRACKER"], secret))


def wait(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


async def _published(tmp_path: Path, url: str) -> str:
    """Publish an image from a host that has no node, and return its reference."""
    chance = random.Random(1)
    (tmp_path / "tree").mkdir()
    for number in range(4):
        (tmp_path / "tree" / f"{number}").write_bytes(chance.randbytes(5 << 19))
    images = LocalImageStore(tmp_path / "publisher")
    import_image(images, ImportRequest(path=tmp_path / "tree", name="env:v1"))
    reference = (await publish_image(images, "env:v1", open_store(url))).reference
    images.close()
    return reference


def test_one_node_takes_from_the_other_what_it_pulled(fleet: tuple[Member, Member], tmp_path: Path) -> None:
    one, other = fleet
    reference = anyio.run(_published, tmp_path, one.variables["DSEC_STORE"])
    wait(lambda: sum(bool(peer.address) for peer in tracked(one).peers) == len(fleet))
    one.dsec("image", "pull", reference, "--eager")
    wait(lambda: any(layer.complete for peer in tracked(one).peers for layer in peer.layers))
    other.dsec("image", "pull", reference, "--eager")
    shown = json.loads(other.dsec("image", "peers", "--json").stdout)
    assert shown["here"]["received_bytes"] > 10 << 20
    assert {peer["node"] for peer in shown["tracker"]["peers"]} == {one.node, other.node}
    assert "1 whole layer" in one.dsec("image", "peers").stdout


def test_one_node_takes_from_the_other_what_it_published(fleet: tuple[Member, Member], tmp_path: Path) -> None:
    """Nobody has pulled it yet, and the store that it was published to is gone."""
    one, other = fleet
    chance = random.Random(2)
    (tmp_path / "tree").mkdir()
    for number in range(4):
        (tmp_path / "tree" / f"{number}").write_bytes(chance.randbytes(5 << 19))
    wait(lambda: sum(bool(peer.address) for peer in tracked(one).peers) == len(fleet))
    one.dsec("image", "import", str(tmp_path / "tree"), "--name", "env:v1")
    reference = one.dsec("image", "publish", "env:v1").stdout.strip()
    wait(lambda: any(layer.complete for peer in tracked(one).peers for layer in peer.layers))
    shutil.rmtree(tmp_path / "objects/layers/chunks")
    other.dsec("image", "pull", reference, "--name", "env:v1", "--eager")
