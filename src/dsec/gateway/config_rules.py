"""What must hold between the parts of a configuration: names that meet, ranges, addresses."""

from __future__ import annotations

import math
from difflib import get_close_matches
from urllib.parse import urlsplit

from dsec.base.errors import InvalidRequestError
from dsec.base.toml_source import Key, TomlSource
from dsec.gateway.config import Api, Door, GatewayConfig, Model, Service
from dsec.routing.backend import BackendKind

_FORBIDDEN_HEADERS = (
    "authorization",
    "x-api-key",
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "cookie",
)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_FITTING = {
    BackendKind.OPENAI: tuple(Api),  # Inference servers of this kind speak messages, too.
    BackendKind.ANTHROPIC: (Api.MESSAGES, Api.CHAT),
    BackendKind.REPLAY: tuple(Api),
}


def check_config(source: TomlSource, config: GatewayConfig) -> None:
    """Refuse a configuration whose parts contradict each other.

    Raises:
        InvalidRequestError: names file, line and what was expected.
    """
    _check_door(source, config)
    if not config.backends:
        raise source.error(("backends",), "is missing", resolution="write at least one [[backends]] table")
    names: dict[str, int] = {}
    for at, service in enumerate(config.backends):
        _check_service(source, service, at)
        if service.name in names:
            raise source.error(("backends", at, "name"), f"is {service.name!r} again", resolution="names must differ")
        names[service.name] = at
    groups = {service.group for service in config.backends}
    _check_replays(source, config)
    for name, model in config.models.items():
        _check_model(source, name, model, config.groups(name), groups)
    for name, project in config.projects.items():
        if not project.weight > 0:
            raise source.error(
                ("projects", name, "weight"), f"is {project.weight}", resolution="write a number above 0"
            )


def _check_door(source: TomlSource, config: GatewayConfig) -> None:
    door = config.gateway
    if not 0 <= door.port <= 65_535:
        raise source.error(("gateway", "port"), f"is {door.port}", resolution="write a port from 0 to 65535")
    try:
        check_door(door)
    except InvalidRequestError as error:
        raise source.error(("gateway", "open"), f"is true: {error.brief}", resolution=error.resolution) from error
    for key in ("maximum_body", "maximum_answer", "maximum_event", "ledger_segment"):
        if getattr(door, f"{key}_bytes") < 1024:
            raise source.error(("gateway", key), "is less than 1 KiB", resolution='write a size such as "32 MiB"')


def check_door(door: Door) -> None:
    """Refuse a gateway that is open to callers without a key and heard by other hosts.

    Raises:
        InvalidRequestError: it is.
    """
    if door.open and door.host not in _LOOPBACK:
        raise InvalidRequestError(
            f"at {door.host} anybody could spend your money", resolution="listen on 127.0.0.1, or give callers keys"
        )


def _check_service(source: TomlSource, service: Service, at: int) -> None:
    path: tuple[Key, ...] = ("backends", at)
    if not service.name or not service.group:
        raise source.error(path, "has no name or no group", resolution="write both")
    if service.kind is not BackendKind.REPLAY:
        _check_url(source, service, path)
    if not service.replay_speed > 0:
        raise source.error(
            (*path, "replay_speed"), f"is {service.replay_speed}", resolution="write a number above 0, or inf"
        )
    if service.key_env and service.key_file:
        raise source.error((*path, "key_file"), "stands beside key_env", resolution="write one of them")
    for api in service.apis:
        if api not in _FITTING[service.kind]:
            raise source.error(
                (*path, "apis"),
                f"has {api.value!r}, which a backend of kind {service.kind.value!r} does not speak",
                resolution=f"write some of: {', '.join(fitting.value for fitting in _FITTING[service.kind])}",
            )
    for header in service.headers:
        if header.lower() in _FORBIDDEN_HEADERS:
            raise source.error((*path, "headers", header), "is not yours to set", resolution="use key_env or key_file")
    if service.prices is not None and service.price_list is not None:
        raise source.error((*path, "price_list"), "stands beside prices", resolution="write one of them")


def _check_replays(source: TomlSource, config: GatewayConfig) -> None:
    """Refuse that a call may be answered by a recording or by a live service, whichever is free."""
    for name in sorted({*config.models, *(service.group for service in config.backends)}):
        groups = config.groups(name)
        kinds = {service.kind is BackendKind.REPLAY for service in config.backends if service.group in groups}
        if len(kinds) > 1:
            raise source.error(
                ("models", name) if name in config.models else ("backends",),
                f"has live and replayed backends for {name!r}",
                resolution="give replays groups of their own: what is missing there must never become a live call",
            )


def _check_url(source: TomlSource, service: Service, path: tuple[Key, ...]) -> None:
    try:
        parts = urlsplit(service.url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or "@" in service.url or "?" in service.url or "#" in service.url:
        raise source.error(
            (*path, "url"),
            f"is {service.url!r}",
            resolution="write http:// or https://, a host and the base path, without credentials or a query",
        )


def _check_model(source: TomlSource, name: str, model: Model, answering: tuple[str, ...], groups: set[str]) -> None:
    path: tuple[Key, ...] = ("models", name)
    for group in answering:
        if group not in groups:
            close = get_close_matches(group, groups, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise source.error(
                path,
                f"needs the group {group!r}, which no backend has",
                resolution=f"{hint}groups are: {', '.join(sorted(groups))}",
            )
    if not 1 <= model.attempts <= 16:
        raise source.error((*path, "attempts"), f"is {model.attempts}", resolution="write a number from 1 to 16")
    if not 0 <= model.required_success <= 1:
        raise source.error((*path, "required_success"), f"is {model.required_success}", resolution="write 0 to 1")
    for key in ("queue_timeout", "first_byte_timeout", "stall_timeout", "deadline"):
        value = getattr(model, f"{key}_s")
        if not (math.isfinite(value) and value > 0):
            raise source.error((*path, key), f"is {value}", resolution="write a time above 0")


def check_known_project(name: str) -> str:
    """Return a project's name if it can be one.

    Raises:
        InvalidRequestError: it cannot.
    """
    if not name or len(name) > 64 or not name.isprintable() or any(character in name for character in '"\\/ '):
        raise InvalidRequestError(
            f"{name[:80]!r} is not a project's name", resolution="use 1 to 64 characters without spaces and slashes"
        )
    return name
