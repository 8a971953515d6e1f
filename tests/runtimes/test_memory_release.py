"""A paused instance's memory goes to the node's swap file and comes back whole, also to the next node."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import CapabilityMissingError
from dsec.linux.swap import swap_table
from dsec.model.capability import Capability
from dsec.model.sandbox import Resources
from dsec.node.state.swap import SwapFile
from dsec.runtimes.container.command import find_program
from dsec.runtimes.container.runtime import PROGRAM_DIRECTORIES, ContainerRuntime
from dsec.runtimes.port import Instance, Process
from dsec.testing.doomed_runtime import command
from dsec.testing.opened_runtime import opened_runtime
from dsec.testing.runtime_suite import PATIENCE_S, MakeRequest, can, collect, read_until

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]

MIB = 1 << 20
HOLDS_MEMORY = """
    exec perl -e '$| = 1; $x = ""; $x .= pack("N", $_) x 1024 for 1 .. 16384; print "ready\n";
    while (<STDIN>) { print "sum ", unpack("%32N*", $x), "\n" }'
"""
SUM = b"sum %d\n" % (sum(range(1, 16385)) * 1024 % (1 << 32))


@pytest.fixture
def swap(tmp_path: Path) -> Iterator[SwapFile]:
    """A swap file that is on, with room for the guest."""
    file = SwapFile(tmp_path / "swap", 256 * MIB)
    try:
        with file.claim(1):
            pass
    except CapabilityMissingError as error:
        pytest.skip(str(error))
    yield file
    file.remove()


@pytest.fixture
async def runtime(swap: SwapFile, node_id: str) -> AsyncIterator[ContainerRuntime]:
    if find_program("crun", PROGRAM_DIRECTORIES) is None:
        pytest.skip("this host has no crun")
    async with opened_runtime("crun", node_id) as runtime:
        if not can(runtime, Capability.SWAP_LIMIT):
            pytest.skip("this host does not account memory and swap")
        yield runtime


async def hold(instance: Instance) -> Process:
    process = await instance.spawn(command(HOLDS_MEMORY, process_id="holder", stdin=True))
    await read_until(process, b"ready\n")
    return process


async def give_back(instance: Instance) -> None:
    """Pause an instance and see at least nine tenths of its memory go to swap."""
    await instance.pause()
    before = (await instance.statistics()).memory_bytes
    assert before is not None
    assert before > 64 * MIB
    with anyio.fail_after(PATIENCE_S):
        assert await instance.release_memory() >= 0.9 * before
    after = await instance.statistics()
    assert after.memory_bytes is not None
    assert after.memory_bytes <= 0.1 * before
    assert after.swap_bytes is not None
    assert after.swap_bytes > 60 * MIB


async def test_memory_goes_to_swap_and_is_whole_after_three_pauses(
    runtime: ContainerRuntime, make_request: MakeRequest
) -> None:
    # No swap of its own, as is the default: giving memory back must not depend on it.
    limits = Resources(memory_bytes=256 * MIB, swap_bytes=0, cpu_millis=2000, open_files=4096)
    instance = await runtime.launch(make_request(resources=limits))
    process = await hold(instance)
    for prefetched in (True, False, True):
        await give_back(instance)
        if prefetched:
            await instance.prefetch(10.0)
        await instance.resume()
        assert (await collect(await instance.spawn(command("echo at once"))))[0] == b"at once\n"
        await process.write(b"\n")
        assert (await read_until(process, b"\n")) == SUM
    await process.close_stdin()
    await collect(process)
    await instance.terminate()


async def test_next_node_finds_the_swap_file_and_resumes(
    runtime: ContainerRuntime, make_request: MakeRequest, swap: SwapFile
) -> None:
    instance = await runtime.launch(make_request())
    process = await hold(instance)
    await give_back(instance)
    await runtime.close()
    await runtime.open()
    assert SwapFile(swap.path, swap.size_bytes).area() is not None
    # Other nodes of the host may have areas of theirs, of which the kernel takes the oldest first.
    assert sum(area.used_bytes for area in swap_table()) > 60 * MIB
    again = await runtime.adopt(instance.instance_id)
    assert again is not None
    await again.prefetch(10.0)
    await again.resume()
    assert (await collect(await again.spawn(command("echo alive"))))[0] == b"alive\n"
    await process.close()
    await again.terminate()
