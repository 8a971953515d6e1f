"""DSec: self-hosted sandboxes for training and evaluating agents."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PLACES = {
    "AgentPolicy": "dsec.episode.spec",
    "AsyncClient": "dsec.sdk._async.client",
    "AsyncEpisodes": "dsec.sdk._async.episodes",
    "AsyncSandbox": "dsec.sdk._async.sandbox",
    "CheckpointInfo": "dsec.model.state",
    "Client": "dsec.sdk._sync.client",
    "CommandFailedError": "dsec.sdk.values",
    "DeadlineMode": "dsec.episode.spec",
    "DiskFullAction": "dsec.model.sandbox",
    "EnvironmentMode": "dsec.episode.spec",
    "EpisodeCheck": "dsec.episode.spec",
    "EpisodeEnvironment": "dsec.episode.spec",
    "EpisodeInfo": "dsec.episode.spec",
    "EpisodeLimits": "dsec.episode.spec",
    "EpisodeRecovery": "dsec.episode.spec",
    "EpisodeSpec": "dsec.episode.spec",
    "EpisodeState": "dsec.episode.spec",
    "Episodes": "dsec.sdk._sync.episodes",
    "FingerprintReport": "dsec.model.state",
    "ImageProgress": "dsec.model.image_work",
    "ImageVerified": "dsec.model.image_work",
    "ImageWorkInfo": "dsec.model.image_work",
    "JobInfo": "dsec.model.state",
    "JobReport": "dsec.model.state",
    "Lifetime": "dsec.model.sandbox",
    "LostFiles": "dsec.episode.spec",
    "MigrationReport": "dsec.model.state",
    "ModelEndpoint": "dsec.episode.endpoint",
    "Network": "dsec.model.sandbox",
    "PackReport": "dsec.model.state",
    "PublishedImage": "dsec.model.image_work",
    "PushedImage": "dsec.model.image_work",
    "Resources": "dsec.model.sandbox",
    "RunResult": "dsec.sdk.values",
    "Sandbox": "dsec.sdk._sync.sandbox",
    "SandboxSpec": "dsec.model.sandbox",
    "ScrubRules": "dsec.model.state",
    "SnapshotInfo": "dsec.model.state",
    "Verdict": "dsec.episode.log_events",
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
