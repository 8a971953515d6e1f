"""What was used, in money: each line of an attempt's use times its price, and the names of those that have none.

A price that nobody knows is not zero: such an amount is listed (`Cost.unpriced`), and a sum that lacks one says that it
is at least so much. What a service itself said that a call cost is believed before any price list. Input that was
read from a cache and has no price of its own is charged as other input, because no service sells it dearer.
Sources: the chapter, sections 11.4.2, 11.5.2 and 11.5.3; it charges environments by E2B's published prices, 0.000014
USD for a CPU second and 0.0000045 USD for a GiB second.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dsec.base.units import GIB
from dsec.costs.token_prices import TokenPrices
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.totals import EnvironmentKind
from dsec.episode.use import SCAFFOLD, AttemptUse, EnvironmentUse, ModelUse
from dsec.model.value import Value

_MTOKEN = 1e6
_MEASURED = (EnvironmentKind.RESIDENT, EnvironmentKind.PREPARED, EnvironmentKind.WASTED)
"""Ways in which a sandbox takes memory; of one that is paused, or not there yet, there may be nothing to measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices that a cost is computed with.

    Attributes:
        models: by the names that stand in logs.
        memory_usd_per_gib_s: of an environment's memory over time; None: nobody knows.
        cpu_usd_per_s: of its processor time.
    """

    models: Mapping[str, TokenPrices] = field(default_factory=dict)
    memory_usd_per_gib_s: float | None = None
    cpu_usd_per_s: float | None = None


class CostKind(enum.Enum):
    """What is paid for."""

    INPUT = "input"
    CACHED = "cached input"
    OUTPUT = "output"
    TOLD = "as the service told"
    MEMORY = "memory"
    CPU = "cpu"
    UNMEASURED = "not measured"


class CostLine(Value, frozen=True, omit_defaults=True):
    """One amount and its price.

    Attributes:
        kind: what is paid for.
        name: of the model, or of the way in which an environment was kept.
        purpose: what became of it: see `dsec.episode.use.Purpose`; the way itself for environments.
        amount: tokens, GiB*s or CPU*s; of what was not measured seconds in which an environment stood, or a scaffold
            ran that asks its models by itself.
        usd: None: its price is not known.
    """

    kind: CostKind
    name: str
    purpose: str
    amount: float
    usd: float | None = None


class Cost(Value, frozen=True, omit_defaults=True):
    """A sum of lines.

    Attributes:
        lines: what it is the sum of.
    """

    lines: tuple[CostLine, ...] = ()

    @property
    def known_usd(self) -> float:
        """The part whose price is known."""
        return math.fsum(line.usd for line in self.lines if line.usd is not None)

    @property
    def unpriced(self) -> tuple[CostLine, ...]:
        """What was used and has no known price."""
        return tuple(line for line in self.lines if line.usd is None)

    @property
    def usd(self) -> float | None:
        """The cost; None where no price of anything that was used is known."""
        return self.known_usd if any(line.usd is not None for line in self.lines) or not self.lines else None

    @property
    def is_whole(self) -> bool:
        """Whether everything in it has a price."""
        return not self.unpriced


def endpoint_prices(endpoint: ModelEndpoint) -> TokenPrices | None:
    """Return what a spec says of a model's prices; None: nothing."""
    prices = TokenPrices(
        input_usd_per_mtoken=endpoint.input_usd,
        cache_read_usd_per_mtoken=endpoint.cached_usd,
        output_usd_per_mtoken=endpoint.output_usd,
    )
    return None if prices == TokenPrices() else prices


def cost_of(use: AttemptUse, prices: Prices) -> Cost:
    """Return what an attempt cost."""
    lines = [line for one in use.models for line in model_cost(one, prices.models.get(one.model))]
    lines += [line for one in use.environment for line in environment_cost(one, prices)]
    if not use.environment:
        name = EnvironmentKind.RESIDENT.value
        lines.append(CostLine(kind=CostKind.UNMEASURED, name=name, purpose=name, amount=use.wall_s))
    if use.policy == SCAFFOLD:
        asked = CostLine(kind=CostKind.UNMEASURED, name=SCAFFOLD, purpose="decided", amount=use.tools.time_s)
        lines.append(asked)
    return Cost(lines=tuple(lines))


def whole_cost_usd(use: ModelUse, prices: TokenPrices | None) -> float | None:
    """Return what a model was paid for; None: something that was used has no known price."""
    cost = Cost(lines=tuple(model_cost(use, prices)))
    return cost.known_usd if cost.is_whole else None


def model_cost(use: ModelUse, prices: TokenPrices | None) -> list[CostLine]:
    """Return the lines of what a model was used for; tokens that were not used make none."""
    purpose = use.purpose.value
    tokens = use.input_tokens + use.output_tokens
    if use.told_usd is not None:
        return [CostLine(kind=CostKind.TOLD, name=use.model, purpose=purpose, amount=tokens, usd=use.told_usd)]
    known = prices or TokenPrices()
    cached = known.cache_read_usd_per_mtoken
    parts = (
        (CostKind.INPUT, use.input_tokens - use.cached_tokens, known.input_usd_per_mtoken),
        (CostKind.CACHED, use.cached_tokens, known.input_usd_per_mtoken if cached is None else cached),
        (CostKind.OUTPUT, use.output_tokens, known.output_usd_per_mtoken),
    )
    return [
        CostLine(
            kind=kind,
            name=use.model,
            purpose=purpose,
            amount=amount,
            usd=None if price is None else amount * price / _MTOKEN,
        )
        for kind, amount, price in parts
        if amount
    ]


def environment_cost(use: EnvironmentUse, prices: Prices) -> list[CostLine]:
    """Return the lines of what an environment took; one that stood and was not measured has a line without a price."""
    if use.time_s and use.kind in _MEASURED and not use.memory_byte_s and not use.cpu_s:
        name = use.kind.value
        return [CostLine(kind=CostKind.UNMEASURED, name=name, purpose=name, amount=use.time_s)]
    parts = (
        (CostKind.MEMORY, use.memory_byte_s / GIB, prices.memory_usd_per_gib_s),
        (CostKind.CPU, use.cpu_s, prices.cpu_usd_per_s),
    )
    return [
        CostLine(
            kind=kind,
            name=use.kind.value,
            purpose=use.kind.value,
            amount=amount,
            usd=None if price is None else amount * price,
        )
        for kind, amount, price in parts
        if amount
    ]


def sum_costs(costs: Iterable[Cost]) -> Cost:
    """Return one line for each kind, name and purpose; in whatever order they come, the same."""
    groups: dict[tuple[str, str, str, bool], list[CostLine]] = {}
    for cost in costs:
        for line in cost.lines:
            groups.setdefault((line.name, line.purpose, line.kind.value, line.usd is None), []).append(line)
    return Cost(lines=tuple(_joined(groups[key]) for key in sorted(groups)))


def _joined(lines: list[CostLine]) -> CostLine:
    known = [line.usd for line in lines if line.usd is not None]
    first = lines[0]
    return CostLine(
        kind=first.kind,
        name=first.name,
        purpose=first.purpose,
        amount=math.fsum(line.amount for line in lines),
        usd=math.fsum(known) if known else None,
    )
