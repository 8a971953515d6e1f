"""Every OCI runtime of this host conforms, and leaves nothing behind."""

from __future__ import annotations

import shutil
import signal
from collections.abc import AsyncIterator
from typing import ClassVar

import pytest

from dsec.base.errors import CapabilityMissingError
from dsec.runtimes.container.runtime import RUN_DIRECTORY
from dsec.runtimes.port import Instance, Runtime
from dsec.testing.isolation_suite import IsolationSuite
from dsec.testing.opened_runtime import opened_runtime
from dsec.testing.runtime_suite import Commands, RuntimeSuite

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]


NO_SIGNALS = "the command is a process of gVisor's kernel, and runsc exec passes no signal on"


def needs(program: str) -> pytest.MarkDecorator:
    where = shutil.which(program, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    return pytest.mark.skipif(where is None, reason=f"this host has no {program}")


@needs("crun")
class TestCrun(RuntimeSuite, IsolationSuite):
    @pytest.fixture
    async def runtime(self, node_id: str) -> AsyncIterator[Runtime]:
        async with opened_runtime("crun", node_id) as runtime:
            yield runtime

    async def test_what_a_background_command_was_told_is_no_other_users_of_the_host(
        self, instance: Instance, commands: Commands, node_id: str
    ) -> None:
        """The documents of commands hold their environment, and everybody may pass through the run directory."""
        process = await instance.spawn(commands.run("sleep", "1000", durable=True, env={"TOKEN": "secret"}))
        (document,) = (RUN_DIRECTORY / node_id / instance.instance_id).rglob("process.json")
        assert b"secret" in document.read_bytes()
        assert document.parent.stat().st_mode & 0o077 == 0
        await process.kill()
        await process.close()


@needs("runc")
class TestRunc(RuntimeSuite, IsolationSuite):
    waits_for_children = "runc exec copies the streams itself and ends when nobody holds them"

    @pytest.fixture
    async def runtime(self, node_id: str) -> AsyncIterator[Runtime]:
        async with opened_runtime("runc", node_id) as runtime:
            yield runtime


@needs("runsc")
class TestRunsc(RuntimeSuite):
    deviations: ClassVar = {
        "test_control_descriptor_is_apart_from_the_output": "runsc exec hands no further descriptor on",
        "test_signal_reaches_the_command_and_is_reported": NO_SIGNALS,
        "test_signal_can_be_handled_by_the_command": NO_SIGNALS,
        "test_a_signal_reaches_a_command_whose_input_is_held_open": NO_SIGNALS,
        "test_terminal_has_a_size_and_can_be_resized": NO_SIGNALS,
        "test_terminal_echoes_interrupts_and_ends": NO_SIGNALS,
    }

    @pytest.fixture
    async def runtime(self, node_id: str) -> AsyncIterator[Runtime]:
        async with opened_runtime("runsc", node_id) as runtime:
            yield runtime

    async def test_what_it_cannot_do_is_refused(self, instance: Instance, commands: Commands) -> None:
        with pytest.raises(CapabilityMissingError):
            await instance.spawn(commands.run("true", control_fd=True))
        for durable in (False, True):
            process = await instance.spawn(commands.run("sleep", "1000", durable=durable))
            with pytest.raises(CapabilityMissingError):
                await process.signal(signal.SIGTERM)
            await process.kill()
            await process.close()
