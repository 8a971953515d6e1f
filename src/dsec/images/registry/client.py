"""A client of the OCI distribution API, version 2, for one registry (OCI distribution specification 1.1).

Theory. One request is one value (`Ask`). It is answered with an open response whose status was expected, or fails with
a typed error; in between it may be sent several times: after a 401 with what the challenge wants, and after what may go
away by itself, with pauses (`retrying`). A registry that says "not before" says it to all requests of this client.
Bodies are the caller's: what breaks off in the middle of one is resumed by those who know what they have (`blobs`,
`download`, `upload`).

A registry is not trusted: everything that it gives is bounded in size and compared with its digest, and a digest comes
from whoever named the image. Only what stands under a *tag* is what the registry says (docs/registry.md).
"""

from __future__ import annotations

import hashlib
import math
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import anyio

from dsec.base.errors import ObjectNotFoundError, PermissionDeniedError, UnauthorizedError
from dsec.images.registry import media
from dsec.images.registry.auth import Access, RegistryAuthorizer
from dsec.images.registry.http import Content, RegistryFailedError, RegistryHttp, Response, Timeouts, reported
from dsec.images.registry.reference import Reference, Repository, is_digest
from dsec.images.registry.retrying import RETRIED_STATUSES, Backoff

_MAXIMUM_DIGITS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """How a client behaves.

    Attributes:
        backoff: when a registry is asked again.
        timeouts: bounds on waiting.
        environment: where credentials and configuration are looked for.
        sleep: waits for seconds.
        now_s: seconds of a clock that never goes back.
        draw: draws a number, 0 to 1.
    """

    backoff: Backoff = field(default_factory=Backoff)
    timeouts: Timeouts = field(default_factory=Timeouts)
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    now_s: Callable[[], float] = anyio.current_time
    draw: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request.

    Attributes:
        method, url: as of HTTP; a URL without host is one of the registry.
        access: what it does, for tokens.
        expected: statuses that are answers.
        headers, content: as of HTTP.
        is_repeatable: may be sent again after a failure.
    """

    method: str
    url: str
    access: Access
    expected: frozenset[int] = frozenset({200})
    headers: Mapping[str, str] = field(default_factory=dict)
    content: Content = None
    is_repeatable: bool = True


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest or index as a registry gave it, verified as far as it was asked for by digest.

    Attributes:
        digest: of its bytes.
        data: its bytes.
        document: read.
    """

    digest: str
    data: bytes
    document: media.Document


class RegistryClient:
    """A client of one registry; close it with `aclose`. Used from one event loop.

    Args:
        host: of the registry, with its port.
        options: how it behaves.

    Attributes:
        resting_until_s: of `time.monotonic`: who has the choice asks another registry until then.
    """

    def __init__(self, host: str, options: ClientOptions = ClientOptions()) -> None:
        self.host = host
        self.options = options
        self.http = RegistryHttp(host, options.timeouts, environment=options.environment)
        self._authorizer = RegistryAuthorizer(self.http, options.environment)
        self._not_before_s = 0.0
        self.resting_until_s = -math.inf

    async def aclose(self) -> None:
        """Close all connections."""
        await self.http.aclose()

    @asynccontextmanager
    async def answered(self, ask: Ask) -> AsyncIterator[Response]:
        """Give the answer to a request, its body unread.

        Raises:
            RegistryFailedError: none came, after all tries.
            ObjectNotFoundError, UnauthorizedError, PermissionDeniedError: the registry says so.
        """
        async with AsyncExitStack() as stack:
            yield await self._opened(stack, ask)

    async def _opened(self, stack: AsyncExitStack, ask: Ask) -> Response:
        failures = 0
        while True:
            try:
                await self._wait_turn()
                return await self._tried(stack, ask)
            except RegistryFailedError as error:
                failures += 1
                if not ask.is_repeatable:
                    raise
                await self.pause(failures, error)

    async def _wait_turn(self) -> None:
        """Wait until the registry, which asked for patience, may be asked anything again."""
        while (rest_s := self._not_before_s - self.options.now_s()) > 0:
            if rest_s > _time_left_s():
                raise RegistryFailedError(
                    f"{self.host} asks to be left alone for {rest_s:.0f} s", is_final=True, retry_after_s=rest_s
                )
            await self.options.sleep(rest_s)

    async def pause(self, failures: int, error: RegistryFailedError) -> None:
        """Wait before another try, or raise `error`, final from now on, where there is to be none.

        Args:
            failures: how many in a row nothing came of.
            error: the last one.
        """
        pause_s = None
        if not error.is_final:
            pause_s = self.options.backoff.pause_s(failures, self.options.draw(), error.retry_after_s)
        if pause_s is None or pause_s > _time_left_s():
            error.is_final = True
            raise error
        if error.retry_after_s is not None:
            self._not_before_s = max(self._not_before_s, self.options.now_s() + error.retry_after_s)
        await self.options.sleep(pause_s)

    async def _tried(self, stack: AsyncExitStack, ask: Ask) -> Response:
        shown = await self._authorizer.header(ask.access)
        for is_last in (False, True):
            async with AsyncExitStack() as attempt:
                response = await attempt.enter_async_context(
                    self.http.send(ask.method, ask.url, headers=ask.headers, authorization=shown, content=ask.content)
                )
                if response.status in ask.expected:
                    stack.push_async_exit(attempt.pop_all())
                    return response
                can_learn = response.status == 401 and not is_last
                if not (can_learn and await self._authorizer.learn(response, ask.access, shown)):
                    raise await self._failure(response, ask)
            shown = await self._authorizer.header(ask.access)
        raise AssertionError("the second try returns or raises")

    async def _failure(self, response: Response, ask: Ask) -> Exception:
        status, where, detail = response.status, response.where, await response.told()
        if status == 401:
            return UnauthorizedError(
                f"{self.host} does not let us {_deed(ask)} {ask.access.repository.path}",
                detail=detail,
                resolution=f"log in: podman login {self.host}",
            )
        if status == 403:
            return PermissionDeniedError(f"{where} is refused", detail=detail, resolution="ask the registry's owner")
        if status in (404, 410):
            return self._missing(ask, detail)
        return RegistryFailedError(
            f"{where} answered {status}",
            detail=detail,
            is_final=status not in RETRIED_STATUSES,
            retry_after_s=response.retry_after_s(),
        )

    def _missing(self, ask: Ask, detail: str) -> ObjectNotFoundError:
        path, _, target = ask.url.removeprefix("/v2/").partition("/manifests/")
        if not target:
            return ObjectNotFoundError(f"{self.host} has not got {path}", detail=detail)
        image = f"{path}{'@' if ':' in target else ':'}{target}"
        return ObjectNotFoundError(
            f"{self.host} has no image {image}",
            detail=detail,
            resolution=f"look at its name and tag: `skopeo list-tags docker://{self.host}/{path}` lists what is there",
        )

    async def manifest(self, repository: Repository, target: str, *, timeout_s: float = 60.0) -> Manifest:
        """Return a manifest or index.

        Args:
            target: a digest, which it is compared with, or a tag.

        Raises:
            ObjectNotFoundError: there is none.
            StateCorruptedError: it is not what the digest says, or contradicts itself.
            StoreUnavailableError, UnauthorizedError, PermissionDeniedError: as the registry answers.
        """
        ask = Ask(
            method="GET",
            url=f"/v2/{repository.path}/manifests/{target}",
            access=Access(repository=repository),
            headers={"Accept": ", ".join(media.ACCEPTED)},
        )
        whence = Reference(repository=repository, digest=target) if is_digest(target) else f"{repository}:{target}"
        with reported():
            data, said = await self._whole(ask, media.MAXIMUM_MANIFEST_BYTES, timeout_s)
        digest = digest_of(data)
        expected = target if is_digest(target) else said
        if expected is not None and expected != digest:
            raise media.damaged(str(whence), f"its digest is {digest}, not {expected[:100]}")
        return Manifest(digest, data, media.decode_document(data, str(whence)))

    async def document(self, repository: Repository, descriptor: media.Descriptor, limit_bytes: int) -> bytes:
        """Return a small blob, such as a config, verified.

        Raises:
            StateCorruptedError: it is longer than the limit, or not what its descriptor says.
            ObjectNotFoundError, StoreUnavailableError, UnauthorizedError, PermissionDeniedError: as of `manifest`.
        """
        whence = repository.blob_url(descriptor.digest)
        if descriptor.size > limit_bytes:
            raise media.damaged(whence, f"it would have {descriptor.size} bytes, more than {limit_bytes}")
        url = f"/v2/{repository.path}/blobs/{descriptor.digest}"
        with reported():
            data, _ = await self._whole(Ask(method="GET", url=url, access=Access(repository=repository)), limit_bytes)
        if len(data) != descriptor.size or digest_of(data) != descriptor.digest:
            raise media.damaged(whence, f"it has {len(data)} bytes and the digest {digest_of(data)}")
        return data

    async def _whole(self, ask: Ask, limit_bytes: int, timeout_s: float = 600.0) -> tuple[bytes, str | None]:
        """Return a body of bounded length and the digest that came with it; what breaks off is asked for again."""
        failures = 0
        try:
            with anyio.fail_after(timeout_s):
                while True:
                    try:
                        async with self.answered(ask) as response:
                            return await response.read(limit_bytes), response.header("docker-content-digest")
                    except RegistryFailedError as error:
                        failures += 1
                        await self.pause(failures, error)
        except TimeoutError as error:
            raise RegistryFailedError(f"{self.host} gave no {ask.url} within {timeout_s:g} s") from error

    async def blob_size(self, repository: Repository, digest: str) -> int | None:
        """Return the size of a blob as the registry has it; None: it has not got it."""
        ask = Ask(
            method="HEAD",
            url=f"/v2/{repository.path}/blobs/{digest}",
            access=Access(repository=repository),
            expected=frozenset({200, 404}),
        )
        with reported():
            async with self.answered(ask) as response:
                if response.status == 404:
                    return None
                return number_in(response.header("content-length"), otherwise=-1)


def _time_left_s() -> float:
    return anyio.current_effective_deadline() - anyio.current_time()


def number_in(header: str | None, *, otherwise: int) -> int:
    """Return the number that a header of a registry's is, unless it is none, or none that counts bytes."""
    found = (header or "").strip()
    return int(found) if found.isascii() and found.isdigit() and len(found) <= _MAXIMUM_DIGITS else otherwise


def digest_of(data: bytes) -> str:
    """Return a digest as registries name contents."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _deed(ask: Ask) -> str:
    return "write to" if ask.access.pushes else "read"
