"""The node of an ordinary user, without control groups: what it does, what it refuses, and that it leaves nothing."""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from dsec import AsyncClient, AsyncSandbox
from dsec.base.errors import CapabilityMissingError
from dsec.model.capability import Capability
from dsec.model.sandbox import QosClass, Resources
from dsec.sdk.http import HttpService
from dsec.sdk.keepalive import Endpoint
from dsec.service.port import SandboxService
from dsec.testing.ordinary_user import OrdinaryUser
from dsec.testing.service_suite import ServiceSuite, sh

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]

PATIENCE_S = 60.0
COUNT_PROCESSES = "set -- /proc/[0-9]*; echo $#"
"""The shell does it itself: of a pipe nobody knows which of its programs have begun when one of them looks."""


class Host:
    """The user's node on this host."""

    def __init__(self, user: OrdinaryUser, state_dir: Path) -> None:
        self.user = user
        self.state_dir = state_dir
        self.url = f"unix:{state_dir / 'node.sock'}"

    def dsec(self, *arguments: str) -> str:
        """Run a command of ours as the user, see it succeed, and return its output."""
        done = self.user.run(self.user.dsec(self.state_dir, *arguments))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self) -> None:
        """Have a node in the background."""
        self.dsec("sandbox", "ls")

    def kill_node(self) -> None:
        self._kill(int((self.state_dir / "node.lock").read_text()))

    def kill_keeper(self) -> None:
        self._kill(int((self.state_dir / "namespace.keeper").read_text().split()[0]))

    @staticmethod
    def _kill(pid: int) -> None:
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            assert _has_ended(descriptor)  # Its lock is free once it is gone.
        finally:
            os.close(descriptor)

    def end(self) -> None:
        self.dsec("down", "--destroy")


def _has_ended(descriptor: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(PATIENCE_S * 1000))


@pytest.fixture(scope="module")
def host(user: OrdinaryUser, state_dir: Path) -> Iterator[Host]:
    """The host with a node; afterwards nothing of it is left."""
    host = Host(user, state_dir)
    host.start()
    yield host
    host.end()
    assert user.processes() == []
    assert os.listdir(state_dir / "run") == []
    for kind in ("layers", "checkpoints", "staging"):
        assert os.listdir(state_dir / "volume" / kind) == []
    assert os.listdir(state_dir / "images" / "staging") == []
    assert not (state_dir / "namespace.keeper").exists()


@pytest.fixture
async def client(host: Host) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(url=host.url) as client:
        yield client
    service = HttpService(Endpoint(url=host.url))
    for info in await service.list():
        await service.remove(info.sandbox_id)
    await service.aclose()


async def left_inside(box: AsyncSandbox, word: str) -> int:
    """Count the processes in a sandbox whose command line holds a word, but for the one that looks."""
    script = f"for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done | grep -c '{word[:-1]}[{word[-1]}]'"
    return int((await box.run(script)).stdout)


async def test_sandbox_runs_as_root_inside_and_as_the_user_outside(client: AsyncClient, host: Host) -> None:
    box = await client.create("base")
    assert (await box.run("id -u; hostname")).stdout == f"0\n{box.sandbox_id}\n"
    ids = "stat -c %u:%g /bin/sh /home/user; touch /root/new /home/user/new; stat -c %u /root/new"
    assert (await box.run(ids)).stdout == "0:0\n1000:1000\n0\n"
    assert (
        await box.run("id -u; touch ~/mine; stat -c %u ~/mine; cat /root/new", user="user")
    ).stdout == "1000\n1000\n"
    assert (await box.run("cat /proc/net/dev | grep -c :")).stdout == "1\n"
    layer = next((host.state_dir / "volume/layers").iterdir())
    assert (layer / "upper/root/new").stat().st_uid == host.user.uid
    assert (layer / "upper/home/user/mine").stat().st_uid not in (0, 1000, host.user.uid)


async def test_files_are_reached_from_outside_with_their_owners(client: AsyncClient) -> None:
    box = await client.create("base")
    await box.files.write("/home/user/data", b"\0\xff", user="user")
    assert (await box.run("stat -c %u:%g:%s /home/user/data")).stdout == "1000:1000:2\n"
    await box.run("echo secret >/root/s; ln -s /root/s /home/user/link; rm /etc/group; rm -rf /home/user/x")
    assert await box.files.read("/home/user/link") == b"secret\n"
    assert (await box.run("cat /etc/group")).exit_code != 0


async def test_rollback_returns_to_the_image(client: AsyncClient) -> None:
    box = await client.create("base")
    await box.run("rm -rf /etc && mkdir /etc && echo new >/etc/new; setsid sleep 4321 >/dev/null 2>&1 &")
    await box.rollback()
    assert "root:x:0:0" in (await box.run("cat /etc/passwd; ls /etc/new")).stdout
    assert await left_inside(box, "sleep 4321") == 0


async def test_missing_capabilities_are_named_and_requests_for_them_refused(client: AsyncClient) -> None:
    reports = {report.capability: report for report in await client.capabilities()}
    missing = {capability for capability, report in reports.items() if not report.available}
    assert missing >= {
        Capability.MEMORY_LIMIT, Capability.CPU_LIMIT, Capability.PIDS_LIMIT, Capability.SWAP_LIMIT, Capability.PAUSE,
        Capability.PRESSURE, Capability.PROCESS_TREE_KILL, Capability.PRIVATE_ID_RANGE, Capability.DISK_QUOTA,
    }  # fmt: skip
    assert all(reports[capability].reason and reports[capability].resolution for capability in missing - {
        Capability.NETWORK_ALLOW})  # fmt: skip
    for name, value in {"memory_bytes": 1 << 30, "cpu_millis": 1000, "pids": 100, "disk_bytes": 1 << 30}.items():
        with pytest.raises(CapabilityMissingError, match=name):
            await client.create("base", resources=Resources(**{name: value}))
    with pytest.raises(CapabilityMissingError, match="cpu_limit"):
        await client.create("base", qos=QosClass.BEST_EFFORT)
    box = await client.create("base")
    with pytest.raises(CapabilityMissingError, match="pause"):
        await box.pause()
    assert await client.list() != []


async def test_timeout_is_reported_only_when_every_process_of_the_sandbox_is_gone(client: AsyncClient) -> None:
    box = await client.create("base")
    bystander = await box.start("sleep 4321")
    script = "setsid setsid sleep 4321 & (setsid sh -c 'trap \"\" TERM; sleep 4321' &) ; sleep 4321"
    result = await box.run(script, timeout_s=0.5)
    assert result.timed_out
    assert await left_inside(box, "sleep 4321") == 0
    # Whose daemon is whose cannot be known: a command beside it ends too, and is told so.
    with anyio.fail_after(PATIENCE_S):
        assert (await bystander.wait()).exit_code == 137
    assert (await box.run("echo alive")).stdout == "alive\n"


async def test_command_that_ends_by_itself_disturbs_nobody(client: AsyncClient) -> None:
    box = await client.create("base")
    await box.run("setsid sleep 4321 >/dev/null 2>&1 &")
    await box.run("true")
    assert await left_inside(box, "sleep 4321") == 1


async def test_fork_bomb_ends_with_its_timeout(client: AsyncClient) -> None:
    box = await client.create("base")
    # Bounded, since nothing else bounds it here; each forks on until it is killed.
    script = "i=0; while [ $i -lt 40 ]; do (while :; do (:) ; done) & i=$((i+1)); done; wait"
    assert (await box.run(script, timeout_s=1.0)).timed_out
    assert (await box.run(COUNT_PROCESSES)).stdout.strip() in ("2", "3")


@pytest.mark.parametrize("signal_name", ["STOP", "KILL"])
async def test_guest_that_signals_all_it_sees_cannot_keep_itself_from_being_killed(
    client: AsyncClient, signal_name: str
) -> None:
    box = await client.create("base")
    result = await box.run(["perl", "-e", f"print 'on'; $| = 1; while (1) {{ kill '{signal_name}', -1 }}"], timeout_s=1)
    assert result.timed_out
    assert (await box.run(COUNT_PROCESSES)).stdout.strip() in ("2", "3")


async def test_sandboxes_outlive_a_killed_node_and_its_keeper(host: Host, client: AsyncClient) -> None:
    box = await client.create("base")
    process = await box.start("echo before; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo after; exit 3")
    await box.run("echo kept >/root/kept")
    await client.aclose()
    host.kill_node()
    host.start()
    host.kill_node()
    host.kill_keeper()
    host.start()
    async with AsyncClient(url=host.url) as again:
        box = await again.connect(box.sandbox_id)
        assert (await box.run("cat /root/kept")).stdout == "kept\n"
        await box.run("touch /tmp/go")
        found = box.processes.get(process.process_id)
        with anyio.fail_after(PATIENCE_S):
            result = await found.wait()
        assert (result.exit_code, result.stdout) == (3, "before\nafter\n")


async def test_command_of_a_killed_node_is_ended_by_the_next(host: Host, client: AsyncClient) -> None:
    box = await client.create("base")
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            with pytest.raises(Exception):  # noqa: B017, PT011 (the connection breaks in one of several ways)
                await box.run("sleep 4321")

        tasks.start_soon(run)
        while await left_inside(box, "sleep 4321") == 0:  # noqa: ASYNC110 (nobody announces it)
            await anyio.sleep(0.01)
        host.kill_node()
    host.start()
    async with AsyncClient(url=host.url) as again:
        box = await again.connect(box.sandbox_id)
        assert await left_inside(box, "sleep 4321") == 0


async def test_sdk_in_a_program_of_the_user_starts_a_node(host: Host) -> None:
    host.dsec("down")
    program = (
        "from dsec import Sandbox\n"
        "with Sandbox.create('base') as box: print(box.run('echo from inside').stdout, end='')\n"
    )
    done = host.user.run(host.user.command("-c", program), DSEC_STATE_DIR=str(host.state_dir))
    assert (done.stdout, done.returncode) == ("from inside\n", 0), done.stderr


async def test_doctor_says_what_is_missing_and_how_to_get_it(host: Host) -> None:
    report = json.loads(host.dsec("doctor", "--json"))
    assert (report["user"], report["can_run"]) == ("ordinary", True)
    checks = {check["name"]: check for check in report["checks"]}
    assert (checks["subordinate_ids"]["need"], checks["subordinate_ids"]["present"]) == ("needed", True)
    assert not checks["cgroup_writable"]["present"]
    assert "Delegate=yes" in checks["cgroup_writable"]["resolution"]


async def test_user_without_subordinate_ids_is_told_how_to_get_them(user: OrdinaryUser, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from dsec.linux import subids; from dsec.node import namespace\n"
        "subids._KINDS = (('newuidmap', Path('/dev/null')), ('newgidmap', Path('/dev/null')))\n"
        "namespace.join(Path(sys.argv[1]))\n"
    )
    before = sorted(user.processes())
    done = user.run(user.command("-c", program, str(user.home / "other")))
    assert done.returncode != 0
    assert "subordinate ids" in done.stderr
    assert "usermod --add-subuids" in done.stderr
    assert sorted(user.processes()) == before


class TestServiceOfAnOrdinaryUser(ServiceSuite):
    image = "bench"

    @pytest.fixture
    async def service(self, host: Host) -> AsyncIterator[HttpService]:
        service = HttpService(Endpoint(url=host.url))
        yield service
        await service.aclose()

    async def test_pause_that_keeps_the_memory(self, service: SandboxService, box: str) -> None:
        with pytest.raises(CapabilityMissingError, match="pause"):
            await service.pause(box, keep_memory=True)

    async def test_pause_and_transparent_resume(self, service: SandboxService, box: str) -> None:
        with pytest.raises(CapabilityMissingError, match="pause"):
            await service.pause(box)
        assert (await service.run(box, sh("echo awake"))).stdout == b"awake\n"
