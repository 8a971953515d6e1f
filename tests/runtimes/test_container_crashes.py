"""The process that launched an instance is killed: the next one takes over what lives and removes what does not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from dsec.linux.processes import shares_our_pids
from dsec.model.process import Stream
from dsec.runtimes.container.command import find_program
from dsec.runtimes.container.paths import InstancePaths
from dsec.runtimes.container.runtime import (
    PROGRAM_DIRECTORIES,
    RUN_DIRECTORY,
    ContainerRuntime,
    ContainerRuntimeSettings,
)
from dsec.runtimes.port import Instance
from dsec.testing.doomed_runtime import PROCESS_ID, Plan, command, doomed
from dsec.testing.host_state import HostState, assert_no_leaks
from dsec.testing.opened_runtime import opened_runtime
from dsec.testing.runtime_suite import MakeRequest, collect, ended, until

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]

SEED = int(os.environ.get("DSEC_CRASH_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
DEATHS = int(os.environ.get("DSEC_CRASH_DEATHS", "12"))
WAITS = "echo one; while [ ! -e /tmp/go ]; do sleep 0.02; done; echo two; exit 6"


@pytest.fixture(params=["crun", "runc"])
def program(request: pytest.FixtureRequest) -> str:
    """Name of an OCI runtime."""
    name: str = request.param
    if find_program(name, PROGRAM_DIRECTORIES) is None:
        pytest.skip(f"this host has no {name}")
    return name


@pytest.fixture
async def runtime(node_id: str, program: str) -> AsyncIterator[ContainerRuntime]:
    async with opened_runtime(program, node_id) as runtime:
        yield runtime


@pytest.fixture
def plan(node_id: str, program: str, image: Path, tmp_path: Path) -> Plan:
    return Plan(
        node_id=node_id, runtime=program, image=str(image), layers=str(tmp_path / "layers"), first_host_id=0x60_0000
    )


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with any sandbox."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            yield process
        finally:
            process.kill()


def run_until(plan: Plan, line: str, times: int = 1) -> None:
    """Run a plan until it has said a line so many times, and kill it."""
    with doomed(plan) as process:
        assert process.stdout is not None
        for said in process.stdout:
            times -= said == f"{line}\n"
            if times == 0:
                return
    raise AssertionError(f"it died before it said {line!r}")


async def adopt(runtime: ContainerRuntime) -> Instance:
    (instance_id,) = await runtime.instances()
    instance = await runtime.adopt(instance_id)
    assert instance is not None
    return instance


@pytest.mark.parametrize(("kept", "rest"), [(0, b"one\ntwo\n"), (4, b"two\n")])
async def test_durable_command_is_read_to_its_end_by_the_next_process(
    runtime: ContainerRuntime, plan: Plan, kept: int, rest: bytes, tmp_path: Path
) -> None:
    plan.script, plan.spool = WAITS, str(tmp_path / "spool")
    run_until(plan, "spooled")
    assert (tmp_path / "spool").read_bytes() == b"one\n"
    instance = await adopt(runtime)
    process = await instance.reattach(PROCESS_ID, kept={Stream.STDOUT: kept})
    assert process is not None
    await collect(await instance.spawn(command("touch /tmp/go")))
    out, err, status = await collect(process)
    assert (out, err, status.exit_code) == (rest, b"", 6)
    await instance.terminate()


async def test_exit_code_of_a_command_that_ended_while_nobody_was_there_is_found(
    runtime: ContainerRuntime, plan: Plan
) -> None:
    plan.script = "echo out; exit 7"
    run_until(plan, "started")
    instance = await adopt(runtime)
    process = await instance.reattach(PROCESS_ID, kept={})
    assert process is not None
    out, _, status = await collect(process)
    assert (out, status.exit_code) == (b"out\n", 7)
    assert await instance.reattach(PROCESS_ID) is None
    await instance.terminate()


async def test_command_whose_start_was_acknowledged_is_found_at_once(runtime: ContainerRuntime, plan: Plan) -> None:
    plan.script = WAITS
    run_until(plan, "started")
    instance = await adopt(runtime)
    # The shell may not even have begun to run.
    process = await instance.reattach(PROCESS_ID)
    assert process is not None
    await process.kill()
    await process.close()
    await instance.terminate()


async def test_output_is_whole_whenever_its_reader_dies(runtime: ContainerRuntime, plan: Plan, tmp_path: Path) -> None:
    lines = 200_000
    plan.script, plan.spool = f"seq {lines}", str(tmp_path / "spool")
    run_until(plan, "spooled", times=random.Random(SEED).randrange(1, 10))
    spooled = (tmp_path / "spool").read_bytes()
    instance = await adopt(runtime)
    process = await instance.reattach(PROCESS_ID, kept={Stream.STDOUT: len(spooled)})
    assert process is not None
    rest, _, status = await collect(process)
    assert spooled + rest == b"".join(b"%d\n" % number for number in range(1, lines + 1)), f"seed {SEED}"
    assert status.exit_code == 0
    await instance.terminate()


async def test_orphans_of_the_dead_process_end_and_its_durable_command_lives(
    runtime: ContainerRuntime, plan: Plan
) -> None:
    plan.script = WAITS
    run_until(plan, "started")
    instance = await adopt(runtime)
    lost = await instance.spawn(command("sleep 1000", process_id="prc-lost"))
    await instance.end_orphans(frozenset({PROCESS_ID}))
    assert (await ended(lost)).signal == signal.SIGKILL
    await lost.close()
    process = await instance.reattach(PROCESS_ID)
    assert process is not None
    await process.signal(signal.SIGTERM)
    assert (await collect(process))[2].signal == signal.SIGTERM
    await instance.terminate()


async def test_paused_instance_is_adopted_and_resumed(
    runtime: ContainerRuntime, make_request: MakeRequest, node_id: str
) -> None:
    instance = await runtime.launch(make_request())
    await instance.pause()
    await runtime.close()
    await runtime.open()
    again = await adopt(runtime)
    await again.resume()
    assert (await collect(await again.spawn(command("echo alive"))))[0] == b"alive\n"
    await again.terminate()


@pytest.mark.parametrize("round_number", range(DEATHS))
async def test_death_at_any_line_leaves_nothing_that_is_not_found(plan: Plan, node_id: str, round_number: int) -> None:
    chance = random.Random(f"{SEED}/{round_number}")
    run_directory = RUN_DIRECTORY / node_id
    runtime = ContainerRuntime(ContainerRuntimeSettings(node_id=node_id, runtime=plan.runtime))
    await runtime.open()
    before = HostState.read(node_id, run_directory)
    plan.die_after_lines = int(10 ** chance.uniform(2, 3.8))
    with doomed(plan) as process:
        assert process.wait(timeout=120) == -signal.SIGKILL
    for instance_id in await runtime.instances():
        instance = await runtime.adopt(instance_id) if chance.random() < 0.5 else None
        if instance is None:
            await runtime.discard(instance_id)
            continue
        await instance.end_orphans(frozenset())
        assert (await collect(await instance.spawn(command("echo alive"))))[0] == b"alive\n"
        await instance.terminate()
    assert await runtime.instances() == frozenset()
    await runtime.close()

    async def is_quiet() -> bool:
        # A program that waits at its gate ends by itself when whoever would open it has died.
        return HostState.read(node_id, run_directory).processes <= before.processes

    await until(is_quiet)
    assert_no_leaks(before, HostState.read(node_id, run_directory))


async def test_instance_whose_launch_was_cut_short_at_its_last_step_is_not_adopted(
    runtime: ContainerRuntime, make_request: MakeRequest, node_id: str
) -> None:
    if runtime.name != "crun":
        pytest.skip("only crun reads its configuration from a pipe")
    instance = await runtime.launch(make_request())
    await runtime.close()
    await runtime.open()
    # This is all that crun itself keeps of a configuration that it read from a pipe.
    InstancePaths(RUN_DIRECTORY / node_id / instance.instance_id).runtime_config.write_bytes(b"")
    assert await runtime.adopt(instance.instance_id) is None
    await runtime.discard(instance.instance_id)
    assert await runtime.instances() == frozenset()


async def test_pid_that_passed_to_somebody_else_is_not_adopted(
    runtime: ContainerRuntime, make_request: MakeRequest, node_id: str, bystander: subprocess.Popen[bytes]
) -> None:
    instance = await runtime.launch(make_request())
    pid_file = RUN_DIRECTORY / node_id / instance.instance_id / "pid"
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    with anyio.fail_after(60):
        await instance.wait_exited()
    await runtime.close()
    await runtime.open()
    pid_file.write_text(str(bystander.pid))
    assert await runtime.adopt(instance.instance_id) is None
    await runtime.discard(instance.instance_id)
    assert bystander.poll() is None


async def test_durable_command_whose_pid_passed_to_somebody_else_has_ended(
    runtime: ContainerRuntime, plan: Plan, node_id: str, bystander: subprocess.Popen[bytes]
) -> None:
    plan.script = WAITS
    run_until(plan, "started")
    instance = await adopt(runtime)
    pid_file = RUN_DIRECTORY / node_id / instance.instance_id / "processes" / PROCESS_ID / "pid"

    async def has_started() -> bool:
        return (pid_file.parent / "started").exists()

    await until(has_started)
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    pid_file.write_text(str(bystander.pid))
    process = await instance.reattach(PROCESS_ID)
    assert process is not None
    await process.signal(signal.SIGTERM)
    assert (await collect(process))[2].signal == signal.SIGKILL
    assert bystander.poll() is None
    await instance.terminate()


async def test_a_guest_that_poses_as_the_shell_of_a_durable_command_is_not_believed(
    runtime: ContainerRuntime, plan: Plan, node_id: str
) -> None:
    """Its descriptors would be opened again with the rights of the host's root, who reads what the guest may not."""
    plan.script = WAITS
    run_until(plan, "started")
    instance = await adopt(runtime)
    directory = RUN_DIRECTORY / node_id / instance.instance_id / "processes" / PROCESS_ID

    async def has_started() -> bool:
        return (directory / "started").exists()

    await until(has_started)
    poser = await instance.spawn(command("", argv=("sh", "-c", "echo here; sleep 1000; :", str(directory))))
    assert await poser.read() == (Stream.STDOUT, b"here\n")
    shell = int((directory / "pid").read_text())
    # The fork that becomes `sleep` has its parent's command line until then.
    guest = min(pid for pid in _pids_told(directory) if not shares_our_pids(pid))
    os.kill(shell, signal.SIGKILL)
    (directory / "pid").write_text(str(guest))
    process = await instance.reattach(PROCESS_ID)
    assert process is not None
    with anyio.fail_after(60):
        assert (await collect(process))[2].signal == signal.SIGKILL
    await instance.terminate()


def _pids_told(directory: Path) -> list[int]:
    """Return the processes that have a directory among their arguments."""
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if str(directory).encode() in path.read_bytes().split(b"\0")
    ]
