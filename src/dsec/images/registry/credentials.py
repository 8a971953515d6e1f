"""Who we are to a registry: credentials from the files in which container tools keep them.

Places, the first that names the registry counts: ``$REGISTRY_AUTH_FILE``; ``$XDG_RUNTIME_DIR/containers/auth.json``
(for root ``/run/containers/0/auth.json``); ``~/.config/containers/auth.json``; ``$DOCKER_CONFIG/config.json`` or
``~/.docker/config.json``. Sources: containers-auth.json(5), and Docker's documentation of ``docker login``.

In a file, the most specific entry counts: ``host/team/repository``, ``host/team``, ``host``. An entry holds name and
password, or a token that buys others (``identitytoken``); a program ``docker-credential-NAME`` may hold them instead.
Files are read anew for each token, so that a login takes effect on what runs already.
"""

from __future__ import annotations

import base64
import binascii
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.images.registry.reference import DOCKER_HUB, DOCKER_HUB_LOGIN, Repository

_HELPER_TIMEOUT_S = 10.0
_MAXIMUM_FILE_BYTES = 1 << 20
_TOKEN_USER = "<token>"
"""What a credential helper gives for a name when the secret is a token that buys others."""


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Name and password, or a token that buys others. Never printed.

    Attributes:
        user, password: empty: none.
        identity_token: empty: none.
    """

    user: str = ""
    password: str = ""
    identity_token: str = ""

    def __repr__(self) -> str:
        return "Credentials(...)"

    @property
    def basic(self) -> str:
        """Value of an ``Authorization`` header (RFC 7617)."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class _Entry(msgspec.Struct, frozen=True):
    auth: str = ""
    identitytoken: str = ""


class _File(msgspec.Struct, frozen=True, rename={"cred_helpers": "credHelpers", "creds_store": "credsStore"}):
    auths: dict[str, _Entry] = {}
    cred_helpers: dict[str, str] = {}
    creds_store: str = ""


class _Secret(msgspec.Struct, frozen=True, rename="pascal"):
    username: str = ""
    secret: str = ""


def find_credentials(repository: Repository, environment: Mapping[str, str] = os.environ) -> Credentials | None:
    """Return what is known for a repository; None: nothing, so that it is asked anonymously.

    Raises:
        InvalidRequestError: a file cannot be read as what it should be.
    """
    for path in _places(environment):
        content = _read(path)
        found = None if content is None else _in_file(content, repository, path, environment)
        if found is not None:
            return found
    return None


def _places(environment: Mapping[str, str]) -> Iterator[Path]:
    if named := environment.get("REGISTRY_AUTH_FILE"):
        yield Path(named)
        return  # As in podman and skopeo: who names a file means that one.
    if runtime := environment.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "containers/auth.json"
    yield Path(f"/run/containers/{os.geteuid()}/auth.json")
    home = Path(environment.get("HOME", "/nonexistent"))
    yield Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "containers/auth.json"
    yield Path(environment.get("DOCKER_CONFIG") or home / ".docker") / "config.json"


def _read(path: Path) -> _File | None:
    try:
        with path.open("rb") as file:
            data = file.read(_MAXIMUM_FILE_BYTES)
        return msgspec.json.decode(data, type=_File)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        # The content holds secrets, so that nothing of it may be repeated here.
        reason = error.strerror if isinstance(error, OSError) else "it is not the JSON that it should be"
        raise InvalidRequestError(
            f"credentials cannot be read from {path}", detail=str(reason), resolution="log in again, or mend the file"
        ) from None


def _in_file(content: _File, repository: Repository, path: Path, environment: Mapping[str, str]) -> Credentials | None:
    hub = [f"https://{DOCKER_HUB_LOGIN}/v1/"] if repository.host == DOCKER_HUB else []
    for name in [repository.host, *hub]:
        helper = content.cred_helpers.get(name) or content.creds_store
        if helper and (found := _ask_helper(helper, name, environment)) is not None:
            return found
    entries = {_normalized(key): entry for key, entry in content.auths.items()}
    for key in _keys(repository):
        if key in entries:
            return _credentials(entries[key], key, path)
    return None


def _keys(repository: Repository) -> Iterator[str]:
    """Yield what may name a repository, the most specific first."""
    name = str(repository)
    while name:
        yield name
        name = name.rpartition("/")[0]
    if repository.host == DOCKER_HUB:
        yield DOCKER_HUB_LOGIN


def _normalized(key: str) -> str:
    """Return a key without what older tools wrote around it: a scheme, and the version of an API."""
    bare = key.removeprefix("https://").removeprefix("http://").rstrip("/")
    return bare.removesuffix("/v1").removesuffix("/v2").lower()


def _credentials(entry: _Entry, key: str, path: Path) -> Credentials | None:
    if entry.identitytoken:
        return Credentials(identity_token=entry.identitytoken)
    if not entry.auth:
        return None
    try:
        user, colon, password = base64.b64decode(entry.auth, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = ""
    if not colon:
        raise InvalidRequestError(f"the entry {key} of {path} holds no name and password", resolution="log in again")
    return Credentials(user=user, password=password)


def _ask_helper(name: str, host: str, environment: Mapping[str, str]) -> Credentials | None:
    """Ask a credential helper (Docker's protocol: ``get``, the host on standard input, JSON on standard output)."""
    program = shutil.which(f"docker-credential-{name}", path=environment.get("PATH"))
    if program is None or "/" in name:
        return None
    try:
        done = subprocess.run(
            [program, "get"], input=host.encode(), capture_output=True, timeout=_HELPER_TIMEOUT_S, check=False
        )
        secret = msgspec.json.decode(done.stdout, type=_Secret) if done.returncode == 0 else _Secret()
    except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"{program} gave no credentials for {host}", detail=type(error).__name__, resolution="log in again"
        ) from None
    if not secret.secret:
        return None
    if secret.username == _TOKEN_USER:
        return Credentials(identity_token=secret.secret)
    return Credentials(user=secret.username, password=secret.secret)
