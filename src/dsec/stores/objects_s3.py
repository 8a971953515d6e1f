"""Objects behind an S3-compatible service, through obstore.

Endpoint, region and credentials come from the usual ``AWS_*`` variables (``AWS_ENDPOINT_URL``, ``AWS_REGION``,
``AWS_ACCESS_KEY_ID``, ...). An endpoint of plain ``http://`` is taken as meant. Retries are ours, not obstore's, so
that one policy decides and the deadline of a call holds: a failure that may pass is tried again after the pauses of
`RetryPolicy.steady_pause_s`, the last of which is 9 s.

*Put if absent* is the service's own condition (``If-None-Match: *``). A service that refuses it as not implemented is
asked with `head` first instead; then two that put at the same instant may both succeed, and the later one stands.
When the answer to a conditional put is lost and it is sent again, it finds its own object and says that something was
there: whoever must know whether it won compares contents.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
from obstore import exceptions
from obstore.store import S3Store

from dsec.base.errors import (
    DsecError,
    InvalidRequestError,
    NotFoundError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StoreUnavailableError,
    UnauthorizedError,
)
from dsec.model.retry import RetryPolicy
from dsec.stores.at_once import each_at_once
from dsec.stores.objects import DEFAULT_TIMEOUT_S, Begin, ObjectInfo, check_key, check_prefix, check_range

if TYPE_CHECKING:
    from obstore.store import S3Config

_ATTEMPT_S = 30.0
"""One request is given up after this; the deadline of the call bounds all of them."""
_MAXIMUM_ATTEMPTS = 8
_AT_ONCE = 16
_PIECE_BYTES = 128 << 10
"""Each piece costs a turn of the event loop; who is given one waits for all of it."""
_METADATA_SERVICE = "169.254.169.254"
"""Whom the client asks for credentials when it was given none: the metadata service of clouds."""
_FOREIGN = (exceptions.BaseError, FileNotFoundError)
"""What obstore raises: for an object that is not there, the builtin error."""
_Result = TypeVar("_Result")


class S3ObjectStore:
    """Implements `dsec.stores.objects.ObjectStore`.

    Args:
        bucket: the bucket.
        prefix: stands before every key, parted by a slash; empty: none.
        environment: where the ``AWS_*`` variables are looked up.
        retry: how a failure that may pass is tried again.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        environment: Mapping[str, str] = os.environ,
        retry: RetryPolicy = RetryPolicy(),
    ) -> None:
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._retry = retry
        self._requests = anyio.CapacityLimiter(_AT_ONCE)
        self._has_condition = True
        self._store = _connect(bucket, environment)

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> bool:
        path = self._path(key)
        if not if_absent:
            await self._call("put", key, timeout_s, lambda: self._store.put_async(path, data, use_multipart=False))
            return True
        if self._has_condition:
            try:
                return await self._call("put", key, timeout_s, lambda: self._create(path, data))
            except _ConditionMissing:
                self._has_condition = False
        if await self.head(key, timeout_s=timeout_s) is not None:
            return False
        return await self.put(key, data, timeout_s=timeout_s)

    async def get(self, key: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        path = self._path(key)

        async def fetch() -> bytes:
            answer = await self._store.get_async(path)
            return bytes(await answer.bytes_async())

        return await self._call("get", key, timeout_s, fetch)

    async def get_range(self, key: str, start: int, length: int, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        check_range(start, length)
        path = self._path(key)

        async def fetch() -> bytes:
            try:
                return bytes(await self._store.get_range_async(path, start=start, length=length))
            except _FOREIGN:
                # A range that begins at or behind the end is an error to the service and nothing to us.
                if (await self._store.head_async(path))["size"] <= start:
                    return b""
                raise

        return await self._call("get", key, timeout_s, fetch)

    async def get_pieces(
        self, key: str, start: int, length: int, begin: Begin, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> bytes:
        """See `dsec.stores.objects.PiecewiseObjectStore`."""
        check_range(start, length)
        path = self._path(key)

        async def fetch() -> bytes:
            answer = await self._store.get_async(path, options={"range": (start, start + length)})
            first, end = answer.range
            take, parts = begin(end - first), []
            async for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
                parts.append(bytes(piece))
                take(parts[-1])
            return b"".join(parts)

        return await self._call("get", key, timeout_s, fetch)

    async def head(self, key: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> ObjectInfo | None:
        path = self._path(key)
        try:
            found = await self._call("head", key, timeout_s, lambda: self._store.head_async(path))
        except ObjectNotFoundError:
            return None
        return self._described(found)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        whole = self._prefix + prefix
        # obstore lists by whole parts of a path; the rest of the prefix is compared here.
        stream = self._store.list(whole.rpartition("/")[0] or None, chunk_size=1000)
        pages = aiter(stream)
        while True:
            try:
                page = await self._call("list", prefix, DEFAULT_TIMEOUT_S, lambda: anext(pages), repeat=False)
            except StopAsyncIteration:
                return
            for found in page:
                if found["path"].startswith(whole):
                    yield self._described(found)

    async def delete(self, keys: Sequence[str], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        await each_at_once(keys, lambda key: self._delete(key, timeout_s))

    async def aclose(self) -> None:
        """obstore closes idle connections itself."""

    def _path(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _described(self, found: Any) -> ObjectInfo:
        key = found["path"].removeprefix(self._prefix)
        return ObjectInfo(key=key, size_bytes=found["size"], modified_at_s=found["last_modified"].timestamp())

    async def _create(self, path: str, data: bytes) -> bool:
        try:
            await self._store.put_async(path, data, mode="create", use_multipart=False)
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            return False
        except exceptions.NotSupportedError as error:
            raise _ConditionMissing from error
        except exceptions.GenericError as error:
            if "NotImplemented" in str(error) or "501" in str(error):
                raise _ConditionMissing from error
            raise
        return True

    async def _delete(self, key: str, timeout_s: float) -> None:
        path = self._path(key)
        try:
            await self._call("delete", key, timeout_s, lambda: self._store.delete_async(path))
        except ObjectNotFoundError:
            return

    async def _call(
        self, action: str, key: str, timeout_s: float, request: Callable[[], Awaitable[_Result]], *, repeat: bool = True
    ) -> _Result:
        """Ask until it succeeds, fails for good, or the deadline passes."""
        last: DsecError | None = None
        try:
            with anyio.fail_after(timeout_s):
                for attempt in range(1, _MAXIMUM_ATTEMPTS + 1):
                    try:
                        async with self._requests:
                            return await request()
                    except _FOREIGN as error:
                        last = self._translate(action, key, error)
                        if not last.retryable or not repeat or attempt == _MAXIMUM_ATTEMPTS:
                            raise last from error
                    await anyio.sleep(self._retry.steady_pause_s(attempt))
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"{self.url} did not {action} {key!r} within {timeout_s:g} s",
                detail="" if last is None else f"the last answer: {last.detail or last.brief}",
                resolution="look at the service and the way to it",
            ) from error
        raise AssertionError("the last attempt returns or raises")

    def _translate(self, action: str, key: str, error: Exception) -> DsecError:
        said = _said(error)
        where = f"{self.url}/{key}"
        if "NoSuchBucket" in said:
            return NotFoundError(
                f"{self.url}: there is no such bucket", detail=said, resolution="make the bucket, or correct the URL"
            )
        if isinstance(error, FileNotFoundError | exceptions.NotFoundError):
            return ObjectNotFoundError(f"{self.url} holds no object {key!r}")
        refused = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied")
        if isinstance(error, exceptions.UnauthenticatedError) or any(word in said for word in refused[:2]):
            return UnauthorizedError(
                f"{self.url} does not accept these credentials",
                detail=said,
                resolution="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to a key of this service",
            )
        if _METADATA_SERVICE in said:
            return UnauthorizedError(
                f"{self.url}: there are no credentials, and the host's cloud, which was asked, gave none",
                detail=said,
                resolution="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to a key of this service",
            )
        if isinstance(error, exceptions.PermissionDeniedError) or refused[2] in said:
            return PermissionDeniedError(
                f"{self.url} does not let this key {action} {key!r}", detail=said, resolution="widen the key's policy"
            )
        return StoreUnavailableError(f"{action} {where} failed", detail=said, resolution="look at the service")


class _ConditionMissing(Exception):  # noqa: N818 - it says what the service lacks, and never leaves this module.
    """The service knows no conditional put."""


def _connect(bucket: str, environment: Mapping[str, str]) -> S3Store:
    known = {name.lower(): value for name, value in environment.items() if name.startswith("AWS_") and value}
    wanted = (
        "aws_access_key_id",
        "aws_secret_access_key",
        "aws_session_token",
        "aws_endpoint_url_s3",
        "aws_endpoint_url",
        "aws_region",
        "aws_default_region",
        "aws_virtual_hosted_style_request",
        "aws_web_identity_token_file",
        "aws_role_arn",
        "aws_container_credentials_relative_uri",
        "aws_skip_signature",
    )
    config: dict[str, Any] = {name: known[name] for name in wanted if name in known}
    endpoint = str(config.get("aws_endpoint_url_s3") or config.get("aws_endpoint_url") or "")
    config.setdefault("aws_region", known.get("aws_default_region", "us-east-1"))
    config.pop("aws_default_region", None)
    try:
        return S3Store(
            bucket,
            config=cast("S3Config", config),
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "timeout": timedelta(seconds=_ATTEMPT_S),
                "connect_timeout": timedelta(seconds=5),
            },
            retry_config={"max_retries": 0},
        )
    except (exceptions.BaseError, ValueError, TypeError) as error:
        raise InvalidRequestError(
            f"s3://{bucket} cannot be opened", detail=_said(error), resolution="correct the AWS_* variables"
        ) from error


def _said(error: Exception) -> str:
    """Return what an error of obstore says, without how it looks to a debugger."""
    return str(error).partition("\n\nDebug source")[0]
