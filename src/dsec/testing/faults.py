"""Faults for the node's tests: every call to a mechanism is a step at which it can fail, or the node can be killed.

A *failure* makes one call raise `RuntimeFailedError` without an effect. A *kill* makes that call and every later one
raise `Killed`: before the effect or after it, as `kill -9` can come at any instruction. No clean-up of a killed node
reaches the host, which is what makes it a kill.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from dsec.base.errors import RuntimeFailedError
from dsec.model.sandbox import SandboxState
from dsec.node.node import Node
from dsec.node.parts import NodeParts
from dsec.node.sandbox import instance_of
from dsec.testing.memory_node import MemoryHost

_STEPS = frozenset(
    {
        "launch", "adopt", "discard", "spawn", "terminate", "pause", "resume", "kill_processes", "end_orphans",
        "reattach",
        "create", "branch", "checkpoint", "settle",
        "put_sandbox", "delete_sandbox", "put_process", "delete_processes",
        "exchange", "put_pool", "delete_pool", "set_host_name", "fingerprint", "limit",
        "kill", "release_memory", "prefetch", "claim",
    }
)  # fmt: skip
_READS = frozenset(
    {
        "capabilities", "get", "get_range", "head", "list", "load", "names", "instances", "used_bytes", "statistics",
        "read", "read_control", "wait", "wait_exited", "alive", "open", "aclose", "close", "mount", "release",
        "free_disk_bytes", "free_memory_bytes", "stalls", "fill", "swappable_bytes", "report",
    }
)  # fmt: skip
"""Calls without an effect. A kill counts every call but these, so that none of a port's later methods is forgotten."""
_PORTS = ("runtime", "layers", "images", "journal", "store", "exports", "swap")
_WRAPPED_RESULTS = frozenset({"launch", "adopt", "spawn", "reattach"})
_CLOSING = frozenset({"close"})


class Killed(BaseException):
    """The node is dead; nothing of it reaches the host any more."""


class Faults:
    """Counts steps, and strikes at one of them.

    Args:
        fail_at: step whose call raises an error.
        kill_at: step at which the node dies; each call has two, before its effect and after it.
    """

    def __init__(self, *, fail_at: int = 0, kill_at: int = 0) -> None:
        self.fail_at, self.kill_at = fail_at, kill_at
        self.steps = 0
        self.dead = False
        self.struck = ""
        self.armed = True

    def before(self, name: str) -> None:
        self._check_dead()
        if not self.armed or not self._is_step(name):
            return
        self._count(f"before {name}")
        if self.steps == self.fail_at:
            self.struck = name
            raise RuntimeFailedError(f"{name} was made to fail")

    def after(self, name: str) -> None:
        if self.armed and self.kill_at and self._is_step(name):
            self._count(f"after {name}")

    def _is_step(self, name: str) -> bool:
        """A kill may come at any effect; a failure is of those calls after which the tests know what to expect."""
        return name not in _READS if self.kill_at else name in _STEPS

    def _count(self, name: str) -> None:
        self.steps += 1
        if self.steps == self.kill_at:
            self.struck = name
            self._strike()
        self._check_dead()

    def _strike(self) -> None:
        self.dead = True

    def _check_dead(self) -> None:
        if self.dead:
            raise Killed

    def parts(self, host: MemoryHost) -> NodeParts:
        return wrapped_parts(host.parts(), self)


def wrapped_parts(parts: NodeParts, faults: Faults) -> NodeParts:
    """Let every mechanism of a node count its calls."""
    wrapped: dict[str, Any] = {
        name: Faulty(part, faults) for name in _PORTS if (part := getattr(parts, name)) is not None
    }
    return replace(parts, **wrapped)


class Faulty:
    """A mechanism, or what it returned, with faults at its calls."""

    def __init__(self, target: Any, faults: Faults) -> None:
        self._target, self._faults = target, faults

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return value
        return self._async(name, value) if inspect.iscoroutinefunction(value) else self._sync(name, value)

    def _sync(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if name in _CLOSING and self._faults.dead:
                return None
            self._faults.before(name)
            result = call(*args, **kwargs)
            self._faults.after(name)
            return result

        return wrapper

    def _async(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            if name in _CLOSING and self._faults.dead:
                return None
            self._faults.before(name)
            result = await call(*args, **kwargs)
            self._faults.after(name)
            return Faulty(result, self._faults) if name in _WRAPPED_RESULTS and result is not None else result

        return wrapper


async def killed(host: MemoryHost, faults: Faults, action: Callable[[Node], Awaitable[object]]) -> bool:
    """Run `action` on a node of `host` until the fault kills it; return whether it did."""
    try:
        async with Node.open(faults.parts(host)) as node:
            await action(node)
            faults.armed = False
    except Killed:
        return True
    except BaseExceptionGroup as several:
        # A task group of the node's wraps its deaths.
        if several.split(Killed)[1] is not None:
            raise
        return True
    assert not faults.dead, "the node swallowed its own death"
    return False


_HELD = frozenset({SandboxState.READY, SandboxState.PAUSED})


async def check_no_leak(host: MemoryHost, node: Node) -> None:
    """Assert that the host holds exactly what the node's live sandboxes and what stands ready in its pools need."""
    core = node._core
    everything = [*core.registry, *core.vacant.values()]
    held = [sandbox for sandbox in everything if sandbox.generation is not None]
    assert {sandbox.state for sandbox in held} <= _HELD
    names = {instance_of(sandbox.record) for sandbox in held}
    assert await host.runtime.instances() == names
    saved = {record.checkpoint_id: record for sandbox in held for record in sandbox.checkpoints.values()}
    frozen = {record.layer for record in saved.values()} | {sandbox.record.origin for sandbox in held} - {""}
    assert host.layers.names() == names | frozen
    assert host.exports.names() <= frozen
    assert core.saved.claimed() == frozen
    slots = [sandbox.record.slot for sandbox in held]
    assert len(set(slots)) == len(slots)
    assert core.slots.taken == frozenset(slots)
    assert host.runtime.used_host_ids == {
        instance_of(sandbox.record): core.slots.first_host_id(sandbox.record.slot) for sandbox in held
    }
    assert {record.checkpoint_id: record for record in host.journal.load().checkpoints} == saved
    recorded = {record.sandbox_id: record for record in host.journal.load().sandboxes}
    assert recorded == {sandbox.sandbox_id: sandbox.record for sandbox in everything}
