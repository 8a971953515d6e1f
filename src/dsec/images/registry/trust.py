"""How a registry is spoken to: over TLS, unless its host is this machine or its owner has marked it insecure.

Marks are where other container tools look for them, so that nobody says it twice: ``insecure = true`` of a
``[[registry]]`` in registries.conf (containers-registries.conf(5)); certificates of private authorities as ``*.crt`` in
``HOST[:PORT]/`` below ``~/.config/containers/certs.d``, ``/etc/containers/certs.d`` or ``/etc/docker/certs.d``
(containers-certs.d(5)). A registry of this machine that has such a certificate is spoken to over TLS too.

What differs from those tools: *insecure* means plain HTTP, never TLS with a certificate that nobody vouches for, which
looks safer than it is. Mirrors, rewritten locations and short names of registries.conf are not followed.
"""

from __future__ import annotations

import os
import ssl
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.images.registry.reference import is_loopback

_CERTIFICATES = (Path("/etc/containers/certs.d"), Path("/etc/docker/certs.d"))
_CONFIGURATION = Path("/etc/containers/registries.conf")


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """How one registry is spoken to.

    Attributes:
        is_plain: over HTTP.
        authorities: files of certificates that are trusted for it besides the system's.
    """

    is_plain: bool = False
    authorities: tuple[Path, ...] = ()

    @property
    def scheme(self) -> str:
        return "http" if self.is_plain else "https"

    def context(self) -> ssl.SSLContext:
        """Return what connections over TLS are verified by."""
        context = ssl.create_default_context()
        for file in self.authorities:
            try:
                context.load_verify_locations(file)
            except (OSError, ssl.SSLError) as error:
                raise InvalidRequestError(f"{file} holds no certificate that can be used", detail=str(error)) from error
        return context


class _Registry(msgspec.Struct, frozen=True):
    prefix: str = ""
    location: str = ""
    insecure: bool = False


class _Configuration(msgspec.Struct, frozen=True):
    registry: list[_Registry] = []


def trust_of(
    host: str,
    environment: Mapping[str, str] = os.environ,
) -> Trust:
    """Say how a registry is spoken to.

    Raises:
        InvalidRequestError: a configuration file cannot be read.
    """
    places = (_home(environment) / ".config/containers/certs.d", *_CERTIFICATES)
    authorities = tuple(file for place in places for file in sorted((place / host).glob("*.crt")))
    is_plain = (is_loopback(host) and not authorities) or _is_marked(host, environment)
    return Trust(is_plain=is_plain, authorities=authorities)


def _is_marked(host: str, environment: Mapping[str, str]) -> bool:
    """Tell whether a host is marked insecure. The last file that speaks of it counts."""
    marked = False
    for path in _files(environment):
        for registry in _read(path).registry:
            if host in (registry.prefix.lower(), registry.location.lower()):
                marked = registry.insecure
    return marked


def _files(environment: Mapping[str, str]) -> Iterator[Path]:
    if named := environment.get("CONTAINERS_REGISTRIES_CONF"):
        yield Path(named)
        return
    yield _CONFIGURATION
    yield from sorted(_CONFIGURATION.with_name("registries.conf.d").glob("*.conf"))
    yield _home(environment) / ".config/containers/registries.conf"


def _home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("HOME") or "/nonexistent")


def _read(path: Path) -> _Configuration:
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), type=_Configuration)
    except (FileNotFoundError, NotADirectoryError):
        return _Configuration()
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidRequestError(
            f"{path}, which says what registries are trusted, cannot be read", detail=str(error), resolution="mend it"
        ) from error
