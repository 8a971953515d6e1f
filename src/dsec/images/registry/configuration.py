"""What registries.conf says of registries (containers-registries.conf(5), version 2): where other container tools look
for it, so that nobody says it twice.

Read are ``prefix``, ``location``, ``insecure``, ``blocked``, ``mirror-by-digest-only`` and ``[[registry.mirror]]`` with
``location``, ``insecure`` and ``pull-from-mirror``. Short names are not read, nor is a ``location`` that rewrites its
prefix.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.images.registry.reference import Reference, Repository

_CONFIGURATION = Path("/etc/containers/registries.conf")
MAXIMUM_MIRRORS = 7
"""Of one image, which with the registry itself are the origins that a layer may have."""


class Mirror(msgspec.Struct, frozen=True, rename="kebab"):
    """One mirror of a registry."""

    location: str = ""
    insecure: bool = False
    pull_from_mirror: Literal["all", "digest-only", "tag-only", ""] = ""

    def gives(self, reference: Reference, *, by_digest_only: bool) -> bool:
        """Return whether an image may be pulled from it."""
        wanted = self.pull_from_mirror or ("digest-only" if by_digest_only else "all")
        return wanted == "all" or (wanted == "digest-only") == bool(reference.digest)


class Registry(msgspec.Struct, frozen=True, rename="kebab"):
    """What is said of a registry, or of a part of one."""

    prefix: str = ""
    location: str = ""
    insecure: bool = False
    blocked: bool = False
    mirror_by_digest_only: bool = False
    mirror: tuple[Mirror, ...] = ()

    @property
    def covered(self) -> str:
        """What it is said of."""
        return (self.prefix or self.location).lower().rstrip("/")


class _Configuration(msgspec.Struct, frozen=True):
    registry: list[Registry] = []


def registries(environment: Mapping[str, str]) -> list[Registry]:
    """Return what is said of registries; the last that speaks of one counts.

    Raises:
        InvalidRequestError: a configuration file cannot be read.
    """
    return [registry for path in _files(environment) for registry in _read(path).registry]


def registry_of(repository: Repository, environment: Mapping[str, str]) -> Registry | None:
    """Return what is said of a repository: by the longest prefix, and of several the last. Raises as `registries`."""
    name = str(repository).lower()
    found: Registry | None = None
    for registry in registries(environment):
        longer = found is None or len(registry.covered) >= len(found.covered)
        if registry.covered and longer and _rest(registry.covered, name) is not None:
            found = registry
    return found


def mirrors_of(reference: Reference, environment: Mapping[str, str]) -> list[Reference]:
    """Return where an image is to be asked for before its registry is, in order. Raises as `registries`.

    Raises also:
        InvalidRequestError: its registry is blocked, or a mirror's location is none.
    """
    registry = registry_of(reference.repository, environment)
    if registry is None:
        return []
    if registry.blocked:
        raise InvalidRequestError(
            f"{registry.covered} is blocked on this host",
            resolution="whoever runs the host said so in registries.conf; name another registry",
        )
    rest = _rest(registry.covered, str(reference.repository)) or ""
    by_digest_only = registry.mirror_by_digest_only
    found = [mirror for mirror in registry.mirror if mirror.gives(reference, by_digest_only=by_digest_only)]
    return [
        msgspec.structs.replace(reference, repository=_repository(mirror.location + rest))
        for mirror in found[:MAXIMUM_MIRRORS]
    ]


def is_insecure(host: str, environment: Mapping[str, str]) -> bool:
    """Tell whether a host is marked insecure, as a registry or as a mirror. The last that speaks of it counts."""
    marked = False
    for registry in registries(environment):
        if host in (registry.prefix.lower(), registry.location.lower()):
            marked = registry.insecure
        for mirror in registry.mirror:
            if host == mirror.location.lower().partition("/")[0]:
                marked = marked or mirror.insecure
    return marked


def _rest(covered: str, name: str) -> str | None:
    """Return what of a repository's name comes behind a prefix, with its slash; None: it does not begin so."""
    if covered.startswith("*."):
        host, slash, path = name.partition("/")
        return f"{slash}{path}" if host.lower().endswith(covered[1:]) else None
    if name.lower() == covered:
        return ""
    return name[len(covered) :] if name.lower().startswith(f"{covered}/") else None


def _repository(name: str) -> Repository:
    host, slash, path = name.partition("/")
    if not (host and slash and path):
        raise InvalidRequestError(
            f"{name[:200]!r} in registries.conf is no location of a mirror", resolution="write it as HOST[:PORT][/PATH]"
        )
    return Repository(host=host.lower(), path=path)


def _files(environment: Mapping[str, str]) -> Iterator[Path]:
    if named := environment.get("CONTAINERS_REGISTRIES_CONF"):
        yield Path(named)
        return
    yield _CONFIGURATION
    yield from sorted(_CONFIGURATION.with_name("registries.conf.d").glob("*.conf"))
    yield Path(environment.get("HOME") or "/nonexistent") / ".config/containers/registries.conf"


def _read(path: Path) -> _Configuration:
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), type=_Configuration)
    except (FileNotFoundError, NotADirectoryError):
        return _Configuration()
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidRequestError(
            f"{path}, which says what registries are trusted, cannot be read", detail=str(error), resolution="mend it"
        ) from error
