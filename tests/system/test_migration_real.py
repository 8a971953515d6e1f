"""Two real nodes on one host: sandboxes move between them over HTTP, and whatever dies in the middle, exactly one
serves each of them and has what was acknowledged."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from tests.system.conftest import leave

from dsec.base.errors import DsecError, InvalidRequestError, SandboxMovedError, SandboxNotFoundError, WrongNodeError
from dsec.model.fleet import DrainProgress, DrainReport
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxFilter, SandboxSpec, SandboxState
from dsec.model.state import CheckpointRequest, ForkRequest, MigrationRequest
from dsec.sdk.fleet import fleet_of
from dsec.sdk.http import HttpService
from dsec.sdk.state import state_of
from dsec.testing.leaks import Leaks, clear_away, wait_loop_devices_gone
from dsec.testing.node_pair import HERE, THERE, NodePair, node_pair
from dsec.testing.node_process import NodeProcess

LIVES = int(os.environ.get("DSEC_CRASH_MOVES", "4"))
pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(600)]
IMAGE = "guest"
PATIENCE_S = 60.0
EVERY = SandboxFilter(states=tuple(SandboxState))


def dsec(state_dir: Path, *arguments: str, **environment: str) -> str:
    command = [sys.executable, "-m", "dsec", "--state-dir", str(state_dir), *arguments]
    variables = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def pair(image_store: Path) -> Iterator[NodePair]:
    """Two nodes that run; at the end nothing of them is left on the host."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    top = Path(tempfile.mkdtemp(prefix="dsec-"))
    states = [top / "a", top / "b"]
    nodes: list[NodeProcess] = []
    try:
        for state in states:
            state.mkdir(mode=0o700)
            shutil.copytree(image_store, state / "images", symlinks=True)
        pair = node_pair(*states)
        nodes += [pair.here, pair.there]
        for node in nodes:
            assert node.start()
        yield pair
        for node in nodes:
            if node.is_running:
                node.stop()
            leave(node.state_dir)
            assert not Leaks.read(node.state_dir).described()
            wait_loop_devices_gone(node.state_dir)
    finally:
        for node in nodes:
            node.kill()
        for state in states:
            clear_away(state)
        shutil.rmtree(top, ignore_errors=True)


async def contents(client: HttpService, box: str, path: str) -> bytes:
    return b"".join([piece async for piece in client.read_file(box, path)])


async def exists(client: HttpService, box: str, path: str) -> bool:
    result = await client.run(box, CommandRequest(argv=("sh", "-c", f"test -e {path}")))
    return result.status.exit_code == 0


async def listing(client: HttpService, box: str) -> bytes:
    """Names, kinds, owners, permissions and targets of everything that was written."""
    argv = ("sh", "-c", "ls -lanR --time-style=+%s /tmp/work; stat -c '%n %h %a %u %g %s' /tmp/work/*")
    result = await client.run(box, CommandRequest(argv=argv, user="root"))
    return result.stdout


async def test_everything_of_a_sandbox_moves_and_moves_back(pair: NodePair) -> None:
    async with pair.client(HERE) as client:
        box = (await client.create(SandboxSpec(image=IMAGE, seed=7, metadata={"job": "j"}))).sandbox_id
        script = (
            "mkdir /tmp/work && cd /tmp/work && echo one > plain && chmod 4755 plain && ln plain linked && "
            "ln -s plain pointer && mkfifo pipe && truncate -s 5M sparse && echo end >> sparse && mkdir -p a/b && "
            "chown 1000:1000 a/b && rm /bin/tac 2>/dev/null; rm /bin/yes; head -c 3000000 /dev/urandom > data"
        )
        await client.run(box, CommandRequest(argv=("sh", "-c", script), user="root"))
        before, data = await listing(client, box), await contents(client, box, "/tmp/work/data")
        await state_of(client).checkpoint(box, CheckpointRequest(name="one"))
        await client.run(box, CommandRequest(argv=("sh", "-c", "rm -r /tmp/work/a; echo two > /tmp/two"), user="root"))
        changed = await listing(client, box)
        report = await state_of(client).migrate(box, MigrationRequest(node=THERE))
        assert report.sandbox.node == THERE
        assert await listing(client, box) == changed
        assert await contents(client, box, "/tmp/work/data") == data
        assert (await client.inspect(box)).spec.metadata == {"job": "j"}
        assert not await exists(client, box, "/bin/yes")
        await client.rollback(box, snapshot="one")
        assert await listing(client, box) == before
        await state_of(client).migrate(box, MigrationRequest(node=HERE))
        assert (await client.inspect(box)).node == HERE
        assert await listing(client, box) == before
        await client.rollback(box)
        assert not await exists(client, box, "/tmp/work")
        assert await exists(client, box, "/bin/yes")


async def test_the_command_line_moves_follows_and_empties(pair: NodePair) -> None:
    def cli(*arguments: str) -> str:
        return dsec(pair.here.state_dir, *arguments, DSEC_PEERS=pair.peers)

    def work() -> None:
        box = cli("sandbox", "create", IMAGE).strip()
        assert f"{THERE}  " in cli("node", "ls")
        cli("sandbox", "migrate", box, "--to", THERE)
        assert THERE in cli("sandbox", "inspect", box, "--json")  # Through the socket, with the token beside it.
        assert cli("sandbox", "exec", box, "--", "printf", "still here") == "still here"
        other = cli("sandbox", "create", IMAGE).strip()
        assert cli("node", "drain").startswith("1 moved, 0 ended, 0 still here")
        assert THERE in cli("sandbox", "inspect", other, "--json")
        cli("node", "drain", "--undo")
        cli("sandbox", "create", IMAGE)

    await anyio.to_thread.run_sync(work)


async def test_a_fork_is_spread_over_two_hosts(pair: NodePair) -> None:
    async with pair.client(HERE) as client:
        box = (await client.create(SandboxSpec(image=IMAGE))).sandbox_id
        await client.write_file(box, "/tmp/f", b"of the parent")
        children = await state_of(client).fork(box, ForkRequest(count=4, spread=True))
        assert {child.node for child in children} == {HERE, THERE}
        for child in children:
            assert await contents(client, child.sandbox_id, "/tmp/f") == b"of the parent"


async def test_peers_that_do_not_share_the_secret_move_nothing(pair: NodePair) -> None:
    pair.there.stop()
    (pair.there.state_dir / "peer-token").write_bytes(b"another-secret-of-another-fleet")
    assert pair.there.start()
    async with pair.client(HERE) as client:
        box = (await client.create(SandboxSpec(image=IMAGE))).sandbox_id
        with pytest.raises(DsecError, match="does not know the secret"):
            await state_of(client).migrate(box, MigrationRequest(node=THERE))
        with pytest.raises(InvalidRequestError):
            await state_of(client).migrate(box, MigrationRequest(node="http://127.0.0.1:1"))
        assert (await client.inspect(box)).state is SandboxState.READY


@dataclass
class Writer:
    """Writes numbers to a file of a sandbox, one after another, and remembers which were acknowledged."""

    client: HttpService
    box: str
    acknowledged: int = 0
    tried: int = 0
    stopped: bool = False
    begun: anyio.Event = field(default_factory=anyio.Event)
    errors: dict[str, str] = field(default_factory=dict)

    async def run(self) -> None:
        while not self.stopped:
            self.tried += 1
            number = self.tried
            try:
                await self.client.write_file(self.box, "/tmp/number", b"%d" % number)
                self.acknowledged = number
                self.begun.set()
            except DsecError as error:
                self.errors[error.code] = str(error)
                await anyio.sleep(0.005)


async def holders(pair: NodePair, box: str) -> list[str]:
    """The nodes that serve a sandbox, or are about to: empty while one does not answer."""
    found = []
    for name in (HERE, THERE):
        async with pair.client(name) as client:
            client._links._by_place = {client._links.home.place: client._links.home}  # Ask this one alone.
            try:
                info = await client.inspect(box)
                found.append(name if info.state is SandboxState.READY else f"{name} ({info.state.value})")
            except (SandboxMovedError, WrongNodeError, SandboxNotFoundError):
                pass
            except DsecError as error:
                found.append(f"{name}: {error.code}")
    return found


async def settled(pair: NodePair, box: str) -> str:
    """Wait until exactly one node serves a sandbox; return which."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = await holders(pair, box)
        if len(found) == 1 and found[0] in (HERE, THERE):
            return found[0]
        assert time.monotonic() < deadline, f"{found}\n{pair.here.log_tail()}\n{pair.there.log_tail()}"
        await anyio.sleep(0.1)


@pytest.mark.parametrize("victim", [HERE, THERE], ids=["source", "target"])
async def test_a_kill_in_the_middle_leaves_exactly_one_with_what_was_acknowledged(pair: NodePair, victim: str) -> None:
    seed = int(os.environ.get("DSEC_CRASH_SEED", secrets.randbits(32)))
    chance = random.Random(seed)
    nodes = {HERE: pair.here, THERE: pair.there}
    async with pair.client(HERE) as client:
        box = (await client.create(SandboxSpec(image=IMAGE))).sandbox_id
        fill = CommandRequest(argv=("sh", "-c", "head -c 8000000 /dev/urandom > /tmp/bulk"))
        await client.run(box, fill)
        bulk = await contents(client, box, "/tmp/bulk")
        at, outcomes = HERE, []
        for _ in range(LIVES):
            source, target = at, THERE if at == HERE else HERE
            doomed = nodes[source if victim == HERE else target]
            restart_to_die(doomed, int(10 ** chance.uniform(2.5, 4.7)))
            async with pair.client(source) as mine:
                writer = Writer(mine, box)
                outcome = await move_until_somebody_dies(pair, writer, source, target, doomed)
            assert doomed.start()
            at = await settled(pair, box)
            outcomes.append((outcome, at))
            async with pair.client(at) as mine:
                number = int(await contents(mine, box, "/tmp/number") or b"0")
                assert writer.acknowledged <= number <= writer.tried, f"seed {seed}: {outcomes} {writer}"
                assert await contents(mine, box, "/tmp/bulk") == bulk
                result = await mine.run(box, CommandRequest(argv=("printf", "alive")))
                assert result.stdout == b"alive"
                await mine.write_file(box, "/tmp/number", b"0")
        await client.remove(box)
        for name in (HERE, THERE):
            async with pair.client(name) as mine:
                assert await mine.list(EVERY) == []


def restart_to_die(node: NodeProcess, lines: int) -> None:
    """Have a node that counts its lines, once it is told to, and dies at this one."""
    node.stop()
    assert node.start(die_after_lines=lines)


async def move_until_somebody_dies(
    pair: NodePair, writer: Writer, source: str, target: str, doomed: NodeProcess
) -> str:
    outcome = "moved"
    async with anyio.create_task_group() as group:
        group.start_soon(writer.run)
        with anyio.move_on_after(PATIENCE_S):
            await writer.begun.wait()
        assert writer.acknowledged, f"{writer.errors} {await holders(pair, writer.box)}\n{pair.here.log_tail()}"
        doomed.arm()
        async with pair.client(source) as other:
            try:
                await state_of(other).migrate(writer.box, MigrationRequest(node=target, downtime_s=0.05))
            except DsecError as error:
                outcome = error.code
        await anyio.sleep(0.05)
        writer.stopped = True
    doomed.kill()  # Whether it died by itself or not: the next one finds what it left.
    return outcome


async def test_a_drain_that_is_killed_goes_on_when_it_is_asked_again(pair: NodePair) -> None:
    async with pair.client(HERE) as client:
        made = [(await client.create(SandboxSpec(image=IMAGE))).sandbox_id for _ in range(5)]
        for number, box in enumerate(made):
            await client.write_file(box, "/tmp/number", b"%d" % number)
        async with fleet_of(client).drain() as events:
            async for event in events:
                if isinstance(event, DrainProgress) and event.done == 2:
                    pair.here.kill()
                    break
    assert pair.here.start()
    async with pair.client(HERE) as client:
        assert (await fleet_of(client).look()).draining
        for box in made:
            await settled(pair, box)
        async with fleet_of(client).drain() as events:
            heard = [event async for event in events]
        assert isinstance(heard[-1], DrainReport)
        assert not heard[-1].failed
        for number, box in enumerate(made):
            assert await settled(pair, box) == THERE
            assert await contents(client, box, "/tmp/number") == b"%d" % number
        await fleet_of(client).undo_drain()
        await client.create(SandboxSpec(image=IMAGE))
