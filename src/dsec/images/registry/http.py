"""HTTP to registries: one request at a time, with redirects, errors of ours, and nothing said to whom it is not for.

The library is httpx2, since it streams, knows proxies, and lets each redirect be looked at. What is added:

- *Stalls*: each wait for bytes, either way, has its own bound, so that a transfer may take hours and a dead one ends.
- *Redirects* are followed for reads only, never from TLS to plain HTTP, and the ``Authorization`` header goes to the
  registry itself alone: storage services that registries redirect to must not see it, nor may an attacker who has a
  registry redirect to himself.
- *Encodings* are refused: ranges of compressed bytes would not be ranges of the blob, and would unfold without bound.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass

import httpx2

from dsec import __version__
from dsec.base.errors import StoreUnavailableError
from dsec.images.registry.reference import LAST_PORT, is_loopback, serving_host
from dsec.images.registry.retrying import retry_after_s
from dsec.images.registry.trust import Trust, trust_of

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAXIMUM_REDIRECTS = 5
_CONNECTIONS = 32
_IDLE_S = 60.0
"""A connection is kept for the next read of a layer, which may be some time later and should not wait for TLS."""
_TOLD_BYTES = 2_000
"""Of an error's body, for people."""

Content = bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Bounds on waiting.

    Attributes:
        connect_s: for a connection, TLS included.
        stall_s: for the next bytes, or for some of ours to be taken.
        window_s, least_bytes: a body of which fewer bytes come in so much time of waiting for it has stalled as well.
    """

    connect_s: float = 10.0
    stall_s: float = 20.0
    window_s: float = 30.0
    least_bytes: int = 16_384


class RegistryFailedError(Exception):
    """A registry did not answer, or said that it cannot now: the client's own, told to others as what `reported` makes.

    Attributes:
        brief, detail, resolution: as of `DsecError`.
        is_final: asking again would change nothing.
        retry_after_s: when to ask again, where the registry says it.
    """

    def __init__(
        self,
        brief: str,
        *,
        detail: str = "",
        resolution: str = "see whether the registry is up, and what is between it and this host",
        is_final: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(brief)
        self.brief = brief
        self.detail = detail
        self.resolution = resolution
        self.is_final = is_final
        self.retry_after_s = retry_after_s


@contextmanager
def reported() -> Iterator[None]:
    """Turn what registries fail with into `StoreUnavailableError`."""
    try:
        yield
    except RegistryFailedError as failed:
        error = StoreUnavailableError(failed.brief, detail=failed.detail, resolution=failed.resolution)
        error.retry_after_s = failed.retry_after_s
        raise error from failed


class Response:
    """An answer whose body has not been read. Valid within its context."""

    def __init__(self, response: httpx2.Response, where: str, timeouts: Timeouts) -> None:
        self._response = response
        self._timeouts = timeouts
        self.where = where
        self.status = response.status_code

    @property
    def url(self) -> str:
        return str(self._response.url)

    def header(self, name: str) -> str | None:
        """Return a header; None: it is not there."""
        value = self._response.headers.get(name)
        return None if value is None else str(value)

    def headers(self, name: str) -> list[str]:
        """Return all headers of a name."""
        return [str(value) for value in self._response.headers.get_list(name)]

    def retry_after_s(self) -> float | None:
        """Return when to ask again, where the registry says it."""
        return retry_after_s(self.header("retry-after"), time.time())

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes.

        Raises:
            RegistryFailedError: it ended early, or stalled.
        """
        encoding = self.header("content-encoding")
        if encoding not in (None, "", "identity"):
            raise RegistryFailedError(
                f"{self.where} answered in the encoding {encoding!r}, which nobody asked for", is_final=True
            )
        waited_s, came_bytes, since_s = 0.0, 0, time.monotonic()
        with _translated(self.where):
            async for piece in self._response.aiter_raw():
                waited_s, came_bytes = waited_s + time.monotonic() - since_s, came_bytes + len(piece)
                yield piece
                if waited_s > self._timeouts.window_s:
                    if came_bytes < self._timeouts.least_bytes:
                        raise RegistryFailedError(f"{self.where} sent {came_bytes} bytes in {waited_s:.0f} s")
                    waited_s, came_bytes = 0.0, 0
                since_s = time.monotonic()  # What the reader does meanwhile is not waiting.

    async def read(self, limit_bytes: int) -> bytes:
        """Return the whole body.

        Raises:
            RegistryFailedError: as `pieces`; or it is longer than the limit, and reading was given up.
        """
        data = bytearray()
        async for piece in self.pieces():
            data += piece
            if len(data) > limit_bytes:
                raise RegistryFailedError(
                    f"{self.where} answered with more than {limit_bytes} bytes where that is the most there can be",
                    resolution="do not trust this registry, or push the image again",
                    is_final=True,
                )
        return bytes(data)

    async def told(self) -> str:
        """Return the beginning of an error's body, for people."""
        data = bytearray()
        try:
            async for piece in self.pieces():
                data += piece
                if len(data) >= _TOLD_BYTES:
                    break
        except RegistryFailedError:
            pass  # What came before is all that there is to tell.
        return bytes(data[:_TOLD_BYTES]).decode(errors="replace")


@contextmanager
def _translated(where: str) -> Iterator[None]:
    """Turn the library's exceptions into `RegistryFailedError`."""
    try:
        yield
    except httpx2.TimeoutException as error:
        raise RegistryFailedError(f"{where} stalled", detail=type(error).__name__) from error
    except (httpx2.HTTPError, httpx2.InvalidURL, ssl.SSLError, OSError) as error:
        raise _broken(where, error) from error


def _broken(where: str, error: BaseException) -> RegistryFailedError:
    said = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in said or "certificate verify failed" in said:
        return RegistryFailedError(
            f"{where} shows a certificate that nobody trusted vouches for",
            detail=said,
            resolution="put its authority's certificate into /etc/containers/certs.d/HOST/ca.crt",
            is_final=True,
        )
    if "WRONG_VERSION_NUMBER" in said or "RECORD_LAYER_FAILURE" in said:
        return RegistryFailedError(
            f"{where} does not speak TLS",
            detail=said,
            resolution="have it do so, or mark it `insecure = true` in /etc/containers/registries.conf",
            is_final=True,
        )
    final = isinstance(error, (httpx2.InvalidURL, httpx2.UnsupportedProtocol))
    return RegistryFailedError(f"{where} does not answer", detail=said, is_final=final)


class RegistryHttp:
    """Connections to one registry, and to where it redirects. Used from one event loop.

    Args:
        host: of the registry, with its port.
        timeouts: bounds on waiting.
        environment: where it is looked up how registries are spoken to.
    """

    def __init__(
        self, host: str, timeouts: Timeouts = Timeouts(), *, environment: Mapping[str, str] = os.environ
    ) -> None:
        self.host = host
        self._timeouts = timeouts
        self.trust: Trust = trust_of(host, environment)
        self.base = f"{self.trust.scheme}://{serving_host(host)}"
        self._origin = _origin(httpx2.URL(self.base))
        self._clients: dict[str, httpx2.AsyncClient] = {}

    def _client(self, scheme: str) -> httpx2.AsyncClient:
        """Return the client for a scheme. To read the certificates of all authorities takes longer than a request."""
        if scheme not in self._clients:
            # Whoever is spoken to over TLS by a client that was made for plain HTTP is vouched for by nobody.
            context = self.trust.context() if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._clients[scheme] = httpx2.AsyncClient(
                verify=context,
                timeout=httpx2.Timeout(self._timeouts.stall_s, connect=self._timeouts.connect_s, pool=None),
                limits=httpx2.Limits(
                    max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS, keepalive_expiry=_IDLE_S
                ),
                headers={"User-Agent": f"dsec/{__version__}", "Accept-Encoding": "identity"},
                # A proxy of the environment is for what is beyond this host.
                trust_env=not is_loopback(self.host),
            )
        return self._clients[scheme]

    async def aclose(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()

    def is_own(self, url: str) -> bool:
        """Tell whether a URL is of the registry itself, so that it may be shown who we are."""
        return _origin(httpx2.URL(url)) == self._origin

    @asynccontextmanager
    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = {},
        authorization: str | None = None,
        content: Content = None,
    ) -> AsyncIterator[Response]:
        """Send a request and give its answer, whatever its status; redirects of reads are followed.

        Args:
            url: whole, or a path of the registry.
            authorization: value of that header, shown to the registry alone.

        Raises:
            RegistryFailedError: no answer came, or a redirect is refused.
        """
        target = self.resolved(self.base, url)
        for _ in range(_MAXIMUM_REDIRECTS + 1):
            shown = authorization if self.is_own(target) else None
            async with self._sent(method, target, headers, shown, content) as response:
                location = response.header("location")
                if response.status not in _REDIRECTS or method not in ("GET", "HEAD"):
                    yield response
                    return
            target = self._redirected(target, location, response.where)
        raise RegistryFailedError(f"{self.host} redirects more than {_MAXIMUM_REDIRECTS} times", is_final=True)

    @asynccontextmanager
    async def _sent(
        self, method: str, url: str, headers: Mapping[str, str], authorization: str | None, content: Content
    ) -> AsyncIterator[Response]:
        """Send one request and give its answer."""
        where = _told(method, url)
        shown = {} if authorization is None else {"Authorization": authorization}
        with _translated(where):
            client = self._client(httpx2.URL(url).scheme)
            request = client.build_request(method, url, headers={**headers, **shown}, content=content)
            response = await client.send(request, stream=True)
        try:
            yield Response(response, where, self._timeouts)
        finally:
            await response.aclose()

    def send_to_realm(
        self, method: str, url: str, *, headers: Mapping[str, str], authorization: str | None, content: Content
    ) -> AbstractAsyncContextManager[Response]:
        """Send a request to who gives tokens, which a challenge named. Redirects are not followed: it is shown a
        password.

        Raises:
            RegistryFailedError: no answer came, or that party is less protected than the registry.
        """
        self.check_target(url)
        return self._sent(method, url, headers, authorization, content)

    def resolved(self, base: str, url: str) -> str:
        """Return a URL as it is meant where `base` was answered. Raises `RegistryFailedError` where it is none."""
        try:
            target = httpx2.URL(base).join(url)
            if (target.port or 0) > LAST_PORT:  # Which the library takes, and a connection to which raises anything.
                raise httpx2.InvalidURL(f"there is no port {target.port}")
        except httpx2.InvalidURL as error:
            raise RegistryFailedError(f"{self.host} names {url[:200]!r}, which is no URL", is_final=True) from error
        return str(target)

    def _redirected(self, current: str, location: str | None, where: str) -> str:
        if not location:
            raise RegistryFailedError(f"{where} redirects to nowhere", is_final=True)
        target = self.resolved(current, location)
        self.check_target(target)
        return target

    def check_target(self, url: str) -> None:
        """Refuse a URL, named by a registry, that is less protected than the registry itself.

        Raises:
            RegistryFailedError: it is.
        """
        parsed = httpx2.URL(self.resolved(self.base, url))
        allowed = ("https", "http") if self.trust.is_plain else ("https",)
        if parsed.scheme not in allowed or not parsed.host or parsed.userinfo:
            raise RegistryFailedError(
                f"{self.host} sends us to {_told('', url)}, where nobody is sent from {self.trust.scheme}",
                resolution="have the registry name a place that it can be reached at over TLS",
                is_final=True,
            )


def _origin(url: httpx2.URL) -> tuple[str, str, int]:
    default = 443 if url.scheme == "https" else 80
    return url.scheme, url.host, url.port or default


def _told(method: str, url: str) -> str:
    """Return a request for errors: without query, which may hold signatures, and without credentials."""
    parsed = httpx2.URL(url)
    port = f":{parsed.port}" if parsed.port else ""
    return f"{method} {parsed.scheme}://{parsed.host}{port}{parsed.path}".strip()
