"""Admission: whether this node takes one more sandbox. Pure; the node's word is final."""

from __future__ import annotations

from dsec.base.errors import HostDiskFullError, HostOutOfMemoryError, NodeUnavailableError
from dsec.base.units import format_size
from dsec.node.settings import NodeSettings


def admit(settings: NodeSettings, *, live: int, free_disk_bytes: int, free_memory_bytes: int) -> None:
    """Raise the reason why not.

    Raises:
        NodeUnavailableError, HostDiskFullError, HostOutOfMemoryError: all may be tried again, best on another node.
    """
    if live >= settings.maximum_sandboxes:
        raise NodeUnavailableError(
            f"the node holds {live} sandboxes, as many as it may",
            resolution="stop sandboxes, use another node, or raise maximum_sandboxes",
        )
    if free_disk_bytes < settings.minimum_free_disk_bytes:
        raise HostDiskFullError(
            f"the host has {format_size(free_disk_bytes)} of disk left",
            detail=f"the node keeps {format_size(settings.minimum_free_disk_bytes)} free",
            resolution="free space on the state directory's file system",
        )
    if free_memory_bytes < settings.minimum_free_memory_bytes:
        raise HostOutOfMemoryError(
            f"the host has {format_size(free_memory_bytes)} of memory left",
            detail=f"the node keeps {format_size(settings.minimum_free_memory_bytes)} free",
            resolution="stop sandboxes or use another node",
        )
