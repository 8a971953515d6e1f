"""Put a gateway together from its configuration, and take up what its ledger says of the time before."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, closing, nullcontext
from pathlib import Path

from dsec.base.clock import Clock, SystemClock
from dsec.base.errors import InvalidRequestError, NotFoundError
from dsec.base.ids import RandomBytes
from dsec.costs.token_prices import TokenPrices
from dsec.gateway.budgets import Accounts
from dsec.gateway.config import GatewayConfig, Prices, Service
from dsec.gateway.flow import Turnstile
from dsec.gateway.http_upstream import open_session, read_secret
from dsec.gateway.key_ring import KeyRing
from dsec.gateway.keys import KEYS_FILE
from dsec.gateway.ledger import Ledger, pair_attempts, read_records
from dsec.gateway.ledger_record import Attempt, Began, unknown_end
from dsec.gateway.line import Line, declared
from dsec.gateway.proxy import Proxy
from dsec.gateway.recording import Recorder
from dsec.gateway.tariff import Tariff
from dsec.gateway.thinking import ThinkingAllowance
from dsec.gateway.upstream import Upstream
from dsec.gateway.upstreams import Upstreams
from dsec.routing.fairness import FairQueue
from dsec.routing.price_table import PriceTable, parse_prices, shipped_prices, shipped_tables
from dsec.routing.router import Router


@asynccontextmanager
async def open_proxy(
    config: GatewayConfig,
    directory: Path,
    *,
    clock: Clock | None = None,
    environment: Mapping[str, str] | None = None,
    random_bytes: RandomBytes = os.urandom,
) -> AsyncIterator[Proxy]:
    """Open a gateway without its HTTP server; leaving ends its connections and closes its ledger.

    Args:
        config: the configuration.
        directory: what relative paths in it start from.
        clock: instead of the host's.
        environment: where keys of backends are, instead of the process's.
        random_bytes: where ids come from.

    Raises:
        InvalidRequestError: a backend's key is not where the configuration says.
        StateLockedError: another gateway holds its state directory, or the one that it records to.
        NotFoundError: a backend repeats what was never recorded.
        StateCorruptedError: its ledger or its keys cannot be read.
    """
    clock = clock or SystemClock()
    secrets = {
        service.name: read_secret(service, directory, os.environ if environment is None else environment)
        for service in config.backends
    }
    tables = price_tables(config, directory)
    state = directory / config.gateway.state_dir
    ledger = Ledger(
        state,
        clock,
        segment_bytes=config.gateway.ledger_segment_bytes,
        sync_interval_s=config.gateway.sync_interval_s,
    )
    try:
        accounts, thinking = Accounts(), ThinkingAllowance()
        _take_up(ledger, state, accounts, thinking)
        keys = KeyRing(state / KEYS_FILE, clock, open_to_all=config.gateway.open)
        async with open_session() as session:
            with _recording(config, directory, clock) as recorder:
                ways = Upstreams(directory, session, clock, recorder)
                weights = {name: project.weight for name, project in config.projects.items()}
                lines = {
                    service.name: _line(service, ways.to(service, secrets[service.name]), weights, tables)
                    for service in config.backends
                }
                router = Router(
                    [line.backend for line in lines.values()],
                    routes={name: config.groups(name) for name in config.models},
                    policy=config.routing,
                )
                yield Proxy(
                    config, lines, router, ledger, keys, accounts, thinking, clock=clock, random_bytes=random_bytes
                )
    finally:
        ledger.close()


def _recording(config: GatewayConfig, directory: Path, clock: Clock) -> AbstractContextManager[Recorder | None]:
    where = config.gateway.record_to
    return nullcontext() if where is None else closing(Recorder(directory / where, clock))


def price_tables(config: GatewayConfig, directory: Path) -> list[PriceTable]:
    """Return the price tables that a gateway knows, its own first.

    Raises:
        InvalidRequestError: one cannot be read.
    """
    tables = []
    for name in config.gateway.price_files:
        try:
            text = (directory / name).read_text(encoding="utf8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequestError(
                f"the price table {directory / name} cannot be read: {error}", resolution="correct price_files"
            ) from error
        tables.append(parse_prices(str(directory / name), text))
    return [*tables, *(shipped_prices(name) for name in shipped_tables())]


def prices_of(service: Service, tables: list[PriceTable]) -> tuple[TokenPrices | None, str]:
    """Return a backend's prices and where they come from; None: it is not sold by the token.

    Raises:
        NotFoundError: no table has the model that it names.
    """
    if service.price_list is not None:
        return _listed(service.price_list, tables)
    written = service.prices
    if written is None:
        return None, ""
    return _written(written), ""


def _listed(model: str, tables: list[PriceTable]) -> tuple[TokenPrices, str]:
    last: NotFoundError | None = None
    for table in tables:
        try:
            found = table.model(model)
        except NotFoundError as error:
            last = error
            continue
        return found.prices, f"{table.name} of {found.recorded_on.isoformat()}"
    raise NotFoundError(
        f"no price table has the model {model!r}", detail=str(last or ""), resolution="write prices, or a price table"
    )


def _written(written: Prices) -> TokenPrices:
    return TokenPrices(
        input_usd_per_mtoken=written.input_usd_per_mtoken,
        output_usd_per_mtoken=written.output_usd_per_mtoken,
        cache_write_usd_per_mtoken=written.cache_write_usd_per_mtoken,
        cache_read_usd_per_mtoken=written.cache_read_usd_per_mtoken,
    )


def _line(service: Service, upstream: Upstream, weights: Mapping[str, float], tables: list[PriceTable]) -> Line:
    prices, source = prices_of(service, tables)
    return Line(
        service=service,
        backend=declared(service, prices),
        upstream=upstream,
        turnstile=Turnstile(service.name, service.slots, FairQueue(weights)),
        tariff=Tariff(prices, service.reserved_usd_per_h, service.slots, source),
    )


def _take_up(ledger: Ledger, state: Path, accounts: Accounts, thinking: ThinkingAllowance) -> None:
    """Book what was spent before, and write an end for what the gateway before this one left open."""
    left_open: dict[str, Began] = {}
    for attempt in pair_attempts(read_records(state), open_too=False, left_open=left_open):
        _book(attempt, accounts, thinking)
    for began in left_open.values():
        attempt = Attempt(began=began, ended=unknown_end(began))
        ledger.write(attempt.ended)
        _book(attempt, accounts, thinking)


def _book(attempt: Attempt, accounts: Accounts, thinking: ThinkingAllowance) -> None:
    began, usage = attempt.began, attempt.ended.usage
    tokens = usage.input_tokens + usage.output_tokens
    for kind, name in (("key", began.key), ("project", began.project)):
        if name:
            accounts.book(kind, name, tokens=tokens, usd=attempt.ended.cost.total, calls=int(began.number == 1))
    if began.episode:
        thinking.book(began.project, began.episode, usage.thinking.tokens)
