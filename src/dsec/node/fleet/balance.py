"""Move sandboxes away when this node is far fuller than its peers, where the settings ask for that.

The judgement is `dsec.scheduling.balancing`; here it is fed every `balance_look_s` seconds and obeyed. Only what is
idle moves: a container's processes do not travel, and what a command has done so far is not ours to throw away for the
load of a node. How fast migrations copy is learnt from those that were made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import anyio
import msgspec
import structlog

from dsec.base.errors import DsecError
from dsec.model.event import EventKind
from dsec.model.sandbox import SandboxFilter, SandboxState
from dsec.model.state import MigrationReport, MigrationRequest
from dsec.node.core import Core
from dsec.node.fleet.moving import Migrate
from dsec.node.fleet.targets import ask, others
from dsec.node.sandbox import Sandbox
from dsec.node.view import view_of
from dsec.placement.load import load_of
from dsec.scheduling.balancing import BalancePolicy, Balancer, Movable, Move

_log = structlog.get_logger(__name__)
REASON = "load"
_LEARN = 0.3
"""How much the last migration counts in what is known of their speed."""
_LEAST_BYTES = 1 << 20
"""Smaller migrations tell nothing of the copying rate."""


@dataclass(slots=True)
class _Known:
    """What was seen of a sandbox: since when it is here, and what it had written at the last look that asked."""

    since_s: float
    seen_s: float | None = None
    written_bytes: int = 0
    writing_bytes_per_s: float = 0.0


class Balance:
    """The shell around one node's `Balancer`.

    Args:
        core: the node's inner state.
        migrate: moves one sandbox.
        policy: when, and how much.
    """

    def __init__(self, core: Core, migrate: Migrate, policy: BalancePolicy = BalancePolicy()) -> None:
        self._core = core
        self._migrate = migrate
        self._balancer = Balancer(policy)
        self._known: dict[str, _Known] = {}
        self._looked = False

    async def run(self) -> None:
        """Look for ever; return at once where the settings do not ask for it, there are no peers, or layers cannot
        travel."""
        every_s = self._core.settings.balance_look_s
        if not every_s or not others(self._core) or not self._core.parts.layers.encoding:
            return
        while True:
            await anyio.sleep(every_s)
            await self.look()

    async def look(self) -> None:
        """Look once, and move what that leads to."""
        core = self._core
        self._notice()
        if core.admission.draining:
            return
        here = view_of(core)
        if load_of(here.used, here.capacity) < self._balancer.policy.least_load:
            movable: list[Movable] = []  # No reason to ask anybody anything.
        else:
            movable = await self._movable()
        seen = await ask(core, others(core))
        views = [each.view for each in seen if each.view is not None]
        found = self._balancer.look(core.now_boot_s(), here, views, movable)
        if found.moves:
            core.recorder.add(EventKind.WARNED, text=f"{found.reason}: {len(found.moves)} sandboxes move away")
        for move in found.moves:
            await self._move(move)

    async def _move(self, move: Move) -> None:
        sandbox = self._core.registry.get(move.sandbox_id)
        if sandbox is None or not _is_idle(sandbox):
            return  # Somebody uses it since.
        try:
            report = await self._migrate(move.sandbox_id, MigrationRequest(node=move.node, reason=REASON))
        except DsecError as error:
            _log.warning("not_moved", sandbox_id=move.sandbox_id, node=move.node, error=str(error))
            return
        self._learn(report)

    def _learn(self, report: MigrationReport) -> None:
        copied, policy = sum(report.copied_bytes), self._balancer.policy
        if copied < _LEAST_BYTES or report.duration_s <= 0:
            return
        rate = (1 - _LEARN) * policy.copying_bytes_per_s + _LEARN * copied / report.duration_s
        self._balancer.policy = msgspec.structs.replace(policy, copying_bytes_per_s=rate)

    def _notice(self) -> None:
        """Notice who came and who left. Who was here before the first look has been here for long."""
        since_s = self._core.now_boot_s() if self._looked else -math.inf
        self._looked = True
        ids = [sandbox.sandbox_id for sandbox in self._core.registry]
        self._known = {each: self._known.get(each) or _Known(since_s) for each in ids}

    async def _movable(self) -> list[Movable]:
        found = []
        for sandbox in self._core.registry.select(SandboxFilter(states=(SandboxState.READY,))):
            known = self._known.get(sandbox.sandbox_id)
            try:
                usage = await sandbox.running().instance.statistics()
            except DsecError:
                continue  # It ended since it was listed.
            if known is None:
                continue  # It came since.
            self._measure(sandbox, known)
            found.append(
                Movable(
                    sandbox_id=sandbox.sandbox_id,
                    memory_bytes=usage.memory_bytes or 0,
                    written_bytes=known.written_bytes,
                    writing_bytes_per_s=known.writing_bytes_per_s,
                    lost_s=0.0 if _is_idle(sandbox) else math.inf,
                    here_s=self._core.now_boot_s() - known.since_s,
                )
            )
        return found

    def _measure(self, sandbox: Sandbox, known: _Known) -> None:
        now_s = self._core.now_boot_s()
        written = self._core.parts.layers.used_bytes(sandbox.record.layer)
        if known.seen_s is not None and now_s > known.seen_s:
            known.writing_bytes_per_s = max(0, written - known.written_bytes) / (now_s - known.seen_s)
        known.seen_s, known.written_bytes = now_s, written


def _is_idle(sandbox: Sandbox) -> bool:
    """Whether nothing runs in a sandbox that its owner asked for."""
    runs = any(not process.ended for process in sandbox.processes.values())
    return not (sandbox.active or sandbox.sessions or runs)
