"""The settings of the node that runs, for whoever talks to it: in a file of its state directory.

A client that finds a node running does not start one, so that settings it was given for that (flags, variables, a file)
have no effect. It compares them with this file and says so. The file is a help and no promise: one that is missing or
cannot be read, as it is written in place, means that nothing is said.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import structlog

from dsec.node.settings import SETTINGS, NodeSettings

_log = structlog.get_logger(__name__)
RUNNING_SETTINGS = "node.settings"
_OF_THE_CLIENT = frozenset({"state_dir"})
"""The same by the way the file was found, whatever it was called."""


def keep_settings(settings: NodeSettings, state_dir: Path) -> None:
    """Write down what this node goes by. The caller holds the state directory's lock."""
    try:
        descriptor = os.open(
            state_dir / RUNNING_SETTINGS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(settings))
    except OSError as error:
        _log.warning("settings_not_kept", error=str(error))


def kept_settings(state_dir: Path) -> NodeSettings | None:
    """Return the settings of the node that runs there, or ran last; None: nothing that can be read says so."""
    try:
        return msgspec.json.decode((state_dir / RUNNING_SETTINGS).read_bytes(), type=NodeSettings)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def unheeded(settings: NodeSettings, names: Iterable[str], state_dir: Path) -> tuple[str, ...]:
    """Return, in words, what somebody set and the running node does not go by.

    Args:
        settings: what was set.
        names: which of them were, by field name; the others are defaults, which nobody asked for.
        state_dir: the node's.
    """
    running = kept_settings(state_dir)
    if running is None:
        return ()
    wanted = frozenset(names) - _OF_THE_CLIENT
    return tuple(
        f"{row.name} is {_shown(running, row.name)} there, not {_shown(settings, row.name)}"
        for row in SETTINGS
        if row.name in wanted and getattr(settings, row.name) != getattr(running, row.name)
    )


def _shown(settings: NodeSettings, name: str) -> str:
    value = getattr(settings, name)
    return repr(value) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
