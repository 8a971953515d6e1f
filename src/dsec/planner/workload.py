"""A workload: what arrives, what it does, what could serve it, and what it has to achieve.

Every number is a `Figure`, so that what is computed from it can say where it came from; `.value` is in base units.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from dsec.planner.axis import Axis
from dsec.planner.figure import Figure
from dsec.planner.worksheet import Heading


class Pattern(enum.Enum):
    """How tasks arrive."""

    UNIFORM = "uniform"
    """Evenly spaced."""
    POISSON = "poisson"
    """Independently of each other."""
    BURST = "burst"
    """So many at the same moment, evenly spaced bursts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """How often tasks arrive, and in what pattern.

    Attributes:
        rate: tasks in a second, all classes together.
        pattern: how they follow each other.
        burst: tasks that arrive together.
    """

    rate: Figure
    pattern: Pattern
    burst: int

    @property
    def period_s(self) -> float:
        """Time between arrivals, or between bursts."""
        return self.burst / self.rate.value


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskClass:
    """Tasks that are alike.

    Attributes:
        name: of the class.
        share: of the arrivals.
        rounds: model calls, each followed by a tool.
        model: time of a model call by the service's name; a service that is not named takes tokens times its pace.
        output, cached, input: tokens of a call: generated, read from the cache, and read otherwise.
        tool: time of a tool.
        tool_cores: cores that it keeps busy.
        memory: of one environment.
        quality: share of the tasks that pass, by the service's name; "" is for all others.
        deadline: from arrival to result; None: whenever.
        commit: handing in the result.
        model_variation, tool_variation: squared coefficient of variation of those times; 0: always the same.
    """

    name: str
    share: Figure
    rounds: int
    model: Mapping[str, Figure]
    output: Figure | None
    cached: Figure
    input: Figure
    tool: Figure
    tool_cores: Figure
    memory: Figure
    quality: Mapping[str, Figure]
    deadline: Figure | None
    commit: Figure
    model_variation: Figure
    tool_variation: Figure
    place: str

    def quality_with(self, service: str) -> Figure:
        """Return the share that passes with a service."""
        return self.quality.get(service) or self.quality[""]


class Billing(enum.Enum):
    """How something is paid for."""

    USED = "used"
    """By the time that it is used."""
    RESERVED = "reserved"
    """By the time that it is there."""
    TOKENS = "tokens"
    """By the token."""
    SUBSCRIPTION = "subscription"
    """By the seat and the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """An offer that answers model calls.

    Attributes:
        name: of the service.
        billing: how it is paid for.
        replicas: how many there are, or may be; seats of a subscription.
        sessions: calls that one of them serves at the same time.
        gpus: accelerators of one.
        price: of an accelerator or a seat, per second.
        pace: time of one token by the number of sessions, rising; straight lines between.
        first_token: before the first token.
        prices: of a token: `input`, `cached`, `output`.
        limits: calls and tokens in a second: `calls`, `tokens`; those not there are not limited.
    """

    name: str
    billing: Billing
    replicas: Axis
    sessions: Axis
    gpus: Figure | None
    price: Figure | None
    pace: tuple[tuple[int, Figure], ...]
    first_token: Figure
    prices: Mapping[str, Figure]
    limits: Mapping[str, Figure]
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """An offer that carries environments.

    Attributes:
        name: of the kind of host.
        count: how many there are, or may be.
        cpus, memory: of one.
        creations: environments that one makes in a second; None: not limited.
        price: of one, per second; None: paid by use.
        cpu_price, memory_price: of use; None: paid by the host.
    """

    name: str
    count: Axis
    cpus: Figure
    memory: Figure
    creations: Figure | None
    price: Figure | None
    cpu_price: Figure | None
    memory_price: Figure | None
    place: str


class PolicyKind(enum.Enum):
    """What happens to an environment between two tools."""

    KEPT = "kept"
    """It stays from the task's first moment to its last."""
    REBUILT = "rebuilt"
    """It is destroyed after each tool; the next is prepared to be ready when the model has decided."""
    ON_DEMAND = "on_demand"
    """It is destroyed after each tool; the next is prepared when the model has decided."""
    PAUSED = "paused"
    """It is saved after each tool and restored to be ready when the model has decided."""
    PREDICTED = "predicted"
    """As on demand, but a guess begins some time before the model has decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How tasks come by environments.

    Attributes:
        name: of the policy.
        kind: what happens between two tools.
        prepare: time to make an environment; for `kept`, before the first model call.
        prepare_cpu: processor time of that.
        save: of `paused`: time for each byte.
        restore: of `paused`: time.
        hit: of `predicted`: probability that the guess is right.
        lead: of `predicted`: how long before the decision it is made.
    """

    name: str
    kind: PolicyKind
    prepare: Figure
    prepare_cpu: Figure
    save: Figure
    restore: Figure
    hit: Figure
    lead: Figure
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A number that a figure of the workload should come to."""

    figure: str
    value: object
    tolerance: object
    where: str
    assumed: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything that a workload file says.

    Attributes:
        heading: title and sources.
        arrivals: of tasks.
        goal: share of the tasks that have to pass in time.
        classes, services, hosts, policies: by name.
    """

    heading: Heading
    arrivals: Arrivals
    goal: Figure
    classes: Mapping[str, TaskClass]
    services: Mapping[str, Service]
    hosts: Mapping[str, Host]
    policies: Mapping[str, Policy]
