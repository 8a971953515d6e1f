"""What a node says of itself."""

from __future__ import annotations

from collections.abc import Iterator

from dsec.base.units import format_size
from dsec.model.sandbox import Resources
from dsec.model.value import Value


class NodeInfo(Value, frozen=True):
    """A node and its host.

    Attributes:
        node: the node's id, which stands in the ids of its sandboxes.
        version: DSec's.
        runtime: what runs its sandboxes.
        cpu_millis: what the host has of processors, in thousandths of one.
        memory_bytes: what the host has of memory.
    """

    node: str
    version: str = ""
    runtime: str = ""
    cpu_millis: int = 0
    memory_bytes: int = 0


def limits_beyond(resources: Resources, node: NodeInfo) -> Iterator[str]:
    """Yield a line for each limit that is above what the host has: as a ceiling it is allowed, and does nothing."""
    asked = (
        ("memory limit", resources.memory_bytes, node.memory_bytes, format_size),
        ("processor limit", resources.cpu_millis, node.cpu_millis, lambda millis: f"{millis / 1000:g} cores"),
    )
    for name, limit, there, shown in asked:
        if limit is not None and 0 < there < limit:
            yield (
                f"the {name} of {shown(limit)} is above the {shown(there)} that the host has:"
                " limits are ceilings, not reservations"
            )
