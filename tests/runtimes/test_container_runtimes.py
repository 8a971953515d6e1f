"""Every OCI runtime of this host conforms, and leaves nothing behind."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from dsec.runtimes.container.runtime import ContainerRuntime, ContainerRuntimeSettings
from dsec.runtimes.port import Runtime
from dsec.testing.host_state import HostState, assert_no_leaks
from dsec.testing.isolation_suite import IsolationSuite
from dsec.testing.runtime_suite import PATIENCE_S, RuntimeSuite

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]


async def opened(name: str, node_id: str) -> AsyncIterator[Runtime]:
    """Open a runtime, and compare what is left on the host when the test is over."""
    runtime = ContainerRuntime(ContainerRuntimeSettings(node_id=node_id, runtime=name))
    await runtime.open()
    run_directory = Path("/run/dsec") / node_id
    before = HostState.read(node_id, run_directory)
    yield runtime
    try:
        assert await runtime.instances() == frozenset()
        await runtime.close()
        assert_no_leaks(before, HostState.read(node_id, run_directory))
    finally:
        # Bounded, whatever became of the test.
        with anyio.fail_after(PATIENCE_S, shield=True):
            await runtime.open()
            for instance_id in await runtime.instances():
                await runtime.discard(instance_id)
            await runtime.close()


def needs(program: str) -> pytest.MarkDecorator:
    where = shutil.which(program, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    return pytest.mark.skipif(where is None, reason=f"this host has no {program}")


@needs("crun")
class TestCrun(RuntimeSuite, IsolationSuite):
    @pytest.fixture
    async def runtime(self, node_id: str) -> AsyncIterator[Runtime]:
        async for runtime in opened("crun", node_id):
            yield runtime


@needs("runc")
class TestRunc(RuntimeSuite, IsolationSuite):
    waits_for_children = "runc exec copies the streams itself and ends when nobody holds them"
    fails_when_full = "runc exec needs threads of its own: it hangs, or ends as if the command had ended with 2"

    @pytest.fixture
    async def runtime(self, node_id: str) -> AsyncIterator[Runtime]:
        async for runtime in opened("runc", node_id):
            yield runtime


@needs("runsc")
class TestRunsc(RuntimeSuite):
    @pytest.fixture
    async def runtime(self, node_id: str) -> AsyncIterator[Runtime]:
        async for runtime in opened("runsc", node_id):
            yield runtime
