"""Price tables: what services charge, each with the day on which it was recorded and its source.

Prices change, and a cost without the day of its prices cannot be compared. A table is a TOML text::

    [table]
    name = "chapter"
    recorded_on = 2026-11-30
    source = "where these come from"
    currency = "USD"

    [[model]]
    name = "claude-sonnet-5"
    aliases = ["another name"]
    input_usd_per_mtoken = 2.0
    cache_write_usd_per_mtoken = 2.5
    cache_read_usd_per_mtoken = 0.2
    output_usd_per_mtoken = 10.0
    source = "where this one comes from"

    [[accelerator]]
    name = "runpod-b200-pod"
    usd_per_gpu_h = 6.79

    [environment]
    memory_usd_per_gib_s = 0.0000045
    cpu_usd_per_s = 0.000014

A price that is left out is not sold, or not known: using such tokens is never free. A dated name of a model
(`claude-sonnet-5-20260901`) finds the price of the plain one.
"""

from __future__ import annotations

import datetime
import difflib
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files

from dsec.base.errors import NotFoundError
from dsec.base.toml_source import TomlSource
from dsec.costs.token_prices import TokenPrices
from dsec.model.value import Value
from dsec.routing.model_names import is_same_model

_PRICES = (
    "input_usd_per_mtoken",
    "cache_write_usd_per_mtoken",
    "cache_read_usd_per_mtoken",
    "output_usd_per_mtoken",
)
_ENVIRONMENT = ("memory_usd_per_gib_s", "cpu_usd_per_s")
_UNITS = {
    "memory_usd_per_gib_s": "USD for a GiB of memory and second",
    "cpu_usd_per_s": "USD for a second of a processor",
    "usd_per_gpu_h": "USD for an accelerator and hour",
    **dict.fromkeys(_PRICES, "USD for a million tokens"),
}
_FOLDER = "prices"
_END = ".toml"


class ModelPrice(Value, frozen=True):
    """What a model's tokens cost.

    Attributes:
        name: of the model.
        aliases: further names.
        prices: by the token.
        recorded_on: when they were recorded.
        source: where they come from.
    """

    name: str
    aliases: tuple[str, ...]
    prices: TokenPrices
    recorded_on: datetime.date
    source: str


class AcceleratorPrice(Value, frozen=True):
    """What an accelerator costs by the hour.

    Attributes:
        name: of the offer.
        usd_per_gpu_h: its price.
        recorded_on: when it was recorded.
        source: where it comes from.
    """

    name: str
    usd_per_gpu_h: float
    recorded_on: datetime.date
    source: str


class EnvironmentPrice(Value, frozen=True):
    """What sandboxes cost by what they use; a price that is absent is not known.

    Attributes:
        memory_usd_per_gib_s: memory over time.
        cpu_usd_per_s: processor time.
        source: where they come from.
    """

    memory_usd_per_gib_s: float | None = None
    cpu_usd_per_s: float | None = None
    source: str = ""


class PriceTable(Value, frozen=True):
    """One table.

    Attributes:
        name: of the table.
        recorded_on: when it was recorded.
        source: where it comes from.
        models: prices by the token.
        accelerators: prices by the hour.
        environment: prices of sandboxes.
    """

    name: str
    recorded_on: datetime.date
    source: str
    models: tuple[ModelPrice, ...] = ()
    accelerators: tuple[AcceleratorPrice, ...] = ()
    environment: EnvironmentPrice = EnvironmentPrice()

    def model(self, name: str) -> ModelPrice:
        """Return the price of a model, by its name, an alias, or either with a date behind it.

        Raises:
            NotFoundError: it is not in the table; the nearest names are told.
        """
        exact = [one for one in self.models if name in (one.name, *one.aliases)]
        dated = [one for one in self.models if any(is_same_model(known, name) for known in (one.name, *one.aliases))]
        for found in (*exact, *dated):
            return found
        raise _missing(f"the price table {self.name!r} has no model {name!r}", name, [one.name for one in self.models])

    def accelerator(self, name: str) -> AcceleratorPrice:
        """Return the price of an accelerator.

        Raises:
            NotFoundError: it is not in the table; the nearest names are told.
        """
        for found in self.accelerators:
            if found.name == name:
                return found
        known = [one.name for one in self.accelerators]
        raise _missing(f"the price table {self.name!r} has no accelerator {name!r}", name, known)


def parse_prices(name: str, text: str) -> PriceTable:
    """Read a price table.

    Args:
        name: of the file, for errors.
        text: its content.

    Raises:
        InvalidRequestError: something is wrong; the brief names file and line.
    """
    source = TomlSource.parse(name, text)
    _check_names(source, (), source.values, ("table", "model", "accelerator", "environment"))
    head = _table(source, ("table",), source.values.get("table"))
    _check_names(source, ("table",), head, ("name", "recorded_on", "source", "currency"))
    if head.get("currency", "USD") != "USD":
        raise source.error(
            ("table", "currency"), "is not USD", resolution="convert the prices, and say so in the source"
        )
    day = head.get("recorded_on")
    if isinstance(day, datetime.datetime) or not isinstance(day, datetime.date):
        raise source.error(
            ("table", "recorded_on"), "is not a day", resolution="write it as 2026-11-30, without quotes"
        )
    table = PriceTable(
        name=_text(source, ("table",), head, "name"),
        recorded_on=day,
        source=_text(source, ("table",), head, "source"),
    )
    models = [_model(source, ("model", at), one, table) for at, one in _tables(source, "model")]
    accelerators = [_accelerator(source, ("accelerator", at), one, table) for at, one in _tables(source, "accelerator")]
    _check_unique(source, "model", [(one.name, *one.aliases) for one in models])
    _check_unique(source, "accelerator", [(one.name,) for one in accelerators])
    return PriceTable(
        name=table.name,
        recorded_on=day,
        source=table.source,
        models=tuple(models),
        accelerators=tuple(accelerators),
        environment=_environment(source, table),
    )


def shipped_tables() -> tuple[str, ...]:
    """Return the names of the tables that come with the package."""
    found = (entry.name for entry in files("dsec.routing").joinpath(_FOLDER).iterdir())
    return tuple(sorted(name.removesuffix(_END) for name in found if name.endswith(_END)))


def shipped_prices(name: str = "chapter") -> PriceTable:
    """Return a table that comes with the package.

    Raises:
        NotFoundError: there is none of this name.
    """
    if name not in shipped_tables():
        raise _missing(f"no price table is named {name!r}", name, shipped_tables())
    text = files("dsec.routing").joinpath(_FOLDER, name + _END).read_text(encoding="utf8")
    return parse_prices(name + _END, text)


Path = tuple[str | int, ...]


def _model(source: TomlSource, path: Path, fields: Mapping[str, object], table: PriceTable) -> ModelPrice:
    _check_names(source, path, fields, ("name", "aliases", "source", *_PRICES))
    aliases = fields.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) and alias for alias in aliases):
        raise source.error((*path, "aliases"), "is not a list of names", resolution='write ["one", "two"]')
    prices = {price: _price(source, path, fields, price) for price in _PRICES if price in fields}
    if not prices:
        raise source.error(path, "has no price", resolution=f"give one of {', '.join(_PRICES)}")
    return ModelPrice(
        name=_text(source, path, fields, "name"),
        aliases=tuple(aliases),
        prices=TokenPrices(**prices),
        recorded_on=table.recorded_on,
        source=_text(source, path, fields, "source", table.source),
    )


def _accelerator(source: TomlSource, path: Path, fields: Mapping[str, object], table: PriceTable) -> AcceleratorPrice:
    _check_names(source, path, fields, ("name", "source", "usd_per_gpu_h"))
    return AcceleratorPrice(
        name=_text(source, path, fields, "name"),
        usd_per_gpu_h=_price(source, path, fields, "usd_per_gpu_h"),
        recorded_on=table.recorded_on,
        source=_text(source, path, fields, "source", table.source),
    )


def _environment(source: TomlSource, table: PriceTable) -> EnvironmentPrice:
    path: Path = ("environment",)
    if "environment" not in source.values:
        return EnvironmentPrice()
    fields = _table(source, path, source.values["environment"])
    _check_names(source, path, fields, ("source", *_ENVIRONMENT))
    prices = {price: _price(source, path, fields, price) for price in _ENVIRONMENT if price in fields}
    return EnvironmentPrice(**prices, source=_text(source, path, fields, "source", table.source))


def _table(source: TomlSource, path: Path, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        keys = ", ".join(_ENVIRONMENT) if path == ("environment",) else "name, recorded_on, source"
        raise source.error(path, "is missing or no table", resolution=f"write [{path[0]}], and below it: {keys}")
    return value


def _tables(source: TomlSource, name: str) -> list[tuple[int, Mapping[str, object]]]:
    found = source.values.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise source.error((name,), "is not a list of tables", resolution=f"write each under [[{name}]]")
    return list(enumerate(found))


def _check_names(source: TomlSource, path: Path, fields: Mapping[str, object], known: Sequence[str]) -> None:
    for name in fields:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise source.error((*path, name), "is not known", resolution=f"{hint}known here: {', '.join(known)}")


def _check_unique(source: TomlSource, what: str, names: Sequence[Sequence[str]]) -> None:
    seen: set[str] = set()
    for at, one in enumerate(names):
        for name in one:
            if name in seen:
                raise source.error((what, at), f"has the name {name!r}, which another one has", resolution="keep one")
            seen.add(name)


def _text(source: TomlSource, path: Path, fields: Mapping[str, object], name: str, default: str = "") -> str:
    value = fields.get(name, default)
    if not isinstance(value, str) or not value:
        raise source.error((*path, name), "is missing or no text", resolution=f"write {name} as a text")
    return value


def _price(source: TomlSource, path: Path, fields: Mapping[str, object], name: str) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise source.error(
            (*path, name), f"is {value!r}, which is no price", resolution=f"write {_UNITS[name]}, such as 2.5"
        )
    return float(value)


def _missing(brief: str, name: str, known: Sequence[str]) -> NotFoundError:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    return NotFoundError(brief, resolution=f"{hint}there are: {', '.join(known)}")
