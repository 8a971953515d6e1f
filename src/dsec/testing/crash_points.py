"""Enumerate the steps of an operation, kill the node at each one, start the next, and compare with what may be.

The in-memory host plays the kernel: its state survives the node. A *case* is an operation with the scene before it.
What an onlooker could see is taken before and after an uninterrupted run; after a kill it must be one of both, and
nothing in between. Then either the same request is made again and must lead to what was asked, or everything is
removed, and the host must hold nothing. The node that cleans up is killed on its way, too, once for each point.

Source of the idea: exhaustive crash-point enumeration as in "All File Systems Are Not Created Equal" (Pillai et al.,
OSDI 2014), here over calls of ports instead of blocks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from anyio.lowlevel import checkpoint

from dsec.model.process import ProcessState
from dsec.model.sandbox import SandboxFilter, SandboxState
from dsec.node.node import Node
from dsec.testing.faults import Faults, check_no_leak, killed
from dsec.testing.memory_node import MemoryHost

MOST_STEPS = 1000
_BACKGROUND_STEPS = 40
_EVERY = SandboxFilter(states=tuple(SandboxState))
Action = Callable[[Node], Awaitable[object]]
View = Mapping[str, object]
"""What an onlooker sees, by sandbox: state, generation, files and tree of checkpoints, without ids made by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operation whose every step is a crash point.

    Attributes:
        name: for the test's id.
        host: makes the host.
        prepare: makes the scene.
        act: the operation; made again after the kill, it must succeed.
        between: further outcomes that an interruption may leave, each made by running it on the scene.
        repeats: whether the operation, made again after it was done, changes nothing.
        probe: has to succeed after each death.
    """

    name: str
    host: Callable[[], MemoryHost] = MemoryHost
    prepare: Action
    act: Action
    between: tuple[Action, ...] = ()
    repeats: bool = True
    probe: Action | None = None


async def settle() -> None:
    """Let what goes in the background finish."""
    for _ in range(_BACKGROUND_STEPS):
        await checkpoint()


async def seen(host: MemoryHost, node: Node) -> View:
    """Look at every sandbox, and at what outlives them."""
    view: dict[str, object] = {}
    for info in await node.list(_EVERY):
        sandbox = node._core.registry.find(info.sandbox_id)
        records = sandbox.checkpoints
        names = {key: record.name for key, record in records.items()}
        tree = {(each.name, names.get(each.parent or "")) for each in records.values()}
        current = names.get(sandbox.record.current or "")
        # Of a process that was not acknowledged it may not be known whether it ran; of others it is.
        known = (each for each in await node.list_processes(info.sandbox_id) if each.state is not ProcessState.UNKNOWN)
        processes = sorted((each.argv, each.state.value) for each in known)
        # Which of two requests ended it is no difference.
        why = "" if sandbox.generation is None else info.cause
        what_it_is = (info.state, info.generation, why, processes)
        view[info.sandbox_id] = (*what_it_is, _files(host, sandbox.record.layer), tree, current)
        if sandbox.generation is not None:
            instance = host.runtime.instance(sandbox.generation.instance.instance_id)
            assert instance.paused == (info.state is SandboxState.PAUSED), (
                "what stands still is paused, and nothing else"
            )
    view["images"] = {image.name for image in host.images.list()}
    view["snapshots"] = {info.name for info in await node.state.list_snapshots()}
    return view


def _files(host: MemoryHost, layer: str) -> dict[str, object]:
    found = host.layers.get(layer)
    entries = host.runtime.contents[found.upper] if found is not None else {}
    return {path: (entry.kind, entry.mode, entry.content, entry.target) for path, entry in entries.items()}


async def _outcome(case: Case, act: Action | None) -> View:
    """What is seen when the operation is not interrupted."""
    host = case.host()
    async with host.node() as node:
        await case.prepare(node)
        if act is not None:
            await act(node)
        await settle()
        await check_no_leak(host, node)
        return await seen(host, node)


async def check_every_step(case: Case) -> int:
    """Kill the node at every step of the case; return how many there are. Raises `AssertionError` at the first that
    is survived by something in between, by a leak, or by something with no way out."""
    asked = await _outcome(case, case.act)
    allowed = [await _outcome(case, None), asked, *[await _outcome(case, each) for each in case.between]]
    for step in range(1, MOST_STEPS):
        for again in (True, False):
            faults = Faults(kill_at=step)
            try:
                was_killed = await _survive(case, faults, allowed, asked, again=again)
            except BaseException as error:
                error.add_note(f"{case.name}: killed at step {step} ({faults.struck}); asked again: {again}")
                raise
        if not was_killed:
            return step - 1
    raise AssertionError(f"{case.name} has no end")


async def _survive(case: Case, faults: Faults, allowed: list[View], asked: View, *, again: bool) -> bool:
    host = case.host()
    faults.armed = False

    async def scene(node: Node) -> None:
        await case.prepare(node)
        await settle()
        faults.armed = True
        await case.act(node)
        await settle()

    was_killed = await killed(host, faults, scene)
    # The next node dies while it cleans up, each time a bit later; the third one has to finish.
    await killed(host, Faults(kill_at=faults.kill_at), _nothing)
    async with host.node() as node:
        await settle()
        await check_no_leak(host, node)
        view = await seen(host, node)
        assert view in allowed, f"neither as before nor as asked: {view}"
        if again and (view != asked or case.repeats):
            await case.act(node)
            await settle()
            await check_no_leak(host, node)
            assert await seen(host, node) == asked
        if case.probe is not None:
            await case.probe(node)
        await remove_everything(host, node)
    return was_killed


async def remove_everything(host: MemoryHost, node: Node) -> None:
    """Every state has a way out; nothing is left on the host."""
    for pool in await node.pools.list_pools():
        await node.pools.remove_pool(pool.pool_id)
    for info in await node.list(_EVERY):
        await node.remove(info.sandbox_id)
    await settle()
    await check_no_leak(host, node)
    assert not host.layers.names()
    assert not await host.runtime.instances()


async def _nothing(node: Node) -> None:
    return None
