"""From a TOML file to a `GatewayConfig`, with file and line in every complaint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dsec.base.errors import InvalidRequestError
from dsec.base.toml_source import TomlSource
from dsec.base.units import parse_duration, parse_size
from dsec.gateway.config import GatewayConfig
from dsec.gateway.config_rules import check_config
from dsec.model.struct_reading import StructReader
from dsec.model.unit_names import UnitName, Units, parse_by


def _unit(end: str, parse: Callable[[str], float], example: str, *, kept: bool = False) -> UnitName:
    return UnitName(end=end, parse=parse, how=f"write it as {example}", kept=kept)


_UNITS: Units = (
    _unit("_usd_per_mtoken", parse_by({"USD/Mtoken": 1.0}), '"2 USD/Mtoken"'),
    _unit("_usd_per_h", parse_by({"USD/h": 1.0}), '"6.79 USD/h"'),
    _unit("_tokens_per_s", parse_by({"token/s": 1.0}), '"8000 token/s"'),
    _unit("_bytes", parse_size, '"32 MiB"'),
    _unit("_s", parse_duration, '"90s", "250ms" or "10m"'),
    _unit("usd", parse_by({"USD": 1.0}), '"50 USD"', kept=True),
)


def read_config(file: Path) -> GatewayConfig:
    """Read a configuration file.

    Raises:
        InvalidRequestError: it cannot be read, or something in it is wrong; the brief names file and line.
    """
    try:
        text = file.read_text(encoding="utf8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"{file} cannot be read: {error}", resolution="give the path of a gateway's configuration"
        ) from error
    return parse_config(str(file), text)


def parse_config(name: str, text: str) -> GatewayConfig:
    """Return the configuration that a text describes; `name` is what errors call it.

    Raises:
        InvalidRequestError: something in it is wrong; the brief names the line.
    """
    source = TomlSource.parse(name, text)
    config = StructReader(source=source, see="docs/gateway.md", units=_UNITS).read(GatewayConfig, source.values)
    check_config(source, config)
    return config
