"""What a simulated fleet consists of."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from dsec.model.retry import RetryPolicy
from dsec.model.value import Value
from dsec.placement.affinity import NO_AFFINITY, AffinityPolicy
from dsec.placement.policy import PlacementPolicy
from dsec.sim.arrivals import Arrivals
from dsec.sim.distributions import Distribution, constant
from dsec.sim.fleet.interference import Protection
from dsec.sim.timed import TimedScenario

Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]


class NodeGroup(Value, frozen=True, kw_only=True):
    """Nodes of one kind. 0 for a link or a cache means that there is no limit.

    Attributes:
        name: of the group; a node is called ``NAME-7``.
        count: how many.
        racks: into how many racks they are dealt in turn.
        cores: of each.
        memory_bytes: of each, for sandboxes.
        free_memory_bytes: kept free by the node's admission.
        maximum_sandboxes: of each.
        creations_at_once: of each.
        create_s: duration of a creation once it has its image and a place.
        link_bytes_per_s: in either direction.
        image_cache_bytes: disk for images.
        cloud: rented machines, which take only what is sent to the cloud.
        ready_after_s: rented machines take work so long after the first was sent.
    """

    name: str = "node"
    count: Annotated[int, Meta(ge=1, le=100_000)]
    racks: Count = 1
    cores: Positive = 192.0
    memory_bytes: Annotated[int, Meta(ge=1)] = 1536 << 30
    free_memory_bytes: Annotated[int, Meta(ge=0)] = 1 << 30
    maximum_sandboxes: Count = 3200
    creations_at_once: Count = 16
    create_s: Distribution = constant(0.1)
    link_bytes_per_s: NotNegative = 0.0
    image_cache_bytes: Annotated[int, Meta(ge=0)] = 0
    cloud: bool = False
    ready_after_s: NotNegative = 0.0


class Images(Value, frozen=True, kw_only=True):
    """The images of a workload. Without this table every image is on every node already.

    Attributes:
        count: different ones.
        size_bytes: of each; drawn once.
        skew: how much more popular the first ones are: the weight of the n-th is n to the power of -skew.
        fanout: how many consecutive sandboxes of a group have one image (and are one task).
        read_share: of the bytes that are not common, what is read before a sandbox is ready; 1 is a whole pull.
        common_share: of the bytes, what lies in layers that all images have.
        peers: whether nodes fetch from each other.
    """

    count: Count
    size_bytes: Distribution = constant(2 << 30)
    skew: NotNegative = 0.0
    fanout: Distribution = constant(1)
    read_share: Share = 1.0
    common_share: Share = 0.0
    peers: bool = False


class Workload(Value, frozen=True, kw_only=True):
    """Sandboxes of one kind. They live for `lifetime`, or for their rounds of model calls and tools.

    Attributes:
        name: for figures.
        arrivals: of groups (jobs) and their members.
        lifetime_s: from ready to the end; not used when there are rounds.
        rounds: model and tool phases of a trajectory; 0: none.
        model_call_s, tool_s: their durations, the tool's on a free node.
        tool_cores: cores that a tool phase wants.
        trajectories: how many a sandbox serves, rolled back in between, before another is created.
        recycle_s: duration of such a rollback and its check.
        cpu_millis: limit of each sandbox.
        cpu_share: what it uses of it on average, when there are no rounds.
        memory_bytes: limit of each sandbox.
        memory_share: what it uses of it.
        best_effort: class of its processor time; False: latency-sensitive.
        images: None: resident everywhere.
        snapshot_bytes: what a trajectory writes to the common store at its end.
        restart_lost: whether a sandbox that its node lost is asked for again.
        patience_s: after that time without a sandbox a request is given up.
        ask_again_s: whoever was told of a failure asks again after this time; 0: does not.
        burst_share: of the images, what the cloud has.
    """

    name: str = "sandboxes"
    arrivals: Arrivals
    lifetime_s: Distribution = constant(900.0)
    rounds: Distribution = constant(0)
    model_call_s: Distribution = constant(9.0)
    tool_s: Distribution = constant(1.0)
    tool_cores: Positive = 1.0
    trajectories: Distribution = constant(1)
    recycle_s: NotNegative = 0.1
    cpu_millis: Annotated[int, Meta(ge=1)] = 1000
    cpu_share: Share = 0.05
    memory_bytes: Annotated[int, Meta(ge=1)] = 2 << 30
    memory_share: Share = 0.25
    best_effort: bool = False
    images: Images | None = None
    snapshot_bytes: Annotated[int, Meta(ge=0)] = 0
    restart_lost: bool = True
    patience_s: Positive = 600.0
    ask_again_s: NotNegative = 10.0
    burst_share: Share = 0.0


class Scheduling(Value, frozen=True, kw_only=True):
    """The schedulers and what they see.

    Attributes:
        schedulers: how many; each owns shards of the tasks.
        placement: how each chooses; ``choices`` as large as the fleet is "least loaded of all".
        affinity: how far tasks keep together.
        retries: when a creation is tried again.
        view_every_s: how often the watcher's view of all nodes reaches the schedulers.
        view_delay_s: how old it is then.
        decision_s: what a decision takes; decisions of one scheduler wait for each other.
        takeover_s: how long a dead scheduler's shards are nobody's.
        idempotent: whether a second request with one id finds the first creation. If not, it makes another.
    """

    schedulers: Annotated[int, Meta(ge=1, le=64)] = 1
    placement: PlacementPolicy = PlacementPolicy()
    affinity: AffinityPolicy = NO_AFFINITY
    retries: RetryPolicy = RetryPolicy()
    view_every_s: Positive = 5.0
    view_delay_s: NotNegative = 0.0
    decision_s: NotNegative = 0.0
    takeover_s: NotNegative = 10.0
    idempotent: bool = True


class Failure(Value, frozen=True, kw_only=True):
    """Something that breaks.

    Attributes:
        at_s: when.
        kind: what.
        which: number of the node, rack or scheduler, from 0.
        for_s: how long; 0: for good. A node comes back empty.
    """

    at_s: NotNegative
    kind: Literal["node", "rack", "watcher", "scheduler"]
    which: Annotated[int, Meta(ge=0)] = 0
    for_s: NotNegative = 0.0


class Bursting(Value, frozen=True, kw_only=True):
    """When work goes to the cloud: see `dsec.scheduling.bursting`."""

    above_share: Share = 0.8
    until_share: Share = 0.7


class FleetScenario(TimedScenario, frozen=True, kw_only=True, tag_field="model", tag="fleet"):
    """Nodes, workloads, schedulers and what breaks.

    Attributes:
        duration_s: how long the run is.
        warmup_s: levels and distributions of what came before are forgotten.
        sample_every_s: distance of the points of series, and of the looks at the balance between nodes.
        nodes, workloads, scheduling, failures: see there.
        protection: what keeps best-effort work from slowing latency-sensitive work.
        origin_bytes_per_s: what the image registry sends in all; 0: no limit.
        store_bytes_per_s: what the common store for snapshots takes in all; 0: no limit.
        bursting: None: the cloud groups are used like others.
    """

    sample_every_s: Positive = 10.0
    nodes: Annotated[tuple[NodeGroup, ...], Meta(min_length=1)]
    workloads: Annotated[tuple[Workload, ...], Meta(min_length=1)]
    scheduling: Scheduling = Scheduling()
    failures: tuple[Failure, ...] = ()
    protection: Protection = "none"
    origin_bytes_per_s: NotNegative = 0.0
    store_bytes_per_s: NotNegative = 0.0
    bursting: Bursting | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        largest = max(group.memory_bytes - group.free_memory_bytes for group in self.nodes)
        for workload in self.workloads:
            if workload.memory_bytes > largest:
                raise ValueError(f"a sandbox of {workload.name!r} has more memory than any node")
        if self.bursting is not None and not any(group.cloud for group in self.nodes):
            raise ValueError("`bursting` needs a group of nodes with `cloud = true`")
        self._check_failures()

    def _check_failures(self) -> None:
        numbers = {
            "node": sum(group.count for group in self.nodes),
            "rack": sum(group.racks for group in self.nodes),
            "watcher": 1,
            "scheduler": self.scheduling.schedulers,
        }
        for failure in self.failures:
            if failure.which >= numbers[failure.kind]:
                raise ValueError(
                    f"there is no {failure.kind} {failure.which}: they are numbered 0 to {numbers[failure.kind] - 1}"
                )
