"""Deleting from a store what no published image needs, beside whoever publishes, pulls, unpublishes and collects."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from dsec.base.clock import ManualClock
from dsec.base.errors import (
    CapabilityMissingError,
    DsecError,
    InvalidRequestError,
    ObjectNotFoundError,
    StateCorruptedError,
)
from dsec.images.lazy.collection.collector import LayerCollectionReport, collect_layers
from dsec.images.lazy.collection.objects import (
    DOOMED,
    FORMAT,
    PIN_S,
    TRACES,
    Part,
    Tombstone,
    TombstoneState,
    part_of_key,
    tag_key,
    tag_of_key,
    window_s,
)
from dsec.images.lazy.collection.opened import Times, open_layer_objects
from dsec.images.lazy.collection.publishing import Publication, publish_document, rely_on_layer, settle_layer
from dsec.images.lazy.collection.roots import (
    fetch_document,
    list_published,
    pin,
    pinned,
    put_document,
    resolve,
    unpin,
    unpublish,
)
from dsec.images.lazy.collection.rules import Delete, Doom, Forget, Keep, StoreView, decide, may_rely
from dsec.images.lazy.erofs.metadata import Extent
from dsec.images.lazy.formats.document import DocumentLayer, ImageDocument, encode_document, image_key
from dsec.images.lazy.formats.manifest import LayerManifest, make
from dsec.images.lazy.formats.stored import CHUNK_BYTES, encode
from dsec.images.lazy.publication.conversion import fetch_manifest
from dsec.model.image import ImageConfig
from dsec.stores.objects import ObjectInfo, ObjectStore
from dsec.stores.objects_folder import FolderObjectStore
from dsec.stores.objects_memory import MemoryObjectStore
from dsec.stores.opening import open_store
from dsec.testing.faulty_store import FaultyObjectStore
from dsec.testing.s3_server import S3Server
from dsec.testing.turnstile import GatedStore, Turnstile, Waiting

pytestmark = pytest.mark.anyio

_GRACE_S = 1600.0
_WINDOW_S = window_s(_GRACE_S)
_HOST = "ab" * 16
_OTHER = "cd" * 16


def _layer(*letters: str) -> tuple[LayerManifest, dict[Part, bytes]]:
    """Return a layer whose chunks have these contents; what counts here are their names."""
    pieces, stored = [], {}
    for letter in letters:
        name, data = encode(letter.encode() * 100)
        stored[Part.chunk(name)] = data
        pieces.append((name, len(data)))
    manifest = make(
        f"sha256:{uuid.uuid5(uuid.NAMESPACE_OID, ' '.join(letters)).hex * 2}",
        len(letters) * CHUNK_BYTES,
        len(letters),
        chunks=pieces,
        metadata=[Extent(0, 4096)],
        metadata_chunks=pieces[:1],
    )
    return manifest, stored


def _document(manifest: LayerManifest) -> bytes:
    layer = DocumentLayer(digest=manifest.layer, manifest=manifest.id)
    return encode_document(ImageDocument(version=1, name="x", config=ImageConfig(), source="", layers=(layer,)))


@dataclass
class _Store:
    """A store whose clock the test moves."""

    store: ObjectStore
    clock: ManualClock
    slept: list[float] = field(default_factory=list)

    async def opened(self, **options: float):  # type: ignore[no-untyped-def]
        async def sleep(duration_s: float) -> None:
            self.slept.append(duration_s)
            self.clock.advance(duration_s)

        times = Times(clock=self.clock, sleep=sleep)
        return await open_layer_objects(self.store, grace_s=options.get("grace_s", _GRACE_S), times=times)

    async def publish(self, *letters: str, tag: str | None = None) -> str:
        publication = Publication(await self.opened())
        return (await _publish(publication, letters, tag))[0]

    async def collect(self, *, dry_run: bool = False) -> LayerCollectionReport:
        return await collect_layers(await self.opened(), dry_run=dry_run)

    async def keys(self, prefix: str = "layers/") -> list[str]:
        return [info.key async for info in self.store.list(prefix) if info.key != FORMAT]

    async def is_whole(self, reference: str) -> bool:
        document = await fetch_document(self.store, reference)
        for layer in document.layers:
            manifest = await fetch_manifest(self.store, layer.manifest)
            for ref in (*manifest.chunks, *manifest.metadata_chunks):
                if await self.store.head(Part.chunk(ref.id).key) is None:
                    return False
        return True


async def _publish(publication: Publication, letters: tuple[str, ...], tag: str | None) -> tuple[str, LayerManifest]:
    manifest, stored = _layer(*letters)

    async def offer(only: frozenset[Part] | None) -> LayerManifest:
        for part, data in stored.items():
            if only is None or part in only:
                await publication.offer(part, data)
        return manifest

    return await publish_document(publication, lambda: settle_layer(publication, offer), _document, tag=tag)


@pytest.fixture
def shared() -> _Store:
    clock = ManualClock()
    return _Store(MemoryObjectStore(clock=clock), clock)


# The decision.


def _view(
    objects: dict[str, float], tombstones: dict[str, tuple[TombstoneState, float]], reachable: str = ""
) -> dict[str, str]:
    """Decide about chunks by letters, at time 10,000; return the name of what is to be done with each."""

    def part(letter: str) -> Part:
        return Part.chunk(letter * 64)

    view = StoreView(
        now_s=10_000.0,
        grace_s=_GRACE_S,
        objects={
            part(name): ObjectInfo(key=part(name).key, size_bytes=1, modified_at_s=10_000.0 - age)
            for name, age in objects.items()
        },
        tombstones={
            part(name): Tombstone(state=state, since_s=10_000.0 - age) for name, (state, age) in tombstones.items()
        },
        reachable={part(name) for name in reachable},
    )
    return {act.part.name[0]: type(act).__name__ for act in decide(view)}


def test_what_nothing_needs_is_doomed_once_it_is_old() -> None:
    assert _view({"a": _GRACE_S, "b": _GRACE_S - 1, "c": _GRACE_S}, {}, "c") == {"a": "Doom"}


def test_what_was_doomed_is_deleted_after_the_grace_period_unless_it_is_needed() -> None:
    doomed = TombstoneState.DOOMED
    tombstones = {"a": (doomed, _GRACE_S), "b": (doomed, _GRACE_S - 1), "c": (doomed, _GRACE_S), "d": (doomed, 1.0)}
    done = _view(dict.fromkeys("abcd", _GRACE_S * 3), tombstones, "cd")
    assert done == {"a": "Delete", "c": "Keep", "d": "Forget"}


def test_a_tombstone_goes_when_nobody_can_be_deleting_any_more() -> None:
    for state in (TombstoneState.KEPT, TombstoneState.DELETED):
        assert _view({"a": 5.0}, {"a": (state, 2 * _WINDOW_S - 1)}) == {}
        assert _view({"a": 5.0}, {"a": (state, 2 * _WINDOW_S)}) == {"a": "Forget"}


def test_what_saves_comes_before_what_deletes_and_manifests_before_chunks() -> None:
    old = Tombstone(state=TombstoneState.DOOMED, since_s=0.0)
    parts = [Part.chunk("a" * 64), Part.manifest("b" * 64), Part.manifest("c" * 64)]
    view = StoreView(
        now_s=10_000.0,
        grace_s=1.0,
        objects={},
        tombstones=dict.fromkeys(parts, old),
        reachable={Part.manifest("c" * 64)},
    )
    done = [(type(act), act.part.kind) for act in decide(view)]
    assert done == [(Keep, "manifests"), (Delete, "manifests"), (Delete, "chunks")]
    assert {Doom, Forget}.isdisjoint(kind for kind, _ in done)


@pytest.mark.parametrize(
    ("state", "age_s", "may"),
    [
        (TombstoneState.DOOMED, _GRACE_S / 2 - 1, True),
        (TombstoneState.DOOMED, _GRACE_S / 2, False),
        (TombstoneState.DELETED, _GRACE_S * 9, False),
        (TombstoneState.KEPT, _WINDOW_S - 1, False),
        (TombstoneState.KEPT, _WINDOW_S, True),
    ],
)
def test_a_publisher_relies_on_what_nobody_can_be_deleting(state: TombstoneState, age_s: float, may: bool) -> None:
    assert may_rely(Tombstone(state=state, since_s=0.0), age_s, _GRACE_S) is may


def test_lengths_tell_tombstones_apart() -> None:
    assert len({len(state.value) for state in TombstoneState}) == len(TombstoneState)


@pytest.mark.parametrize("name", ["my-env:v3", "a/b_c:V1.0", "host:5000/x", "x__y"])
def test_a_tag_has_one_key_and_the_key_one_tag(name: str) -> None:
    assert tag_of_key(tag_key(name)) == name


@pytest.mark.parametrize("key", ["layers/doomed/chunks/x", "layers/chunks/aa/" + "b" * 64, "layers/other/" + "a" * 64])
def test_what_is_no_part_is_left_alone(key: str) -> None:
    assert part_of_key(key) is None


# One thing after the other.


async def test_an_unpublished_image_goes_after_the_grace_period_and_leaves_what_others_need(shared: _Store) -> None:
    mine, other = await shared.publish("a", "b"), await shared.publish("b", "c")
    shared.clock.advance(_GRACE_S)
    assert (await shared.collect()).doomed == 0
    assert await unpublish(shared.store, mine) == mine
    report = await shared.collect()
    assert (report.images, report.doomed, report.deleted) == (1, 2, 0)
    shared.clock.advance(_GRACE_S - 1)
    assert (await shared.collect()).waiting == 2
    shared.clock.advance(1)
    report = await shared.collect()
    assert (report.deleted, report.freed_bytes > 0) == (2, True)
    assert await shared.is_whole(other)
    shared.clock.advance(2 * _WINDOW_S)
    await shared.collect()
    assert await shared.keys(DOOMED) == []
    assert len(await shared.keys("layers/chunks/")) == 2


async def test_a_dry_run_says_what_it_would_do_and_does_nothing(shared: _Store) -> None:
    await unpublish(shared.store, await shared.publish("a"))
    shared.clock.advance(_GRACE_S)
    before = await shared.keys()
    report = await shared.collect(dry_run=True)
    assert (report.doomed, report.is_dry_run) == (2, True)
    assert await shared.keys() == before
    await shared.collect()
    shared.clock.advance(_GRACE_S)
    assert (await shared.collect(dry_run=True)).deleted == 2
    assert len(await shared.keys("layers/chunks/")) == 1


async def test_publishing_again_what_is_about_to_be_deleted_waits_for_a_window_and_keeps_it(shared: _Store) -> None:
    reference = await shared.publish("a", "b")
    await unpublish(shared.store, reference)
    shared.clock.advance(_GRACE_S)
    await shared.collect()
    shared.clock.advance(_GRACE_S * 0.75)
    assert await shared.publish("a", "b") == reference
    assert shared.slept == [_WINDOW_S]
    for _ in range(4):
        shared.clock.advance(_GRACE_S)
        assert (await shared.collect()).deleted == 0
    assert await shared.is_whole(reference)
    assert await shared.keys(DOOMED) == []


async def test_a_deletion_that_was_under_way_when_its_part_was_published_again_is_made_good(shared: _Store) -> None:
    """The collector has read the tombstone and sent its deletion, which the store carries out a little later."""
    await unpublish(shared.store, await shared.publish("a", "b"))
    shared.clock.advance(_GRACE_S)
    await shared.collect()
    shared.clock.advance(_GRACE_S)
    published: list[str] = []

    class Slow(FaultyObjectStore):
        async def delete(self, keys: Sequence[str], *, timeout_s: float = 60.0) -> None:
            if not published and "chunks" in keys[0]:
                published.append("begun")
                opened = await shared.opened()

                async def sleep(duration_s: float) -> None:
                    shared.clock.advance(_WINDOW_S / 4)
                    await shared.store.delete(keys)
                    shared.clock.advance(duration_s - _WINDOW_S / 4)

                opened.times = Times(clock=shared.clock, sleep=sleep)
                published.append((await _publish(Publication(opened), ("a", "b"), None))[0])
                return
            await shared.store.delete(keys, timeout_s=timeout_s)

    times = Times(clock=shared.clock)
    await collect_layers(await open_layer_objects(Slow(shared.store), grace_s=_GRACE_S, times=times))
    assert len(published) == 2
    assert await shared.is_whole(published[1])
    for _ in range(3):
        shared.clock.advance(_GRACE_S)
        await shared.collect()
    assert await shared.is_whole(published[1])


async def test_a_collector_that_stood_still_deletes_nothing_for_a_later_tombstone(shared: _Store) -> None:
    """It saw what nobody needed. Then that was kept, forgotten, doomed again, and published, all within the rules."""
    await unpublish(shared.store, await shared.publish("a", "b"))
    shared.clock.advance(_GRACE_S)
    await shared.collect()
    shared.clock.advance(_GRACE_S)
    published: list[str] = []

    class Still(FaultyObjectStore):
        async def head(self, key: str, *, timeout_s: float = 60.0) -> ObjectInfo | None:
            if not published and key.startswith(DOOMED):
                published.append(await shared.publish("a", "b"))
                await unpublish(shared.store, published[0])
                for _ in range(2):
                    shared.clock.advance(2 * _WINDOW_S)
                    await shared.collect()
                published[0] = await shared.publish("a", "b")
                shared.clock.advance(_GRACE_S)
            return await super().head(key, timeout_s=timeout_s)

    times = Times(clock=shared.clock)
    report = await collect_layers(await open_layer_objects(Still(shared.store), grace_s=_GRACE_S, times=times))
    assert report.deleted == 0
    assert await shared.is_whole(published[0])


async def test_publishing_again_what_was_doomed_lately_waits_for_nothing(shared: _Store) -> None:
    await unpublish(shared.store, await shared.publish("a"))
    shared.clock.advance(_GRACE_S)
    await shared.collect()
    shared.clock.advance(_GRACE_S / 4)
    reference = await shared.publish("a")
    shared.clock.advance(_GRACE_S)
    assert (await shared.collect()).kept == 2
    assert (shared.slept, await shared.is_whole(reference)) == ([], True)


async def test_a_publication_that_stood_still_puts_again_what_was_deleted_meanwhile(shared: _Store) -> None:
    await unpublish(shared.store, await shared.publish("a", "b"))
    shared.clock.advance(_GRACE_S)
    publication = Publication(await shared.opened())
    rounds = []

    async def layers() -> LayerManifest:
        manifest, stored = _layer("a", "b")

        async def offer(only: frozenset[Part] | None) -> LayerManifest:
            for part, data in stored.items():
                await publication.offer(part, data)
            return manifest

        made = await settle_layer(publication, offer)
        rounds.append(made)
        if len(rounds) == 1:
            for _ in range(3):
                await shared.collect()
                shared.clock.advance(_GRACE_S)
            assert await shared.keys("layers/chunks/") == []
        return made

    reference, _ = await publish_document(publication, layers, _document)
    assert len(rounds) == 2
    assert await shared.is_whole(reference)


async def test_who_sends_again_puts_right_what_rotted(shared: _Store) -> None:
    await shared.publish("a")
    (key,) = await shared.keys("layers/chunks/")
    _, stored = _layer("a")
    ((part, data),) = [(part, data) for part, data in stored.items() if part.key == key]
    await shared.store.put(key, b"rotten")
    for resend in (False, True):
        assert await Publication(await shared.opened(), resend=resend).offer(part, data) is resend
        assert (await shared.store.get(key) == data) is resend


async def test_a_layer_that_a_host_holds_stays_until_its_pin_is_old(shared: _Store) -> None:
    reference = await shared.publish("a")
    manifest = (await fetch_document(shared.store, reference)).layers[0].manifest
    await pin(shared.store, _HOST, [manifest])
    await unpublish(shared.store, reference)
    for _ in range(3):
        shared.clock.advance(_GRACE_S)
        assert (await shared.collect()).pins == 1
    await fetch_manifest(shared.store, manifest)
    shared.clock.advance(PIN_S)
    for _ in range(3):
        await shared.collect()
        shared.clock.advance(_GRACE_S)
    assert await shared.keys() == []


async def test_a_host_takes_back_the_pins_of_what_it_has_no_more_and_not_those_of_others(shared: _Store) -> None:
    await pin(shared.store, _HOST, ["a" * 64, "b" * 64])
    await pin(shared.store, _OTHER, ["b" * 64])
    await unpin(shared.store, _HOST, ["b" * 64])
    assert await pinned(shared.store, _HOST) == {"a" * 64}
    assert await pinned(shared.store, _OTHER) == {"b" * 64}


async def test_traces_go_with_their_image(shared: _Store) -> None:
    reference = await shared.publish("a")
    key = f"{TRACES}{reference.removeprefix('b3:')}/python3.json"
    await shared.store.put(key, b"{}")
    shared.clock.advance(_GRACE_S)
    assert (await shared.collect()).traces == 0
    await unpublish(shared.store, reference)
    assert (await shared.collect()).traces == 1
    assert await shared.keys(TRACES) == []


@pytest.mark.parametrize("damage", ["document", "manifest", "no manifest", "later version"])
async def test_while_something_cannot_be_read_nothing_is_deleted(shared: _Store, damage: str) -> None:
    bad, gone = await shared.publish("a"), await shared.publish("b")
    await unpublish(shared.store, gone)
    shared.clock.advance(_GRACE_S)
    await shared.collect()
    shared.clock.advance(_GRACE_S)
    manifest = Part.manifest((await fetch_document(shared.store, bad)).layers[0].manifest)
    match damage:
        case "document":
            await shared.store.put(image_key(bad.removeprefix("b3:")), b"{}")
        case "manifest":
            await shared.store.put(manifest.key, b"{}")
        case "no manifest":
            await shared.store.delete([manifest.key])
        case _:
            later = b'{"version":2,"what":"ever"}'
            await put_document(shared.store, later)
    before = await shared.keys("layers/chunks/")
    report = await shared.collect()
    assert (report.deleted, report.doomed, len(report.damaged)) == (0, 0, 1)
    assert await shared.keys("layers/chunks/") == before


async def test_a_layer_that_is_here_by_its_name_only_is_relied_on_or_refused(shared: _Store) -> None:
    reference = await shared.publish("a")
    manifest, _ = _layer("a")
    publication = Publication(await shared.opened())
    assert (await rely_on_layer(publication, manifest.id)).new_chunks == 0
    await shared.store.delete([Part.chunk(manifest.chunks[0].id).key])
    with pytest.raises(InvalidRequestError, match="only its name"):
        await rely_on_layer(Publication(await shared.opened()), manifest.id)
    assert reference


# Tags.


async def test_a_tag_moves_and_the_image_goes_with_its_last_tag(shared: _Store) -> None:
    first = await shared.publish("a", tag="env:v1")
    await shared.publish("a", tag="env")
    assert await resolve(shared.store, "env:latest") == first
    second = await shared.publish("b", tag="env")
    assert await resolve(shared.store, "env") == second
    with pytest.raises(InvalidRequestError, match="tagged env:v1"):
        await unpublish(shared.store, first)
    assert await unpublish(shared.store, "env:v1") == first
    assert [each.tags for each in await list_published(shared.store)] == [("env",)]
    with pytest.raises(ObjectNotFoundError, match="no image tagged"):
        await unpublish(shared.store, "env:v1")
    with pytest.raises(ObjectNotFoundError, match="no image"):
        await unpublish(shared.store, first)


async def test_an_image_with_two_tags_stays_when_one_goes(shared: _Store) -> None:
    reference = await shared.publish("a", tag="one")
    await shared.publish("a", tag="two")
    assert await unpublish(shared.store, "one") == ""
    assert await shared.is_whole(reference)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"version":1,"name":"other","reference":"b3:%s"}' % (b"a" * 64), b'{"version":2}']
)
async def test_a_tag_that_says_no_image_is_named(shared: _Store, data: bytes) -> None:
    await shared.store.put(tag_key("env"), data)
    with pytest.raises(StateCorruptedError, match="env"):
        await resolve(shared.store, "env")


async def test_a_listing_names_what_is_wrong(shared: _Store) -> None:
    good = await shared.publish("a", tag="good")
    bad = await shared.publish("b", tag="bad")
    await shared.store.put(image_key(bad.removeprefix("b3:")), b"{}")
    gone = await shared.publish("c", tag="gone")
    await shared.store.delete([image_key(gone.removeprefix("b3:"))])
    found = {each.tags[0]: each for each in await list_published(shared.store)}
    assert (found["good"].reference, found["good"].layers, found["good"].problem) == (good, 1, "")
    assert "its name is" in found["bad"].problem
    assert found["gone"].problem == "it is not there"


async def test_a_store_of_another_version_or_grace_period_is_refused(shared: _Store) -> None:
    await shared.opened()
    with pytest.raises(InvalidRequestError, match="grace period"):
        await shared.opened(grace_s=_GRACE_S + 1)
    await shared.store.put(FORMAT, b'{"version":2,"grace_s":1.0}')
    with pytest.raises(CapabilityMissingError, match="version 2"):
        await shared.opened()
    await shared.store.put(FORMAT, b"garbage")
    with pytest.raises(StateCorruptedError, match="does not parse"):
        await shared.opened()


# All at once: tasks whose every call to the store is let through one at a time, in a drawn order.


@dataclass
class _World:
    """Publishers, pullers, unpublishers and collectors on one store, and what must hold of it."""

    inner: ObjectStore
    draw: random.Random
    turnstile: Turnstile = field(default_factory=lambda: Turnstile(ManualClock()))
    times: dict[str, float] = field(default_factory=dict)
    scopes: dict[str, anyio.CancelScope] = field(default_factory=dict)
    publishing: dict[str, tuple[str, ...]] = field(default_factory=dict)
    pulled: dict[str, float] = field(default_factory=dict)
    """Manifests, and the latest time at which a pull of each that succeeded pinned it."""
    log: list[str] = field(default_factory=list)
    tasks: int = 0
    done: dict[str, int] = field(default_factory=dict)
    pace: dict[str, float] = field(default_factory=dict)
    failures: list[BaseException] = field(default_factory=list)

    def store(self, who: str) -> GatedStore:
        return GatedStore(self.inner, self.turnstile, who, self.times)

    def start(self, group: anyio.abc.TaskGroup, what: str) -> None:
        self.tasks += 1
        who = f"{what}-{self.tasks}"
        scope = self.scopes[who] = anyio.CancelScope()

        async def run() -> None:
            with scope:
                try:
                    await getattr(self, what)(who)
                    self.done[what] = self.done.get(what, 0) + 1
                except (ObjectNotFoundError, InvalidRequestError) as error:
                    self.log.append(f"{who}: {error.brief}")
                except DsecError as error:
                    self.failures.append(error)
            self.scopes.pop(who)
            self.publishing.pop(who, None)

        group.start_soon(run)

    async def _objects(self, who: str):  # type: ignore[no-untyped-def]
        times = Times(clock=self.turnstile.clock, sleep=self.turnstile.sleeper(who))
        return await open_layer_objects(self.store(who), grace_s=_GRACE_S, times=times)

    def _letters(self) -> tuple[str, ...]:
        return tuple(self.draw.choice(["a", "ab", "bc", "c"]))

    async def publish(self, who: str) -> None:
        letters = self._letters()
        self.publishing[who] = letters
        await _publish(Publication(await self._objects(who)), letters, self.draw.choice([None, None, None, "one"]))

    async def pull(self, who: str) -> None:
        manifest = _layer(*self._letters())[0]
        name = f"b3:{image_name(manifest)}"
        store = self.store(who)
        await fetch_document(store, name)
        await fetch_manifest(store, manifest.id)
        await pin(store, _HOST, [manifest.id])
        pinned_at_s = self.turnstile.clock.wall_s()
        if await store.head(image_key(image_name(manifest))) is None:
            raise ObjectNotFoundError("unpublished meanwhile")
        self.pulled[manifest.id] = max(pinned_at_s, self.pulled.get(manifest.id, 0.0))

    async def unpublish(self, who: str) -> None:
        what = self.draw.choice(["one", f"b3:{image_name(_layer(*self._letters())[0])}"])
        await unpublish(self.store(who), what)

    async def collect(self, who: str) -> None:
        await collect_layers(await self._objects(who))

    async def check(self) -> None:
        """Every image that can be pulled is whole, and so is what hosts pulled."""
        under_way = {image_name(_layer(*letters)[0]) for letters in self.publishing.values()}
        async for info in self.inner.list("layers/images/"):
            name = info.key.rpartition("/")[2].removesuffix(".json")
            if name not in under_way:
                document = await fetch_document(self.inner, f"b3:{name}")
                await self._check_layer(document.layers[0].manifest)
        for manifest_id, pinned_at_s in self.pulled.items():
            if self.turnstile.clock.wall_s() - pinned_at_s < PIN_S:
                await self._check_layer(manifest_id)

    async def _check_layer(self, manifest_id: str) -> None:
        manifest = await fetch_manifest(self.inner, manifest_id)
        for ref in manifest.chunks:
            assert await self.inner.head(Part.chunk(ref.id).key) is not None, f"chunk {ref.id[:8]} was lost"

    def chosen(self) -> Waiting:
        """Return a waiting call. Some tasks are far slower than others, now these, now those; deletions take time."""
        waiting, draw = self.turnstile.waiting, self.draw
        for call in waiting:
            if call.who not in self.pace or draw.random() < 0.01:
                self.pace[call.who] = draw.choice([0.003, 0.1, 1.0])
        weights = [self.pace[call.who] * (0.05 if call.action == "delete" else 1.0) for call in waiting]
        return draw.choices(waiting, weights)[0]

    def may_pass(self, duration_s: float) -> bool:
        """Whether the clock may move while these calls wait.

        What was sent takes less than half a window; a document is put within an eighth of the grace period.
        """
        then_s = self.turnstile.clock.boot_s() + duration_s
        for call in self.turnstile.waiting:
            longest_s = None
            if call.action == "delete":
                longest_s = _WINDOW_S / 2
            elif call.action == "put" and call.key.startswith(("layers/images/", "layers/tags/")):
                longest_s = _GRACE_S / 8
            if longest_s is not None and then_s - call.since_s > longest_s:
                return False
        return True


def image_name(manifest: LayerManifest) -> str:
    from dsec.images.lazy.formats.stored import name_of

    return name_of(_document(manifest))


async def _live_through(inner: ObjectStore, seed: int, steps: int) -> _World:
    """Let tasks interleave for so many steps; then let all end, and see that nothing is lost and nothing stays.

    Real code, with many chunks; what each rule is needed for is shown in a small world (test_collection_model.py).
    """
    draw = random.Random(seed)
    world = _World(inner, draw)
    turnstile = world.turnstile
    async with anyio.create_task_group() as group:
        for _ in range(steps):
            await turnstile.settle()
            chance = draw.random()
            if chance < 0.06 and len(world.scopes) < 5:
                world.start(group, draw.choice(["publish", "pull", "unpublish", "unpublish", "collect", "collect"]))
            elif chance < 0.07 and world.scopes:
                # Killed: what it was about to do, it does not.
                world.scopes[draw.choice(sorted(world.scopes))].cancel()
            elif chance < 0.14:
                duration_s = draw.choice(
                    [1.0, _WINDOW_S / 4, _WINDOW_S, 2 * _WINDOW_S, _GRACE_S / 4, _GRACE_S / 2, _GRACE_S]
                )
                if world.may_pass(duration_s):
                    turnstile.clock.advance(duration_s)
            elif turnstile.waiting:
                call = world.chosen()
                if call.until_s is None or world.may_pass(call.until_s - turnstile.clock.boot_s()):
                    turnstile.let(call)
            if chance > 0.97:
                await turnstile.settle()
                await world.check()
        while world.scopes:
            await turnstile.settle()
            if turnstile.waiting:
                turnstile.let(world.chosen())
        await turnstile.settle()
        await world.check()
    assert world.failures == []
    await _nothing_stays(world)
    return world


async def _nothing_stays(world: _World) -> None:
    clock = world.turnstile.clock

    async def go() -> None:
        while True:
            await world.turnstile.settle()
            for call in list(world.turnstile.waiting):
                world.turnstile.let(call)

    async with anyio.create_task_group() as group:
        group.start_soon(go)
        await world.inner.delete([tag_key("one")])
        await world.inner.delete([info.key async for info in world.inner.list("layers/images/")] or ["layers/none"])
        clock.advance(PIN_S)
        for _ in range(5):
            await world.collect("last")
            clock.advance(_GRACE_S)
        group.cancel_scope.cancel()
    assert [info.key async for info in world.inner.list("layers/") if info.key != FORMAT] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
async def test_no_draw_of_interleavings_loses_what_is_published_or_pulled_and_nothing_stays(seed: int) -> None:
    await _live_through(MemoryObjectStore(), seed, 4000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_folder_loses_nothing_either(tmp_path: Path, seed: int) -> None:
    await _live_through(FolderObjectStore(tmp_path / "store"), seed, 1500)


@pytest.mark.slow
async def test_a_real_service_loses_nothing_either(s3_server: S3Server, s3_url: str) -> None:
    store = open_store(s3_url, environment=s3_server.environment)
    try:
        await _live_through(store, 3, 1500)
    finally:
        await store.aclose()
