"""The conformance suite over an ordinary user's runtime; `test_runtime` runs this file in the user's namespace."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from dsec.base.errors import CapabilityMissingError
from dsec.model.sandbox import QosClass, Resources
from dsec.runtimes.container.ordinary import OrdinaryUser
from dsec.runtimes.container.runtime import ContainerRuntime, ContainerRuntimeSettings
from dsec.runtimes.port import Instance, LaunchRequest, Runtime
from dsec.testing.host_state import HostState, assert_no_leaks
from dsec.testing.isolation_suite import IsolationSuite
from dsec.testing.runtime_suite import Commands, MakeRequest, RuntimeSuite

pytestmark = pytest.mark.anyio

_NUMBERS = itertools.count()
GROUP = os.environ.get("DSEC_TEST_GROUP")
"""The control group that is delegated to the user, if any."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def make_request(tmp_path: Path) -> MakeRequest:
    image = Path(os.environ["DSEC_TEST_IMAGE"])

    def make(**options: Any) -> LaunchRequest:
        number = next(_NUMBERS)
        layer = tmp_path / f"layer-{number}"
        (layer / "upper").mkdir(parents=True)
        (layer / "work").mkdir(mode=0o700)
        fields: dict[str, Any] = {
            "instance_id": f"sbx-{os.getpid()}x{number}-g0",
            "layer_paths": [image],
            "upper": layer / "upper",
            "work": layer / "work",
            "resources": Resources(open_files=4096),
            "qos": QosClass.LATENCY_SENSITIVE,
            "hostname": f"host-{number}",
            "first_host_id": 1 << 20,
            **options,
        }
        wanted: Resources = fields["resources"]
        # Suites that test something else ask for limits that nobody enforces here.
        fields["resources"] = Resources(open_files=wanted.open_files)
        return LaunchRequest(**fields)

    return make


class TestOrdinaryUser(RuntimeSuite, IsolationSuite):
    @pytest.fixture
    async def runtime(self) -> AsyncIterator[Runtime]:
        node_id = f"t{os.getpid()}x{next(_NUMBERS)}"
        run_directory = Path(os.environ["HOME"]) / "r" / node_id
        settings = ContainerRuntimeSettings(
            node_id=node_id, run_directory=run_directory, ordinary_user=OrdinaryUser(group=GROUP)
        )
        runtime = ContainerRuntime(settings)
        await runtime.open()
        before = HostState.read(node_id, run_directory)
        yield runtime
        try:
            assert await runtime.instances() == frozenset()
            await runtime.close()
            # A wait that was cancelled closes its descriptor in a thread of its own, a moment later.
            ends_at = anyio.current_time() + 60
            after = HostState.read(node_id, run_directory)
            while dict(after.descriptors).get("anon_inode", 0) > dict(before.descriptors).get("anon_inode", 0):
                if anyio.current_time() > ends_at:
                    break
                await anyio.sleep(0.02)
                after = HostState.read(node_id, run_directory)
            assert_no_leaks(before, after)
        finally:
            await runtime.open()
            for instance_id in await runtime.instances():
                await runtime.discard(instance_id)
            await runtime.close()
            shutil.rmtree(run_directory)

    async def test_best_effort_instance_runs(
        self, runtime: Runtime, make_request: MakeRequest, commands: Commands
    ) -> None:
        with pytest.raises(CapabilityMissingError, match="cpu_limit"):
            await runtime.launch(make_request(qos=QosClass.BEST_EFFORT))

    async def test_limits_are_refused(self, runtime: Runtime, make_request: MakeRequest) -> None:
        for limits in (Resources(memory_bytes=1 << 30), Resources(pids=10), Resources(cpu_millis=100)):
            request = make_request()
            object.__setattr__(request, "resources", limits)
            with pytest.raises(CapabilityMissingError):
                await runtime.launch(request)

    if GROUP is None:

        async def test_paused_instance_stands_still_until_it_is_resumed(
            self, instance: Instance, commands: Commands
        ) -> None:
            with pytest.raises(CapabilityMissingError):
                await instance.pause()
            await instance.resume()

        async def test_paused_instance_can_be_terminated(
            self, runtime: Runtime, make_request: MakeRequest, commands: Commands
        ) -> None:
            """Nothing can be paused."""
