"""The in-memory fake conforms."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dsec.model.sandbox import QosClass, Resources
from dsec.runtimes.memory import MemoryRuntime
from dsec.runtimes.port import LaunchRequest, Runtime
from dsec.testing.runtime_suite import MakeRequest, RuntimeSuite

pytestmark = pytest.mark.anyio


class TestMemoryRuntime(RuntimeSuite):
    no_real_shell = "the fake has a very small shell and no kernel"

    @pytest.fixture
    async def runtime(self) -> AsyncIterator[Runtime]:
        runtime = MemoryRuntime()
        await runtime.open()
        yield runtime
        await runtime.close()

    @pytest.fixture
    def make_request(self) -> MakeRequest:
        numbers = itertools.count()

        def make(**options: Any) -> LaunchRequest:
            number = next(numbers)
            fields: dict[str, Any] = {
                "instance_id": f"sbx-{number}-g0",
                "layer_paths": [Path("/layer")],
                "upper": Path(f"/{number}/upper"),
                "work": Path(f"/{number}/work"),
                "resources": Resources(),
                "qos": QosClass.LATENCY_SENSITIVE,
                "hostname": "host",
                "first_host_id": 0x10_0000 * number,
                **options,
            }
            return LaunchRequest(**fields)

        return make
