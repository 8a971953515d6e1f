"""A container runtime for one test, which shows afterwards that nothing is left of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from dsec.runtimes.container.runtime import RUN_DIRECTORY, ContainerRuntime, ContainerRuntimeSettings
from dsec.testing.host_state import HostState, assert_no_leaks

END_LIMIT_S = 60.0


@asynccontextmanager
async def opened_runtime(name: str, node_id: str) -> AsyncIterator[ContainerRuntime]:
    """Open a runtime, and compare what is left on the host when the test is over.

    Raises:
        AssertionError: at the end, when instances, mounts, groups, processes, files or descriptors are left.
    """
    runtime = ContainerRuntime(ContainerRuntimeSettings(node_id=node_id, runtime=name))
    await runtime.open()
    run_directory = RUN_DIRECTORY / node_id
    before = HostState.read(node_id, run_directory)
    try:
        yield runtime
        assert await runtime.instances() == frozenset()
        await runtime.close()
        assert_no_leaks(before, HostState.read(node_id, run_directory))
    finally:
        # Bounded, whatever became of the test.
        with anyio.fail_after(END_LIMIT_S, shield=True):
            await discard_all(runtime)


async def discard_all(runtime: ContainerRuntime) -> None:
    """Remove every instance of a runtime's node, and close it."""
    await runtime.open()
    for instance_id in await runtime.instances():
        await runtime.discard(instance_id)
    await runtime.close()
