"""Which nodes could hold a sandbox at all, and by how much the nearest misses.

A refusal without a reason sends people to read logs. "No node available" can mean a typing error in a feature's name,
a memory limit that is 2 GiB too high, or a fleet that is draining; each has another remedy. So every refusal counts
for each requirement how many nodes meet it, and names the node that fails fewest of them by the smallest share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsec.base.units import format_size
from dsec.placement.request import Shape
from dsec.placement.view import NodeView


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One requirement that a node does not meet.

    Attributes:
        requirement: in words, as in "nodes have REQUIREMENT".
        lacking: in words, as in "the node lacks LACKING".
        share: how much of the requirement is missing, 0 to 1.
    """

    requirement: str
    lacking: str
    share: float


def capable(shape: Shape, view: NodeView) -> bool:
    """Say whether the node could hold the sandbox if it were empty."""
    capacity = view.capacity
    return (
        shape.needs <= view.features
        and shape.cpu_millis <= capacity.cpu_millis
        and shape.memory_bytes <= capacity.memory_bytes
        and shape.disk_bytes <= capacity.disk_bytes
    )


def shortfalls(shape: Shape, view: NodeView) -> list[Shortfall]:
    """Return every requirement that the node does not meet; empty if it is capable."""
    capacity = view.capacity
    missing = [Shortfall(need, need, 1.0) for need in sorted(shape.needs - view.features)]
    for name, asked, has, words in (
        ("processor", shape.cpu_millis, capacity.cpu_millis, _cores),
        ("memory", shape.memory_bytes, capacity.memory_bytes, format_size),
        ("disk", shape.disk_bytes, capacity.disk_bytes, format_size),
    ):
        if asked > has:
            missing.append(
                Shortfall(f"{words(asked)} of {name}", f"{words(asked - has)} of {name}", (asked - has) / asked)
            )
    return missing


def _cores(cpu_millis: int) -> str:
    return "1 core" if cpu_millis == 1000 else f"{cpu_millis / 1000:g} cores"


def requirements(shape: Shape) -> list[tuple[str, Shape]]:
    """Return each requirement in words, and as a shape that asks for nothing else."""
    nothing = Shape(cpu_millis=0, memory_bytes=0, disk_bytes=0)
    single = [
        (need, Shape(needs=frozenset((need,)), cpu_millis=0, memory_bytes=0, disk_bytes=0)) for need in shape.needs
    ]
    single.sort(key=lambda pair: pair[0])
    if shape.cpu_millis:
        single.append(
            (
                f"{_cores(shape.cpu_millis)} of processor",
                Shape(cpu_millis=shape.cpu_millis, memory_bytes=0, disk_bytes=0),
            )
        )
    if shape.memory_bytes:
        single.append(
            (
                f"{format_size(shape.memory_bytes)} of memory",
                Shape(cpu_millis=0, memory_bytes=shape.memory_bytes, disk_bytes=0),
            )
        )
    if shape.disk_bytes:
        single.append(
            (
                f"{format_size(shape.disk_bytes)} of disk",
                Shape(cpu_millis=0, memory_bytes=0, disk_bytes=shape.disk_bytes),
            )
        )
    return single or [("nothing", nothing)]


def closest_miss(shape: Shape, views: Sequence[NodeView]) -> tuple[str, str]:
    """Explain why none of these nodes could hold the sandbox.

    Returns:
        One line, such as "3 of 1,024 nodes have gpu; the nearest, node-7, lacks 2.0 GiB of memory", and, for each
        requirement, how many nodes meet it.
    """
    met = [(words, sum(capable(only, view) for view in views)) for words, only in requirements(shape)]
    rarest, count = min(met, key=lambda pair: pair[1])
    nearest = min(views, key=lambda view: _distance(shape, view))
    lacking = " and ".join(miss.lacking for miss in shortfalls(shape, nearest))
    some = f"{count:,} of {len(views):,} nodes {'has' if count == 1 else 'have'}" if count else "no node has"
    brief = f"{some} {rarest}; the nearest, {nearest.node}, lacks {lacking}"
    return brief, "; ".join(f"{words}: {count:,} of {len(views):,} nodes" for words, count in met)


def _distance(shape: Shape, view: NodeView) -> tuple[int, float, str]:
    missing = shortfalls(shape, view)
    return len(missing), sum(miss.share for miss in missing), view.node
