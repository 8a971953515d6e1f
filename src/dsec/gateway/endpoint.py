"""Configurations of gateways that stand before one endpoint alone: one records it, the other answers in its place.

For agents, tests and demos, which want one URL and no file: open to callers without a key, on this host only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dsec.base.errors import InvalidRequestError
from dsec.base.toml_source import TomlSource
from dsec.gateway.config import Api, Door, GatewayConfig, Model, Service
from dsec.gateway.config_rules import check_config
from dsec.gateway.replay import Recordings
from dsec.routing.backend import BackendKind


def _door(port: int, state: Path, record_to: Path | None = None) -> Door:
    recorded = str(record_to.absolute()) if record_to is not None else None
    return Door(port=port, state_dir=str(state), open=True, record_to=recorded, grace_s=1.0)


def replaying(
    recordings: Path, *, names: Sequence[str] = (), speed: float = 1.0, port: int = 0, state: Path
) -> GatewayConfig:
    """Return the configuration that answers from recordings, by the place in each conversation.

    Args:
        recordings: a directory of them, or a file that holds one conversation.
        names: further names that the first recorded model answers to.
        speed: how many times faster than recorded; infinite: at once.
        port: where it listens; 0: any free one.
        state: for its ledger.

    Raises:
        NotFoundError, StateCorruptedError, InvalidRequestError: there is none, or it cannot be read.
    """
    models = sorted(Recordings(recordings).models)
    if not models:
        raise InvalidRequestError(f"no answer in {recordings} is whole", resolution="record again")
    backends = tuple(
        Service(
            name=model,
            group=model,
            url=str(recordings.absolute()),
            kind=BackendKind.REPLAY,
            replay_speed=speed,
            replay_conversations=True,
        )
        for model in models
    )
    offered = {model: Model() for model in models}
    offered |= {name: Model(groups=(models[0],)) for name in names if name not in offered}
    return GatewayConfig(gateway=_door(port, state), models=offered, backends=backends)


def recorded(
    url: str, recordings: Path, *, names: Sequence[str], key_variable: str = "", port: int = 0, state: Path
) -> GatewayConfig:
    """Return the configuration that passes everything on to an endpoint, and records what it answers.

    Args:
        url: of the endpoint, up to and with its version.
        recordings: directory that they go to.
        names: of the models there.
        key_variable: environment variable that holds the endpoint's key; empty: it needs none.
        port: where it listens; 0: any free one.
        state: for its ledger.

    Raises:
        InvalidRequestError: the URL is none.
    """
    backends = tuple(
        Service(name=name, group=name, url=url, apis=(Api.CHAT,), key_env=key_variable or None) for name in names
    )
    models = {name: Model(accept_other_models=True) for name in names}
    config = GatewayConfig(gateway=_door(port, state, recordings), models=models, backends=backends)
    check_config(TomlSource(url, {}, {}), config)
    return config
