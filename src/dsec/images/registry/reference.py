"""References to what lies in a registry: ``HOST[:PORT]/REPOSITORY``, then ``:TAG`` or ``@sha256:DIGEST`` or both. Pure.

The grammar is that of the OCI distribution specification 1.1 ("Pulling manifests"). It is ambiguous in one place: the
first component of a name may be a host or a part of the repository. Here, as in other tools, it is a host if it holds a
dot or a colon, or is ``localhost``. Other tools put a public registry in the place of a host that is missing; we do
not: whose images run on this machine is for its owner to say.
"""

from __future__ import annotations

import ipaddress
import re

from dsec.base.errors import InvalidRequestError
from dsec.model.value import Value

SCHEME = "oci://"
LAST_PORT = 65_535
MAXIMUM_NAME_LENGTH = 255
"""Of host and repository together, as registries bound it."""
DOCKER_HUB, DOCKER_HUB_LOGIN = "docker.io", "index.docker.io"
"""The one registry whose name is not that of the host that serves it (`distribution/reference`, normalize.go): people
log in at the second name, and repositories of one part lie in ``library/``.
"""
_DOCKER_HUB_SERVER = "registry-1.docker.io"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:.]+\])(?::(?P<port>[0-9]{{1,5}}))?")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_FORM = "write it as HOST[:PORT]/REPOSITORY:TAG or HOST[:PORT]/REPOSITORY@sha256:DIGEST"


class Repository(Value, frozen=True):
    """A repository of a registry.

    Attributes:
        host: name or address, with the port where one was given.
        path: the repository's name.
    """

    host: str
    path: str

    def __str__(self) -> str:
        return f"{self.host}/{self.path}"

    def blob_url(self, digest: str) -> str:
        """Return the URL by which a layer's record names a blob of this repository."""
        return f"{SCHEME}{self}@{digest}"


class Reference(Value, frozen=True):
    """An image in a registry. The digest counts where there is one.

    Attributes:
        repository: where.
        tag: empty: none.
        digest: ``sha256:...``; empty: none.
    """

    repository: Repository
    tag: str = ""
    digest: str = ""

    @property
    def target(self) -> str:
        """What a registry is asked for."""
        return self.digest or self.tag

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.repository}{tag}{digest}"


def parse_reference(text: str) -> Reference:
    """Return the reference that a text is; without tag and digest, its tag is ``latest``.

    Raises:
        InvalidRequestError: it is none, or names no host.
    """
    name, at, digest = text.partition("@")
    if at and not is_digest(digest):
        raise _refused(text, f"{digest[:80]!r} is no sha256 digest")
    head, slash, tail = name.rpartition("/")
    tail, colon, tag = tail.partition(":")
    if colon and _TAG.fullmatch(tag) is None:
        raise _refused(text, f"{tag[:40]!r} is no tag")
    repository = _repository(text, head + slash + tail)
    return Reference(repository=repository, tag=tag or ("" if at else "latest"), digest=digest)


def names_registry(text: str) -> bool:
    """Tell whether a text is meant as a reference to a registry: what stands before its first slash is like a host."""
    host, slash, _ = text.partition("/")
    return bool(slash) and _is_host_like(host)


def parse_blob_url(url: str) -> tuple[Repository, str]:
    """Return repository and digest of ``oci://HOST[:PORT]/REPOSITORY@sha256:DIGEST``.

    Raises:
        InvalidRequestError: that is no such URL.
    """
    name, _, digest = url.removeprefix(SCHEME).partition("@")
    if not url.startswith(SCHEME) or not is_digest(digest):
        raise InvalidRequestError(
            f"{url[:200]!r} names no blob of a registry",
            resolution=f"write it as {SCHEME}HOST[:PORT]/REPOSITORY@sha256:DIGEST",
        )
    return _repository(url, name), digest


def is_digest(text: str) -> bool:
    """Tell whether a text has the form of a digest that we can verify."""
    return _DIGEST.fullmatch(text) is not None


def is_loopback(host: str) -> bool:
    """Tell whether a host, with or without a port, is this machine by its name alone."""
    name = host_name(host)
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def serving_host(host: str) -> str:
    """Return the host, with its port, that answers for a registry."""
    return _DOCKER_HUB_SERVER if host == DOCKER_HUB else host


def host_name(host: str) -> str:
    """Return a host without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _repository(text: str, name: str) -> Repository:
    host, slash, path = name.partition("/")
    if not slash or not _is_host_like(host):
        raise _refused(text, "it names no registry; none is implied")
    match = _HOST.fullmatch(host)
    if match is None or int(match["port"] or 0) > LAST_PORT:
        raise _refused(text, f"{host[:80]!r} is no host")
    if _REPOSITORY.fullmatch(path) is None:
        raise _refused(text, f"{path[:80]!r} is no repository (lower-case letters, digits, '.', '_', '-' and '/')")
    if len(name) > MAXIMUM_NAME_LENGTH:
        raise _refused(text, f"host and repository have {len(name)} characters, more than {MAXIMUM_NAME_LENGTH}")
    host = host.lower()
    if host in (DOCKER_HUB, DOCKER_HUB_LOGIN):
        return Repository(host=DOCKER_HUB, path=path if "/" in path else f"library/{path}")
    return Repository(host=host, path=path)


def _is_host_like(name: str) -> bool:
    return "." in name or ":" in name or name.lower() == "localhost"


def _refused(text: str, detail: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{text[:200]!r} is no reference to an image in a registry", detail=detail, resolution=_FORM
    )
