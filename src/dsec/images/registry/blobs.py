"""Read ranges of blobs: exactly the bytes that were asked for, or an error.

A registry may answer a range (RFC 9110, 14) in ways that would be wrong or ruinous to take: with the whole blob (it
ignores ranges, and the chunk that is wanted may lie gigabytes on), with another range, with less than it announced.
The first is skipped over where little is to be skipped, and refused otherwise: such a blob is read as a stream
(`dsec.images.lazy.in_order`). What breaks off is gone on with where it broke off.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from dsec.base.units import MIB
from dsec.images.registry.auth import Access
from dsec.images.registry.client import Ask, RegistryClient
from dsec.images.registry.http import RegistryFailedError, Response, reported
from dsec.images.registry.reference import Repository

MAXIMUM_SKIPPED_BYTES = 8 * MIB
"""What is read and thrown away to get at a range; two chunks."""
_WORTH_BYTES = 65_536
"""What has to come between two failures for them not to be in a row: a registry must not keep us busy for ever."""
_MOST_IN_VAIN = 4
"""Lengths of a blob that are sent again where ranges are ignored and connections break."""
_RANGE = re.compile(r"bytes (\d{1,15})-(\d{1,15})/(?:\d{1,15}|\*)")


class RangesIgnoredError(RegistryFailedError):
    """A registry would send much that nobody wants, since it ignores ranges."""


def _unheard(is_ranged: bool) -> None:
    """Nobody asks whether ranges are honoured."""


async def read_range(client: RegistryClient, repository: Repository, digest: str, start: int, length: int) -> bytes:
    """Return a range of a blob, whole.

    Raises:
        ObjectNotFoundError: the registry has not got the blob.
        StoreUnavailableError: it does not give this range: no answer, the blob ends before, or it ignores ranges.
        UnauthorizedError, PermissionDeniedError: as it says.
    """
    with reported():
        return b"".join([piece async for piece in resumed(client, repository, digest, start, start + length)])


async def resumed(
    client: RegistryClient,
    repository: Repository,
    digest: str,
    start: int,
    end: int,
    *,
    maximum_skipped_bytes: int = MAXIMUM_SKIPPED_BYTES,
    on_answer: Callable[[bool], None] = _unheard,
) -> AsyncGenerator[bytes]:
    """Yield the bytes of a blob from `start` to `end`, none twice, over as many answers as it takes.

    It is given up after as many failures in a row as `Backoff.tries`, between which next to nothing came. Raises as
    `read_range`, but for `RegistryFailedError` in place of `StoreUnavailableError`.

    Args:
        client: of the registry.
        repository, digest: of the blob.
        start, end: of what is wanted.
        maximum_skipped_bytes: what is read and thrown away to get there.
        on_answer: told of each answer whether it is the range that was asked for.
    """
    failures, failed_at, in_vain = 0, start, 0
    while start < end:
        ask = Ask(
            method="GET",
            url=f"/v2/{repository.path}/blobs/{digest}",
            access=Access(repository=repository),
            headers={"Range": f"bytes={start}-{end - 1}"},
            expected=frozenset({200, 206, 416}),
        )
        try:
            async with client.answered(ask) as response:
                on_answer(response.status != 200)
                if response.status == 200:
                    _check_vain(response, in_vain := in_vain + start, end)
                async for piece in _wanted(response, start, end, maximum_skipped_bytes):
                    start += len(piece)
                    yield piece
            if start < end:
                raise RegistryFailedError(f"{response.where} ended {end - start} bytes early")
        except RegistryFailedError as error:
            failures = 1 if start - failed_at >= _WORTH_BYTES else failures + 1
            failed_at = start
            await client.pause(failures, error)


def _check_vain(response: Response, in_vain: int, end: int) -> None:
    """Give up a blob that begins again and again: a link that breaks often would have it sent any number of times."""
    if in_vain > _MOST_IN_VAIN * end:
        raise RegistryFailedError(
            f"{response.where} ignores ranges, and broke off so often that it would begin anew beyond all measure",
            resolution="have the registry, or what is between it and this host, honour ranges (RFC 9110, 14)",
            is_final=True,
        )


async def _wanted(response: Response, start: int, end: int, maximum_skipped_bytes: int) -> AsyncIterator[bytes]:
    """Yield of a body what lies in the range; stop reading behind it."""
    if response.status == 416:
        raise RegistryFailedError(
            f"{response.where} has no byte {start}",
            resolution="push the image again: the blob is cut off",
            is_final=True,
        )
    position = _beginning(response, start, end)
    if start - position > maximum_skipped_bytes:
        raise RangesIgnoredError(
            f"{response.where} ignores ranges: it would send {start} bytes that nobody wants",
            resolution="have the registry, or what is between it and this host, honour ranges (RFC 9110, 14)",
            is_final=True,
        )
    # Only a body that was read to its end leaves its connection for the next request; one that says that it is as long
    # as it should be ends where it should.
    is_exact = response.header("content-length") == str(end - position)
    async for piece in response.pieces():
        useful = piece[max(0, start - position) : end - position]
        position += len(piece)
        if useful:
            yield useful
        if position > end or (position == end and not is_exact):
            return


def _beginning(response: Response, start: int, end: int) -> int:
    """Return where in the blob a body begins."""
    if response.status == 200:
        return 0
    said = response.header("content-range") or ""
    match = _RANGE.fullmatch(said.strip())
    if match is None or int(match[1]) != start or not start <= int(match[2]) < end:
        raise RegistryFailedError(
            f"{response.where} gave {said[:80]!r}, not the bytes {start} to {end - 1}", is_final=True
        )
    return start
