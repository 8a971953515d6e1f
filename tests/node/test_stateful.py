"""Random operations with random kills of the node: what was acknowledged holds, and nothing leaks.

The model is small: which sandboxes were acknowledged, the file that each holds, and whether it may have been lost in an
operation that the kill interrupted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dsec.base.errors import DsecError
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxFilter, SandboxSpec, SandboxState
from dsec.node.node import Node
from dsec.testing.faults import Faults, Killed, check_no_leak
from dsec.testing.memory_node import MemoryHost

NAMES = st.sampled_from(["sbx-a", "sbx-b", "sbx-c"])
EVERY = SandboxFilter(states=tuple(SandboxState))
Operation = Callable[[Node], Awaitable[object]]


class Machine(RuleBasedStateMachine):
    """One host, one node after another."""

    def __init__(self) -> None:
        super().__init__()
        self.host = MemoryHost()
        self.files: dict[str, bytes | None] = {}
        self.stopped: set[str] = set()
        self.unsure: set[str] = set()
        self.file_unsure = False
        self._portal_manager = start_blocking_portal()
        self._portal = self._portal_manager.__enter__()
        self.task: Any = None

    def teardown(self) -> None:
        if self.task is not None:
            self.do(self._end_all)
            self._requests_close()
        self._portal_manager.__exit__(None, None, None)

    # -- a node runs in one task of the portal's loop and takes operations one by one -------------------------------

    @initialize()
    def begin(self) -> None:
        self.faults = Faults()
        self._start()

    def _start(self) -> None:
        self.send, receive = anyio.create_memory_object_stream[tuple[Operation, list[object], anyio.Event]](1)
        ready = self._portal.call(anyio.Event)

        async def serve() -> None:
            try:
                async with Node.open(self.faults.parts(self.host)) as node:
                    ready.set()
                    async with receive:
                        async for operation, outcome, done in receive:
                            try:
                                outcome.append(await operation(node))
                            except DsecError as error:
                                outcome.append(error)
                            finally:
                                done.set()
            except* Killed:
                pass

        self.task = self._portal.start_task_soon(serve)
        self._portal.call(ready.wait)

    def _requests_close(self) -> None:
        self._portal.call(self.send.aclose)
        self.task.result(timeout=30)

    def do(self, operation: Operation) -> object:
        """Run an operation; returns its result, its `DsecError`, or `Killed`."""

        async def request() -> object:
            outcome: list[object] = []
            done = anyio.Event()
            await self.send.send((operation, outcome, done))
            with anyio.fail_after(60):
                await done.wait()
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
            return outcome[0] if outcome and not self.faults.dead else Killed

        result = self._portal.call(request)
        if result is Killed:
            self.task.result(timeout=30)
            self._portal.call(self.send.aclose)
            self.faults = Faults()
            self._start()
            self._learn()
        self.faults.kill_at = self.faults.fail_at = 0
        return result

    def _learn(self) -> None:
        """After a kill, take from the node what the interrupted operation may have changed, and only that."""

        async def look(node: Node) -> dict[str, SandboxState]:
            return {info.sandbox_id: info.state for info in await node.list(EVERY)}

        states = self.do(look)
        assert isinstance(states, dict)
        for name in self.unsure:
            kept = self.files.pop(name, None)
            self.stopped.discard(name)
            if name in states and states[name] in (SandboxState.STOPPED, SandboxState.FAILED):
                self.stopped.add(name)
            elif name in states:
                self.files[name] = None if self.file_unsure else kept

    async def _end_all(self, node: Node) -> None:
        for info in await node.list(EVERY):
            await node.remove(info.sandbox_id)
        await check_no_leak(self.host, node)
        assert await self.host.runtime.instances() == frozenset()

    def _attempt(self, name: str, operation: Operation, *, changes_file: bool = False) -> object:
        self.unsure, self.file_unsure = {name}, changes_file
        result = self.do(operation)
        self.unsure = set()
        return result

    # -- faults -----------------------------------------------------------------------------------------------------

    @rule(step=st.integers(1, 12))
    def kill_soon(self, step: int) -> None:
        self.faults.steps, self.faults.kill_at = 0, step

    @rule()
    def kill_while_idle(self) -> None:
        async def die(node: Node) -> None:
            self.faults.dead = True
            raise Killed

        self.faults.kill_at = 0
        assert self.do(die) is Killed

    # -- operations -------------------------------------------------------------------------------------------------

    @rule(name=NAMES)
    def create(self, name: str) -> None:
        result = self._attempt(name, lambda node: node.create(SandboxSpec(), sandbox_id=name))
        if result is Killed:
            return
        if name in self.stopped:
            assert isinstance(result, DsecError)
            return
        assert not isinstance(result, DsecError), result
        self.files.setdefault(name, None)

    @rule(name=NAMES, data=st.binary(min_size=1, max_size=8))
    def write(self, name: str, data: bytes) -> None:
        result = self._attempt(name, lambda node: node.write_file(name, "f", data), changes_file=True)
        if result is not Killed:
            assert isinstance(result, DsecError) is (name not in self.files)
            if name in self.files:
                self.files[name] = data

    @rule(name=NAMES)
    def run(self, name: str) -> None:
        result = self._attempt(name, lambda node: node.run(name, CommandRequest(argv=("true",))))
        if result is not Killed:
            assert isinstance(result, DsecError) is (name not in self.files)

    @rule(name=NAMES)
    def start_process(self, name: str) -> None:
        request = CommandRequest(argv=("sleep", "600"), timeout_s=None)
        self._attempt(name, lambda node: node.start_process(name, request))

    @rule(name=NAMES)
    def pause(self, name: str) -> None:
        self._attempt(name, lambda node: node.pause(name))

    @rule(name=NAMES)
    def rollback(self, name: str) -> None:
        result = self._attempt(name, lambda node: node.rollback(name), changes_file=True)
        if result is not Killed and name in self.files:
            assert not isinstance(result, DsecError), result
            self.files[name] = None

    @rule(name=NAMES)
    def stop(self, name: str) -> None:
        result = self._attempt(name, lambda node: node.stop(name))
        if result is not Killed and name in self.files:
            assert not isinstance(result, DsecError), result
            del self.files[name]
            self.stopped.add(name)

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        result = self._attempt(name, lambda node: node.remove(name))
        if result is not Killed:
            self.files.pop(name, None)
            self.stopped.discard(name)

    @rule(name=NAMES)
    def init_dies(self, name: str) -> None:
        """The guest's init is killed from inside: the sandbox fails, and can still be removed."""
        if name not in self.files:
            return

        async def die(node: Node) -> None:
            generation = node._core.registry.find(name).generation
            assert generation is not None
            await self.host.runtime.instance(generation.instance.instance_id).end_init("killed")
            for _ in range(30):
                await anyio.lowlevel.checkpoint()

        result = self._attempt(name, die)
        if result is not Killed:
            del self.files[name]
            self.stopped.add(name)

    # -- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def the_host_holds_what_was_acknowledged_and_nothing_else(self) -> None:
        if self.task is None or self.faults.kill_at:
            return

        async def check(node: Node) -> None:
            await check_no_leak(self.host, node)
            states = {info.sandbox_id: info.state for info in await node.list(EVERY)}
            live = {name for name, state in states.items() if state in (SandboxState.READY, SandboxState.PAUSED)}
            assert live == set(self.files)
            assert set(states) - live == self.stopped
            for name, data in self.files.items():
                await self._check_file(node, name, data)

        self.do(check)

    async def _check_file(self, node: Node, name: str, data: bytes | None) -> None:
        generation = node._core.registry.find(name).generation
        assert generation is not None
        tree = self.host.runtime.instance(generation.instance.instance_id).tree
        if data is not None:
            assert tree.entries["/home/user/f"].content == data


TestNodeUnderKills = pytest.mark.slow(Machine.TestCase)
TestNodeUnderKills.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
