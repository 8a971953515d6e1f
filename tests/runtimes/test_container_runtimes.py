"""Every OCI runtime of this host conforms, and leaves nothing behind."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator

import pytest

from dsec.runtimes.port import Runtime
from dsec.testing.isolation_suite import IsolationSuite
from dsec.testing.opened_runtime import opened_runtime
from dsec.testing.runtime_suite import RuntimeSuite

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]


def needs(program: str) -> pytest.MarkDecorator:
    where = shutil.which(program, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    return pytest.mark.skipif(where is None, reason=f"this host has no {program}")


@needs("crun")
class TestCrun(RuntimeSuite, IsolationSuite):
    @pytest.fixture
    async def runtime(self, node_id: str) -> AsyncIterator[Runtime]:
        async with opened_runtime("crun", node_id) as runtime:
            yield runtime


@needs("runc")
class TestRunc(RuntimeSuite, IsolationSuite):
    waits_for_children = "runc exec copies the streams itself and ends when nobody holds them"
    fails_when_full = "runc exec needs threads of its own: it hangs, or ends as if the command had ended with 2"

    @pytest.fixture
    async def runtime(self, node_id: str) -> AsyncIterator[Runtime]:
        async with opened_runtime("runc", node_id) as runtime:
            yield runtime


@needs("runsc")
class TestRunsc(RuntimeSuite):
    @pytest.fixture
    async def runtime(self, node_id: str) -> AsyncIterator[Runtime]:
        async with opened_runtime("runsc", node_id) as runtime:
            yield runtime
