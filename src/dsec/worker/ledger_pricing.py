"""Put prices to what a run used: those of a price table first, then those of each episode's spec."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from dsec.base.errors import NotFoundError
from dsec.costs.token_prices import TokenPrices
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.prices import Prices, cost_of, endpoint_prices
from dsec.episode.spending import PricedAttempt
from dsec.routing.model_names import is_same_model
from dsec.routing.price_table import PriceTable
from dsec.worker.ledger_reading import Recorded, RecordedRun


def price_run(run: RecordedRun, table: PriceTable | None) -> list[PricedAttempt]:
    """Return each attempt of a run with its cost.

    Args:
        run: as it was read.
        table: prices that go before those of specs; None: only specs know prices, and nobody those of environments.
    """
    return [
        PricedAttempt(graded=one.graded, cost=cost_of(one.graded.use, prices_for(one, table))) for one in run.attempts
    ]


def prices_for(one: Recorded, table: PriceTable | None) -> Prices:
    """Return the prices of what one attempt used."""
    models: dict[str, TokenPrices] = {}
    for name in {line.model for line in one.graded.use.models}:
        found = _table_prices(name, table) or _spec_prices(name, one.endpoints)
        if found is not None:
            models[name] = found
    if table is None:
        return Prices(models=models)
    environment = table.environment
    return Prices(
        models=models,
        memory_usd_per_gib_s=environment.memory_usd_per_gib_s,
        cpu_usd_per_s=environment.cpu_usd_per_s,
    )


def priced_endpoint(endpoint: ModelEndpoint, table: PriceTable | None) -> ModelEndpoint:
    """Return a model with the prices that a table has of it, where it says none itself."""
    found = _table_prices(endpoint.name, table)
    if found is None or endpoint_prices(endpoint) is not None:
        return endpoint
    return replace(
        endpoint,
        input_usd=found.input_usd_per_mtoken,
        cached_usd=found.cache_read_usd_per_mtoken,
        output_usd=found.output_usd_per_mtoken,
    )


def price_source(table: PriceTable | None) -> str:
    """Return where prices come from, for people."""
    if table is None:
        return "what the specs of episodes say"
    return f"the table {table.name!r} of {table.recorded_on:%Y-%m-%d}, and else what the specs of episodes say"


def _table_prices(name: str, table: PriceTable | None) -> TokenPrices | None:
    try:
        return table.model(name).prices if table is not None and name else None
    except NotFoundError:
        return None


def _spec_prices(name: str, endpoints: Iterable[ModelEndpoint]) -> TokenPrices | None:
    """Return what specs say of a model; an endpoint without a name is asked for whichever model it lists first."""
    named = [one for one in endpoints if one.name and is_same_model(one.name, name)]
    nameless = [one for one in endpoints if not one.name]
    for one in named or (nameless if len(nameless) == 1 else ()):
        if (found := endpoint_prices(one)) is not None:
            return found
    return None
