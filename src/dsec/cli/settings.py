"""The settings of this host's node and where each came from: default < file < environment < flag.

The table itself is `dsec.node.settings.SETTINGS`; here its four sources are read and laid over each other.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.cli.parameters import pair
from dsec.node.running_settings import kept_settings
from dsec.node.settings import SETTINGS, NodeSettings, default_state_dir, environment_values, settings_from
from dsec.sdk.background import is_held

if TYPE_CHECKING:
    from dsec.cli.context import Options

SYSTEM_FILE = Path("/etc/dsec/config.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Settings and the origin of every value.

    Attributes:
        settings: the values.
        origins: by field name: ``default``, the path of a file, the name of an environment variable, or a flag.
    """

    settings: NodeSettings
    origins: Mapping[str, str]

    @property
    def state_dir(self) -> Path:
        """Where the node keeps its state; the default depends on the user."""
        return Path(self.settings.state_dir).absolute() if self.settings.state_dir else default_state_dir()


def load(options: Options, environment: Mapping[str, str] = os.environ) -> Loaded:
    """Read all sources.

    Raises:
        InvalidRequestError: a file is missing or broken, a name is unknown, a value does not parse; names the source.
    """
    values: dict[str, str] = {}
    origins = {row.name: "default" for row in SETTINGS}
    for origin, source in _sources(options, environment):
        _check(origin, source)
        values |= source
        origins |= {name: _origin_of(origin, name) for name in source}
    return Loaded(settings=settings_from(values), origins=origins)


def load_beside_node(options: Options) -> Loaded:
    """Read all sources, and let what none of them sets be as the node that runs in the state directory has it.

    For commands that work on a node's stores beside it, and mean the same stores. A node may have been started with a
    file or flags of which they know nothing.

    Raises:
        InvalidRequestError: as `load`.
    """
    loaded = load(options)
    running = kept_settings(loaded.state_dir) if is_held(loaded.state_dir) else None
    if running is None:
        return loaded
    unset = [name for name, origin in loaded.origins.items() if origin == "default" and name != "state_dir"]
    settings = msgspec.structs.replace(loaded.settings, **{name: getattr(running, name) for name in unset})
    return Loaded(settings=settings, origins=loaded.origins)


def _origin_of(origin: str, name: str) -> str:
    return f"DSEC_{name.upper()}" if origin == "environment" else origin


def _sources(options: Options, environment: Mapping[str, str]) -> list[tuple[str, dict[str, str]]]:
    files = [(str(path), _read(path)) for path in config_files(options.config_file, environment)]
    flags = [("--set", dict(pair(text) for text in options.overrides))]
    if options.state_dir_option is not None:
        flags.append(("--state-dir", {"state_dir": str(options.state_dir_option)}))
    return [*files, ("environment", environment_values(environment)), *flags]


def config_files(named: Path | None, environment: Mapping[str, str]) -> list[Path]:
    """Return the files to read, the strongest last. A file that was named must exist; the usual ones may."""
    if named is None and environment.get("DSEC_CONFIG"):
        named = Path(environment["DSEC_CONFIG"])
    if named is not None:
        if not named.is_file():
            raise InvalidRequestError(f"{named} does not exist", resolution="name a file with --config or DSEC_CONFIG")
        return [named]
    home = Path(environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "/")) / ".config")
    return [path for path in (SYSTEM_FILE, home / "dsec" / "config.toml") if path.is_file()]


def _read(path: Path) -> dict[str, str]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf8"))
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read", detail=error.strerror or "") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path} is not TOML", detail=str(error)) from error
    for name, value in table.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise InvalidRequestError(
                f"{path}: {name} must be a text or a number", resolution="write NAME = VALUE lines"
            )
    return {name: str(value) for name, value in table.items()}


def _check(origin: str, source: Mapping[str, str]) -> None:
    """Refuse unknown names with the closest known one, and values that do not parse with where they stand."""
    known = [row.name for row in SETTINGS]
    for name, text in source.items():
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "`dsec config show` lists all settings"
            raise InvalidRequestError(f"{origin}: there is no setting {name!r}", resolution=hint)
        try:
            settings_from({name: text})
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{origin}: {name}: {error.brief}", resolution=error.resolution) from error
