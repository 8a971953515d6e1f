"""What the commands of `dsec gateway` share: the option that names the configuration, and its library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dsec.base.errors import CapabilityMissingError

if TYPE_CHECKING:
    from dsec.gateway.config import GatewayConfig

F = TypeVar("F", bound=Callable[..., Any])


def config_option(command: F) -> F:
    """Add ``--config``, passed as `config_file`."""
    return click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="DSEC_GATEWAY_CONFIG",
        default=Path("gateway.toml"),
        show_default=True,
        help="The gateway's configuration.  [DSEC_GATEWAY_CONFIG]",
    )(command)


def load_config(file: Path) -> GatewayConfig:
    """Read a configuration.

    Raises:
        InvalidRequestError: it is not in order; with file and line.
    """
    from dsec.gateway.config_reading import read_config

    return read_config(file)


def check_library() -> None:
    """Say how to get the library that servers and clients of the gateway need.

    Raises:
        CapabilityMissingError: it is not installed.
    """
    try:
        import aiohttp
    except ModuleNotFoundError as error:
        raise CapabilityMissingError(
            f"the gateway needs {error.name}", resolution="pip install 'dsec[gateway]'"
        ) from error
    del aiohttp
