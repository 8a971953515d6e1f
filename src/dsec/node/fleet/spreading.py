"""Spread the children of a fork over this node and its peers.

All children come to be here, or none does: that a fork is whole does not depend on any network. Then they are moved, by
the same migration as any sandbox, to where they are in turn the least trouble: each child goes to the node that is the
emptiest with it, this one included. A child that no peer takes stays here, and the answer tells why; it is whole all
the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import msgspec
import structlog

from dsec.base.errors import DsecError
from dsec.model.sandbox import SandboxInfo
from dsec.node.core import Core
from dsec.node.fleet.moving import Migrate, move
from dsec.node.fleet.targets import Seen, Targets, ask, others
from dsec.node.view import view_of

_log = structlog.get_logger(__name__)
REASON = "spread"
_AT_ONCE = 4


async def spread(core: Core, migrate: Migrate, children: Sequence[SandboxInfo]) -> list[SandboxInfo]:
    """Move children of a fork; return them in their order, as they are where they are now. Those that were moved when
    the fork was asked for before stay where they are."""
    seen = await ask(core, others(core))
    why = _why_none_takes(core, seen)
    found = [
        msgspec.structs.replace(child, stays_because=why) if child.node == core.parts.node_id else child
        for child in children
    ]
    targets, limiter = Targets(seen), anyio.CapacityLimiter(_AT_ONCE)

    async def one(number: int) -> None:
        child = children[number]
        async with limiter:
            try:
                node, info = await move(migrate, targets, child.sandbox_id, child.spec, REASON)
            except DsecError as error:
                _log.info("child_stays", sandbox_id=child.sandbox_id, error=str(error))
                said = ": ".join(filter(None, (error.brief, error.detail)))
                found[number] = msgspec.structs.replace(child, stays_because=said)
                return
            found[number] = msgspec.structs.replace(child, node=node) if info is None else info

    async with anyio.create_task_group() as group:
        for number in _leaving(core, seen, children):
            group.start_soon(one, number)
    return found


def _why_none_takes(core: Core, seen: Sequence[Seen]) -> str:
    """Return why no peer takes a sandbox; empty where one does, and a child that stays is better off here."""
    if not seen:
        return f"the node {core.parts.node_id} has no peers"
    infos = [each.info() for each in seen]
    if any(info.answers and info.takes for info in infos):
        return ""
    reasons = (f"{info.node}: {info.detail or 'it takes no sandboxes'}" for info in infos)
    return f"no peer takes sandboxes: {'; '.join(reasons)}"


def _leaving(core: Core, seen: Sequence[Seen], children: Sequence[SandboxInfo]) -> list[int]:
    """Deal the children out, each to the node that is the emptiest with it; return the numbers of those that leave."""
    own = view_of(core)
    without = msgspec.structs.replace(
        own.used, sandboxes=max(0, own.used.sandboxes - sum(child.node == own.node for child in children))
    )
    dealt = Targets(seen, own=msgspec.structs.replace(own, used=without))
    leaving = []
    for number, child in enumerate(children):
        if child.node != own.node:
            continue
        node = dealt.nodes(child.spec)[0]
        dealt.count(node, child.spec)
        if node != own.node:
            leaving.append(number)
    return leaving
