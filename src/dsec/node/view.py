"""What this node tells its peers of itself: the report by which placement, draining and balancing compare nodes."""

from __future__ import annotations

from dsec.node.core import Core
from dsec.placement.view import LONGEST_NOTE, Capacity, Health, NodeView, Usage


def view_of(core: Core) -> NodeView:
    """Measure this node. Costs microseconds; nothing is asked of its sandboxes."""
    host, settings = core.parts.host, core.settings
    cpu_millis, memory_bytes = host.capacity()
    kept_bytes = settings.minimum_free_memory_bytes
    refusal = core.admission.refusal(len(core.slots))
    return NodeView(
        node=core.parts.node_id,
        capacity=Capacity(
            cpu_millis=max(1, cpu_millis),
            memory_bytes=max(1, memory_bytes - kept_bytes),
            disk_bytes=max(1, host.free_disk_bytes()),
            sandboxes=settings.maximum_sandboxes,
            creations=max(1, settings.pool_creations_per_core * cpu_millis // 1000),
        ),
        used=Usage(
            cpu_millis=round(host.processor_share() * cpu_millis),
            memory_bytes=max(0, memory_bytes - kept_bytes - host.free_memory_bytes()),
            sandboxes=len(core.slots),
        ),
        # One node asks another now and then: the time since the host's boot orders the answers well enough.
        version=max(1, int(core.now_boot_s() * 1000)),
        health=_health(core, refused=refusal is not None),
        note="" if refusal is None else refusal.brief[:LONGEST_NOTE],
    )


def _health(core: Core, *, refused: bool) -> Health:
    if core.admission.draining:
        return Health.DRAINING
    return Health.CLOSED if refused else Health.ACCEPTING
