"""The objects of snapshots: manifests, roots, pointers and tombstones (docs/formats/snapshots.md)."""

from __future__ import annotations

import re

import anyio
import anyio.to_thread
import msgspec
from blake3 import blake3

from dsec.base.errors import ObjectNotFoundError, SnapshotNotFoundError, StateCorruptedError, StoreUnavailableError
from dsec.model.state import SnapshotInfo
from dsec.model.value import Value
from dsec.state.manifest import Manifest
from dsec.state.manifest_codec import decode_manifest, manifest_name
from dsec.stores.at_once import each_at_once
from dsec.stores.objects import ObjectStore

MANIFESTS, ROOTS, MERGED, DOOMED = "manifests/", "snapshots/", "merged/", "doomed-manifests/"
MAXIMUM_CHAIN = 64
_MAXIMUM_ROOT_BYTES = 1 << 20
_MAXIMUM_MANIFEST_OBJECT_BYTES = 144 << 20
_ID = re.compile(r"snp-[0-9a-f]{32}")
_NAME = re.compile(r"[0-9a-f]{64}")
_AT_ONCE = 8
_MOST = 1 << 60
_ATTEMPTS = 3
_BRING_BACK = "bring the object back from a copy of the store, or restore another snapshot"


class Root(Value, frozen=True):
    """What makes a snapshot exist.

    Attributes:
        info: the snapshot as a list shows it.
        chain: names of its manifests, hexadecimal, the complete one first.
        extents: how many its folded tree has at most.
        version: of the format.
    """

    info: SnapshotInfo
    chain: tuple[str, ...]
    extents: int = 0
    version: int = 1


def is_snapshot_id(text: str) -> bool:
    """Whether a text has the form of an id."""
    return _ID.fullmatch(text) is not None


def snapshot_id(name: bytes) -> str:
    """Return the id of the snapshot whose manifest has this name."""
    return f"snp-{name.hex()[:32]}"


def encode_root(root: Root) -> bytes:
    document = msgspec.json.encode(root)
    return blake3(document).hexdigest().encode() + b"\n" + document


def decode_root(data: bytes, snapshot: str) -> Root:
    """Return a root, checked.

    Raises:
        StateCorruptedError: it does not verify.
    """
    digest, _, document = data.partition(b"\n")
    if blake3(document).hexdigest().encode() != digest:
        raise _damaged(ROOTS + snapshot, "its content is not what its first line says")
    try:
        root = msgspec.json.decode(document, type=Root)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _damaged(ROOTS + snapshot, str(error)) from error
    names_fit = 0 < len(root.chain) <= MAXIMUM_CHAIN and all(map(_NAME.fullmatch, root.chain))
    if root.version != 1 or not names_fit or root.info.snapshot_id != snapshot:
        raise _damaged(ROOTS + snapshot, "its chain or its id is none")
    if not _numbers_fit(root):
        raise _damaged(ROOTS + snapshot, "it counts what no snapshot has")
    if snapshot_id(bytes.fromhex(root.chain[-1])) != snapshot:
        raise _damaged(ROOTS + snapshot, "its chain ends in another snapshot's manifest")
    return root


def _numbers_fit(root: Root) -> bool:
    """Whether a list of snapshots can be shown with this one in it: JSON that is read may hold longer numbers than can
    be written."""
    info = root.info
    counted = (info.depth, info.files, info.content_bytes, info.stored_bytes, info.exported_bytes or 0, root.extents)
    return all(abs(number) < _MOST for number in (*counted, info.created_at_s, info.duration_s))


async def put_seen(store: ObjectStore, key: str, data: bytes) -> None:
    """Store an object and make sure of it: a service may lose what it acknowledged.

    Raises:
        StoreUnavailableError: it does, again and again.
    """
    for _ in range(_ATTEMPTS):
        await store.put(key, data)
        info = await store.head(key)
        if info is not None and info.size_bytes == len(data):
            return
    raise StoreUnavailableError(
        f"{store.url} acknowledged {key} and does not hold it", resolution="look at the service: it loses what it takes"
    )


async def get_root(store: ObjectStore, snapshot: str) -> Root:
    """Read a root by id.

    Raises:
        SnapshotNotFoundError: there is none.
        StateCorruptedError: it does not verify, read twice.
    """
    for attempt in range(2):
        try:
            return decode_root(await _get(store, ROOTS + snapshot, _MAXIMUM_ROOT_BYTES), snapshot)
        except ObjectNotFoundError as error:
            raise not_found(snapshot) from error
        except StateCorruptedError:
            if attempt:
                raise  # The first time it may have been damaged on the way.
    raise AssertionError("unreachable")


async def get_manifest(store: ObjectStore, name: str) -> Manifest:
    """Read a manifest by its name, hexadecimal.

    Raises:
        StateCorruptedError: it is missing or does not verify, read twice.
    """
    key = MANIFESTS + name
    for attempt in range(2):
        try:
            data = await _get(store, key, _MAXIMUM_MANIFEST_OBJECT_BYTES)
        except ObjectNotFoundError as error:
            raise _damaged(key, "it is not in the store") from error
        try:
            return await anyio.to_thread.run_sync(_decode, data, name)
        except StateCorruptedError:
            if attempt:
                raise
    raise AssertionError("unreachable")


def _decode(data: bytes, name: str) -> Manifest:
    if manifest_name(data).hex() != name:
        raise _damaged(MANIFESTS + name, "its content is not what its name says")
    return decode_manifest(data, MANIFESTS + name)


async def get_chain(store: ObjectStore, names: tuple[str, ...]) -> list[Manifest]:
    """Read the manifests of a chain, several at a time, and check that each changes the one before it.

    Raises:
        StateCorruptedError: one is missing or wrong, or they do not belong together.
    """
    found: dict[str, Manifest] = {}
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def one(name: str) -> None:
        async with limiter:
            found[name] = await get_manifest(store, name)

    await each_at_once(list(dict.fromkeys(names)), one)
    chain = [found[name] for name in names]
    before: bytes | None = None
    for name, manifest in zip(names, chain, strict=True):
        if manifest.parent != before:
            raise _damaged(MANIFESTS + name, "it changes another manifest than the one before it")
        before = bytes.fromhex(name)
    return chain


async def get_merged(store: ObjectStore, snapshot: str) -> str | None:
    """Return the complete manifest that a merge made of a snapshot's chain; None: none did."""
    try:
        text = (await _get(store, MERGED + snapshot, 64)).decode("ascii", "replace")
    except ObjectNotFoundError:
        return None
    # A pointer that does not verify is as none: the chain is there.
    return text if _NAME.fullmatch(text) else None


async def missing(store: ObjectStore, names: tuple[str, ...]) -> bool:
    """Whether one of some manifests is gone or about to go, so that nothing new may rely on it."""
    gone: list[str] = []

    async def look(name: str) -> None:
        if await store.head(MANIFESTS + name) is None or await store.head(DOOMED + name) is not None:
            gone.append(name)

    await each_at_once(names, look)
    return bool(gone)


async def _get(store: ObjectStore, key: str, limit_bytes: int) -> bytes:
    """Read an object whole, unless it is longer than any of its kind."""
    data = await store.get_range(key, 0, limit_bytes + 1)
    if len(data) > limit_bytes:
        raise _damaged(key, f"it has more than {limit_bytes} bytes")
    return data


def not_found(snapshot: str) -> SnapshotNotFoundError:
    return SnapshotNotFoundError(
        f"there is no snapshot {snapshot[:100]!r}", resolution="`dsec snapshot ls` shows what there is"
    )


def _damaged(key: str, reason: str) -> StateCorruptedError:
    return StateCorruptedError(f"{key} does not verify", detail=reason, resolution=_BRING_BACK)
