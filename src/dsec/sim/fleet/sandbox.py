"""One simulated sandbox, and the workload it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy

from dsec.placement.request import Shape
from dsec.sim.arrivals import ArrivalPlan
from dsec.sim.distributions import Draw, Streams
from dsec.sim.fleet.node import CLOUD, OWN
from dsec.sim.fleet.scenario import Images, Workload

if TYPE_CHECKING:
    from dsec.placement.creation import Creation
    from dsec.sim.fleet.node import SimNode

_PER_WORKLOAD = 10_000_000
"""Distance of the numbers of two workloads' images in a cache."""


class SimSandbox:
    """One sandbox from its request to its end.

    Attributes:
        sandbox_id, job, task, group: whose it is.
        kind: its workload.
        image: number of its image; None: resident everywhere.
        lifetime_s: how long it lives, from a trace; None: as its workload says.
        memory_bytes: what it uses.
        asked_s: when it was asked for.
        creation: the creation under way; None before and after.
        scheduler: which scheduler has it.
        node: where it stands.
        ended: it stands no more, or was given up.
        trajectories_left, rounds_left: what it still has to do.
    """

    __slots__ = (
        "asked_s", "creation", "ended", "group", "image", "job", "kind", "lifetime_s", "memory_bytes", "node",
        "rounds_left", "sandbox_id", "scheduler", "task", "trajectories_left",
    )  # fmt: skip

    def __init__(
        self,
        sandbox_id: str,
        kind: WorkloadState,
        group: int,
        job: str,
        task: str,
        image: int | None,
        asked_s: float,
    ) -> None:
        self.sandbox_id, self.kind, self.group, self.job, self.task = sandbox_id, kind, group, job, task
        self.image = image
        self.memory_bytes = kind.memory_bytes
        self.lifetime_s: float | None = None
        self.asked_s = asked_s
        self.creation: Creation | None = None
        self.scheduler = -1
        self.node: SimNode | None = None
        self.ended = False
        self.trajectories_left = self.rounds_left = 0


class WorkloadState:
    """A workload with its streams of random numbers."""

    def __init__(self, number: int, workload: Workload, streams: Streams, plan: ArrivalPlan) -> None:
        name = f"workload {number} "
        self.number, self.workload = number, workload
        self.times_s: list[float] = plan.times_s.tolist()
        self.groups: list[int] = plan.groups.tolist()
        self.durations_s: list[float] | None = None if plan.durations_s is None else plan.durations_s.tolist()
        self.closed = workload.arrivals.kind == "closed"
        self.memory_bytes = round(workload.memory_bytes * workload.memory_share)
        self.cores = workload.cpu_millis * workload.cpu_share / 1000
        # Looked up for every sandbox: one step instead of two.
        self.best_effort, self.snapshot_bytes = workload.best_effort, workload.snapshot_bytes
        self.lifetime_s = streams.draws(name + "lifetime", workload.lifetime_s)
        self.rounds = streams.draws(name + "rounds", workload.rounds)
        self.model_call_s = streams.draws(name + "model", workload.model_call_s)
        self.tool_s = streams.draws(name + "tool", workload.tool_s)
        self.trajectories = streams.draws(name + "trajectories", workload.trajectories)
        each = workload.trajectories
        self.trajectories_each = max(1, round(each.mean)) if each.kind == "constant" else 0  # 0: drawn for each.
        self.has_rounds = workload.rounds.expected() > 0
        self.images = None if workload.images is None else ImageChoice(number, workload.images, streams)
        shape = Shape(cpu_millis=workload.cpu_millis, memory_bytes=workload.memory_bytes, disk_bytes=0)
        self._named, self._names = -1, ("", "")
        self.anywhere = shape
        self.own = _needing(shape, OWN)
        self.cloud = _needing(shape, CLOUD)

    def names_of(self, group: int) -> tuple[str, str]:
        """Return the ids of a group's job and of its only task. Arrivals of a group mostly follow each other."""
        if group != self._named:
            self._named, self._names = group, (f"j{self.number}.{group}", f"t{self.number}.{group}")
        return self._names


def _needing(shape: Shape, feature: str) -> Shape:
    return Shape(
        needs=frozenset((feature,)),
        cpu_millis=shape.cpu_millis,
        memory_bytes=shape.memory_bytes,
        disk_bytes=shape.disk_bytes,
    )


class ImageChoice:
    """Which image the next sandbox has: the last one's, as long as its fanout and its group last."""

    def __init__(self, number: int, images: Images, streams: Streams) -> None:
        name = f"workload {number} "
        self._images = images
        self._first = number * _PER_WORKLOAD
        self.peers = images.peers
        generator = streams.generator(name + "image sizes")
        self.sizes_bytes: list[float] = images.size_bytes.sample(generator, images.count).tolist()
        self._fanout: Draw = streams.draws(name + "fanout", images.fanout)
        self._choose = _popularity(images, streams.generator(name + "images"))
        self._group = -1
        self._left = 0
        self._image = 0
        self._tasks = 0

    def next(self, group: int) -> tuple[int, int]:
        """Return the image and the number of the task."""
        if group != self._group or self._left <= 0:
            self._group = group
            self._left = max(1, round(self._fanout()))
            self._image = next(self._choose)
            self._tasks += 1
        self._left -= 1
        return self._image, self._tasks

    def needs(self, image: int) -> list[tuple[int, float]]:
        """Return what a node must have before a sandbox of this image starts, as keys of its cache with sizes.

        All images have the same common layers, so that the size of those is taken from the mean.
        """
        images = self._images
        own = (self._first + image, self.sizes_bytes[image] * (1 - images.common_share) * images.read_share)
        if not images.common_share:
            return [own]
        return [(-1 - self._first, images.size_bytes.expected() * images.common_share * images.read_share), own]


def _popularity(images: Images, generator: numpy.random.Generator) -> Iterator[int]:
    """Yield images without end, by their popularity."""
    weights = numpy.arange(1, images.count + 1, dtype=float) ** -images.skew
    edges = numpy.cumsum(weights / weights.sum())
    while True:
        yield from numpy.minimum(numpy.searchsorted(edges, generator.random(1024)), images.count - 1).tolist()
