"""What a node says of itself."""

from __future__ import annotations

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
