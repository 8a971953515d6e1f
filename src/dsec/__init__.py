"""DSec: self-hosted sandboxes for training and evaluating agents."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PLACES = {
    "AsyncClient": "dsec.sdk._async.client",
    "AsyncSandbox": "dsec.sdk._async.sandbox",
    "CheckpointInfo": "dsec.model.state",
    "Client": "dsec.sdk._sync.client",
    "CommandFailedError": "dsec.sdk.values",
    "DiskFullAction": "dsec.model.sandbox",
    "FingerprintReport": "dsec.model.state",
    "JobInfo": "dsec.model.state",
    "JobReport": "dsec.model.state",
    "Lifetime": "dsec.model.sandbox",
    "MigrationReport": "dsec.model.state",
    "Network": "dsec.model.sandbox",
    "PackReport": "dsec.model.state",
    "Resources": "dsec.model.sandbox",
    "RunResult": "dsec.sdk.values",
    "Sandbox": "dsec.sdk._sync.sandbox",
    "ScrubRules": "dsec.model.state",
    "SnapshotInfo": "dsec.model.state",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for (PEP 562): `import dsec` itself costs nothing.

    `__init__.pyi` tells type checkers the same.
    """
    place = _PLACES.get(name)
    if place is None and name.endswith("Error"):
        place = "dsec.base.errors"
    if place is None:
        raise AttributeError(f"module 'dsec' has no attribute {name!r}")
    value = getattr(importlib.import_module(place), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
