"""The way to one backend: its address, its key, and the failures of HTTP in the words of routing.

Security: nothing of a caller's headers reaches a backend but the few that are listed here, so neither a project's key
nor a smuggled header does. Redirects are not followed, cookies not kept, proxies of the environment not used: a
backend's key goes to the address in the configuration alone. What a backend says never carries its key further.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

import aiohttp
from yarl import URL

from dsec import __version__
from dsec.base.errors import InvalidRequestError
from dsec.gateway.config import Api, Service
from dsec.gateway.failing import AttemptFailedError
from dsec.routing.backend import BackendKind
from dsec.routing.retrying import Failure, FailureKind

_PATHS = {Api.CHAT: "/chat/completions", Api.RESPONSES: "/responses", Api.MESSAGES: "/messages"}
PASSED_HEADERS = ("anthropic-version", "anthropic-beta", "openai-beta")
DEADLINE_HEADER = "X-DSec-Deadline-S"
"""Seconds that are left for a call: taken from callers, and told to backends."""
_REMOVED = b"[removed]"
_ANTHROPIC_VERSION = "2023-06-01"
_IDLE_S = 30.0


class Secret:
    """A backend's key, which no representation shows."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return "Secret(...)"


def read_secret(service: Service, directory: Path, environment: Mapping[str, str]) -> Secret | None:
    """Return a backend's key, or None if it needs none.

    Raises:
        InvalidRequestError: it is not where the configuration says.
    """
    if service.key_env is not None:
        text = environment.get(service.key_env, "")
        where = f"the environment variable {service.key_env}"
    elif service.key_file is not None:
        where = str(directory / service.key_file)
        try:
            text = (directory / service.key_file).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequestError(f"the key of backend {service.name!r} is not in {where}: {error}") from error
    else:
        return None
    text = text.strip()
    if not text or not text.isascii() or not text.isprintable():
        raise InvalidRequestError(
            f"the key of backend {service.name!r} is not in {where}", resolution="put it there, as one line of ASCII"
        )
    return Secret(text)


def open_session() -> aiohttp.ClientSession:
    """Return a pool of connections to all backends."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S, enable_cleanup_closed=False)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        skip_auto_headers=("User-Agent", "Accept-Encoding", "Content-Type", "Accept"),
        trust_env=False,
    )


class Upstream:
    """One backend's address and key.

    Args:
        service: as configured.
        secret: its key.
        session: the pool of connections.
    """

    def __init__(self, service: Service, secret: Secret | None, session: aiohttp.ClientSession) -> None:
        self.service = service
        self._secret = secret
        self._needle = secret.text.encode() if secret is not None else b""
        self._session = session
        base = service.url.rstrip("/")
        self._urls = {api: URL(base + path, encoded=False) for api, path in _PATHS.items()}
        self._headers = _own_headers(service, secret)
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=service.connect_timeout_s)

    async def post(self, api: Api, body: bytes, passed: Mapping[str, str], deadline_s: float) -> aiohttp.ClientResponse:
        """Send a call and return the answer when its head is here.

        Args:
            api: the protocol.
            body: of the call.
            passed: the caller's headers; only those of `PASSED_HEADERS` are sent on.
            deadline_s: what is left for the call, which the backend is told.

        Raises:
            AttemptFailedError: there is no answer.
        """
        headers = {**self._headers, DEADLINE_HEADER: f"{deadline_s:.3f}"}
        for name in PASSED_HEADERS:
            if (value := passed.get(name)) is not None:
                headers[name] = value
        try:
            return await self._session.post(
                self._urls[api], data=body, headers=headers, allow_redirects=False, timeout=self._timeout
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, ssl.SSLError) as error:
            raise self.failed(FailureKind.UNREACHABLE, error) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self.failed(FailureKind.BROKEN, error) from error

    def failed(self, kind: FailureKind, error: BaseException | str) -> AttemptFailedError:
        """Return the failure of this backend, without its address or key."""
        what = error if isinstance(error, str) else type(error).__name__
        return AttemptFailedError(Failure(kind=kind, brief=f"{self.service.name}: {what}"))

    def cleaned(self, data: bytes) -> bytes:
        """Return what the backend said without its key."""
        if self._needle and self._needle in data:
            return data.replace(self._needle, _REMOVED)
        return data


def _own_headers(service: Service, secret: Secret | None) -> dict[str, str]:
    headers = {
        "User-Agent": f"dsec-gateway/{__version__}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Accept-Encoding": "identity",
        **service.headers,
    }
    if service.kind is BackendKind.ANTHROPIC:
        headers["anthropic-version"] = _ANTHROPIC_VERSION
        if secret is not None:
            headers["x-api-key"] = secret.text
    elif secret is not None:
        headers["Authorization"] = f"Bearer {secret.text}"
    return headers


def environment() -> Mapping[str, str]:
    """Return the process's environment, where keys may be."""
    return os.environ
