"""The origins of a layer: read everything that each has of it, and put what is wrong there anew from what is here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path

import anyio.to_thread

from dsec.base.errors import DsecError, StateCorruptedError, StoreUnavailableError
from dsec.base.units import format_number_of
from dsec.images.lazy.caching.cached_layer import DATA, write_at
from dsec.images.lazy.collection.objects import Part
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES, encode
from dsec.images.lazy.origins import REGISTRY_SCHEME, open_origin
from dsec.images.lazy.publication.conversion import fetch_manifest
from dsec.images.lazy.serving.client import LAZY
from dsec.images.lazy.source import ChunkSource
from dsec.images.lazy.verifying.fetched import fetch_pieces
from dsec.images.lazy.verifying.findings import Finding, Subject, VerifyOptions, some, words
from dsec.images.lazy.verifying.pieces import Piece, PieceFile, pieces_of
from dsec.images.lazy.verifying.registry_blobs import BlobRepair, put_blob_anew, why_away
from dsec.images.store import LocalImageStore
from dsec.stores.objects import ObjectStore
from dsec.stores.opening import open_existing, open_store


def _nothing() -> None:
    """There is no such file."""


class OriginCheck:
    """The check of one layer's origins.

    Args:
        images: the image store.
        subject: the layer.
        manifest: its manifest.
        origins: URLs of its origins.
        options: how.
        unreachable: places that were found not to answer, for the checks of other layers too, and why.
        as_cut: makes the file that the manifest is of, where neither the layer's own nor the cache's is it. Blocks.

    Attributes:
        filled: the numbers of the chunks that were put into `fill_into`.
    """

    def __init__(
        self,
        images: LocalImageStore,
        subject: Subject,
        manifest: LayerManifest,
        origins: Sequence[str],
        options: VerifyOptions,
        unreachable: MutableMapping[str, str],
        as_cut: Callable[[], Path | None] = _nothing,
    ) -> None:
        self._as_cut = as_cut
        self._cut: list[Path | None] = []
        self._lock = threading.Lock()
        self._unreachable = unreachable
        self._images = images
        self._subject = subject
        self._manifest = manifest
        self._origins = tuple(origins)
        self._options = options
        self.filled: set[int] = set()
        self._places: dict[str, list[int]] = {}
        for place, ref in enumerate(manifest.chunks):
            self._places.setdefault(ref.id, []).append(place)

    async def check(self, url: str, fill_into: int | None) -> Finding:
        """Fetch everything of the layer from one origin.

        Args:
            url: the origin.
            fill_into: descriptor of a file that gets what is fetched and not in it yet; None: nothing does.
        """
        suffix = " registry" if url.startswith(REGISTRY_SCHEME) else " store"
        if why := self._unreachable.get(place_of(url)):
            return self._away(url, suffix, why)
        if suffix == " registry" and (why := await why_away(url)):
            self._unreachable[place_of(url)] = why
            return self._away(url, suffix, why)
        try:
            if suffix == " store":
                await (await anyio.to_thread.run_sync(open_existing, url)).aclose()
            source = await anyio.to_thread.run_sync(open_origin, url)
        except DsecError as error:
            return self._away(url, suffix, words(error))
        pieces, done = _distinct(pieces_of(self._manifest)), 0

        def advance() -> None:
            nonlocal done
            done += 1
            self._options.progress(f"{self._subject.part}{suffix}", done, len(pieces))

        failures = await fetch_pieces([source], pieces, lambda *got: self._take(fill_into, *got), advance)
        if suffix == " store" and _is_away(pieces, failures):
            why = self._unreachable[url] = _why(next(iter(failures.values())))
            return self._away(url, suffix, why)
        # What it says of one origin is enough: that none of its sources has a chunk goes without saying.
        problems = {str(piece): _why(error) for piece, error in failures.items()}
        if suffix == " store":
            problems |= await self._manifest_problem(url)
        if not problems:
            detail = f"{format_number_of(len(pieces), 'piece')} in {url}, hashes matched"
            return self._subject.good(detail, node=url, suffix=suffix)
        named = _named(problems)
        detail = f"{len(problems)} of {format_number_of(len(pieces) + 1, 'piece')} cannot be had: {named}"
        again = "push the image again" if suffix == " registry" else "publish the image again with --resend"
        advice = f"{again} from a host that has it whole; check the disk of {url}"
        if not self._options.repair:
            advice = f"--repair puts there what this host or another origin has; or {advice}"
            return self._subject.bad(detail, node=url, suffix=suffix, advice=advice)
        if suffix == " registry":
            left = await self._put_blob_anew(url, source, list(failures))
        else:
            left = some(await self._put_anew(url, list(failures), fix_manifest="manifest" in problems))
        if left:
            return self._subject.bad(f"{detail}. Of these, {left}", node=url, suffix=suffix, advice=advice)
        detail = f"{detail}. They were put there anew"
        return self._subject.good(detail, node=url, suffix=suffix, repaired=True)

    def _away(self, url: str, suffix: str, why: str) -> Finding:
        """Return the finding that nothing of an origin could be read."""
        detail = f"nothing of {url} can be read: {why}"
        return self._subject.bad(detail, node=url, suffix=suffix, advice=f"see that {place_of(url)} can be reached")

    async def _take(self, fill_into: int | None, piece: Piece, content: bytes) -> None:
        if fill_into is None:
            return
        # A piece of the metadata, too: of a small layer it is the same chunk as the file, and fetched once for both.
        for place in self._places.get(piece.ref.id, ()):
            if place not in self.filled:
                await anyio.to_thread.run_sync(write_at, fill_into, content, place * CHUNK_BYTES)
                self.filled.add(place)

    async def _manifest_problem(self, url: str) -> dict[str, str]:
        try:
            await fetch_manifest(await anyio.to_thread.run_sync(open_store, url), self._manifest.id)
        except DsecError as error:
            return {"manifest": words(error)}
        return {}

    async def _put_anew(self, url: str, pieces: Sequence[Piece], *, fix_manifest: bool) -> list[str]:
        """Put pieces into a store again; return what could not be, and why."""
        store = await anyio.to_thread.run_sync(open_store, url)
        others = await self._others(url)
        left: list[str] = []
        try:
            for piece in pieces:
                if (problem := await self._put_piece(store, others, piece)) is not None:
                    left.append(f"{piece} {problem}")
            if fix_manifest and not left:
                await _put(store, Part.manifest(self._manifest.id), self._manifest.data)
        except DsecError as error:
            left.append(f"the rest cannot be put: {words(error)}")
        finally:
            await store.aclose()
        return left

    async def _put_piece(self, store: ObjectStore, others: Sequence[ChunkSource], piece: Piece) -> str | None:
        content = await self._content(others, piece)
        if content is None:
            return "is neither here nor in another origin"
        name, stored = await anyio.to_thread.run_sync(encode, content)
        return await _put(store, Part.chunk(name), stored)

    async def _put_blob_anew(self, url: str, source: ChunkSource, bad: Sequence[Piece]) -> str:
        """Put a blob into its registry again; return what is still wrong with it; empty: nothing."""
        others = await self._others(url)
        with self._images.work_directory() as work:
            repair = BlobRepair(
                url=url,
                manifest=self._manifest,
                source=source,
                bad=bad,
                contents=lambda piece: self._content(others, piece),
                local=self._local,
            )
            return await put_blob_anew(repair, work.path / "blob")

    async def _others(self, url: str) -> list[ChunkSource]:
        return [await anyio.to_thread.run_sync(open_origin, other) for other in self._origins if other != url]

    async def _content(self, others: Sequence[ChunkSource], piece: Piece) -> bytes | None:
        """Return the content of a piece from here, or from another origin; None: it is not to be had."""
        content = await anyio.to_thread.run_sync(self._local, piece)
        if content is not None:
            return content
        got: list[bytes] = []

        async def take(_: Piece, found: bytes) -> None:
            got.append(found)

        for other in others:
            place = place_of(other.name)
            if got or place in self._unreachable:
                continue
            failures = await fetch_pieces([other], [piece], take, lambda: None)
            if isinstance(error := failures.get(piece), StoreUnavailableError):
                self._unreachable[place] = _why(error)  # Not for each piece is it to be waited for.
        return got[0] if got else None

    def _local(self, piece: Piece) -> bytes | None:
        """Return a piece from a file of this host, verified."""
        layers = self._images.root / "layers" / self._subject.digest.removeprefix("sha256:")
        files: tuple[Path, ...] = (
            layers / "layer.erofs",
            self._images.root / LAZY / "cache" / self._manifest.id / DATA,
        )
        found = (PieceFile(file, self._manifest).content(piece) for file in files)
        content = next((content for content in found if content is not None), None)
        if content is not None:
            return content
        with self._lock:  # Made once, and only when something of it is needed.
            if not self._cut:
                self._cut.append(self._as_cut())
        return None if self._cut[0] is None else PieceFile(self._cut[0], self._manifest).content(piece)


async def _put(store: ObjectStore, part: Part, data: bytes) -> str | None:
    if await store.head(part.tombstone_key) is not None:
        return "is being deleted there, since nothing published needs it: publish the image again"
    await store.put(part.key, data)
    return None


def _is_away(pieces: Sequence[Piece], failures: Mapping[Piece, DsecError]) -> bool:
    away = all(isinstance(error, StoreUnavailableError) for error in failures.values())
    return len(failures) == len(pieces) and away


def place_of(url: str) -> str:
    """Return the registry or store of an origin."""
    if not url.startswith(REGISTRY_SCHEME):
        return url
    return url.removeprefix(REGISTRY_SCHEME).partition("/")[0]


def _distinct(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces without those that are the same chunk as one before."""
    return list({piece.ref.id: piece for piece in reversed(pieces)}.values())[::-1]


def _why(error: DsecError) -> str:
    told = isinstance(error, StateCorruptedError | StoreUnavailableError) and error.detail
    return " ".join(error.detail.split()) if told else words(error)


def _named(problems: Mapping[str, str]) -> str:
    """Name some of what cannot be had, and why; a reason that all of many have in common, once."""
    pieces, reasons = sorted(problems), set(problems.values())
    if len(reasons) == 1 and len(pieces) > 1:
        return f"{pieces[0]} and {len(pieces) - 1} more: {reasons.pop()}"
    return some([f"{piece}: {problems[piece]}" for piece in pieces])
