"""A backend over HTTP: its address, its key, and the failures of HTTP in the words of routing.

Security: nothing of a caller's headers reaches a backend but the few that are listed here, so neither a project's key
nor a smuggled header does. Redirects are not followed, cookies not kept, proxies of the environment not used: a
backend's key goes to the address in the configuration alone. What a backend says never carries its key further.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

import aiohttp
from yarl import URL

from dsec import __version__
from dsec.base.errors import InvalidRequestError
from dsec.gateway.config import Api, Service
from dsec.gateway.upstream import DEADLINE_HEADER, failed
from dsec.routing.backend import BackendKind
from dsec.routing.retrying import FailureKind

_PATHS = {Api.CHAT: "/chat/completions", Api.RESPONSES: "/responses", Api.MESSAGES: "/messages"}
PASSED_HEADERS = ("anthropic-version", "anthropic-beta", "openai-beta")
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


class HttpAnswer:
    """An answer over HTTP.

    Args:
        service: whose it is.
        response: whose head is here.
    """

    __slots__ = ("_response", "_service", "content_type", "headers", "status")

    def __init__(self, service: Service, response: aiohttp.ClientResponse) -> None:
        self._service = service
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self.content_type = response.content_type

    async def read(self) -> bytes:
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise failed(self._service, FailureKind.BROKEN, error) from error

    def close(self, *, whole: bool) -> None:
        if whole:
            self._response.release()
        else:
            self._response.close()  # The backend notices that nobody wants the rest.


class HttpUpstream:
    """One backend over HTTP.

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
        self._headers = {api: _own_headers(service, secret, api) for api in Api}
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=service.connect_timeout_s)

    async def post(self, api: Api, body: bytes, passed: Mapping[str, str], deadline_s: float) -> HttpAnswer:
        headers = {**self._headers[api], DEADLINE_HEADER: f"{deadline_s:.3f}"}
        for name in PASSED_HEADERS:
            if (value := passed.get(name)) is not None:
                headers[name] = value
        try:
            response = await self._session.post(
                self._urls[api], data=body, headers=headers, allow_redirects=False, timeout=self._timeout
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, ssl.SSLError) as error:
            raise failed(self.service, FailureKind.UNREACHABLE, error) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise failed(self.service, FailureKind.BROKEN, error) from error
        return HttpAnswer(self.service, response)

    def cleaned(self, data: bytes) -> bytes:
        if self._needle and self._needle in data:
            return data.replace(self._needle, _REMOVED)
        return data


def _own_headers(service: Service, secret: Secret | None, api: Api) -> dict[str, str]:
    headers = {
        "User-Agent": f"dsec-gateway/{__version__}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Accept-Encoding": "identity",
        **service.headers,
    }
    if api is Api.MESSAGES:
        headers["anthropic-version"] = _ANTHROPIC_VERSION
    if service.kind is BackendKind.ANTHROPIC and api is Api.MESSAGES:
        if secret is not None:
            headers["x-api-key"] = secret.text
    elif secret is not None:
        headers["Authorization"] = f"Bearer {secret.text}"
    return headers
