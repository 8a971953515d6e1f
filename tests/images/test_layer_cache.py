"""The local cache of chunks: what it keeps, what it gives up, and what a kill at any line leaves of it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from dsec.base.errors import CapabilityMissingError, StateLockedError, StoreUnavailableError
from dsec.images.lazy.caching.cache import DEFAULT_LIMIT_BYTES, LayerCache
from dsec.images.lazy.caching.cached_layer import METADATA, CachedLayer, recorded_bytes
from dsec.images.lazy.caching.recent import RecentChunks
from dsec.images.lazy.erofs.metadata import Extent
from dsec.images.lazy.formats import manifest as manifests
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES, encode
from dsec.linux import mounts
from dsec.testing.countdown import Countdown

_TAIL_BYTES = 3 * 4096
_METADATA = (Extent(0, 8192), Extent(16384, 4096))


def make_layer(*fills: int) -> tuple[LayerManifest, list[bytes], bytes]:
    """Return the manifest of a layer of chunks filled with bytes, the chunks, and the packed metadata."""
    contents = [bytes([fill]) * CHUNK_BYTES for fill in fills[:-1]] + [bytes([fills[-1]]) * _TAIL_BYTES]
    packed = b"".join(contents[0][extent.start : extent.end] for extent in _METADATA)
    manifest = manifests.make(
        "sha256:" + "ab" * 32,
        sum(map(len, contents)),
        3,
        chunks=[_piece(content) for content in contents],
        metadata=_METADATA,
        metadata_chunks=[_piece(packed)],
    )
    return manifest, contents, packed


def _piece(content: bytes) -> tuple[str, int]:
    name, stored = encode(content)
    return name, len(stored)


OpenCache = Callable[..., LayerCache]


@pytest.fixture
def open_cache(tmp_path: Path) -> Iterator[OpenCache]:
    opened: list[LayerCache] = []

    def open_one(limit_bytes: int = DEFAULT_LIMIT_BYTES, *, as_guest: bool = False) -> LayerCache:
        opened.append(LayerCache(tmp_path / "cache", limit_bytes=limit_bytes, as_guest=as_guest))
        return opened[-1]

    yield open_one
    for cache in opened:
        cache.close()


def test_what_was_stored_and_flushed_is_there_after_the_process(open_cache: OpenCache) -> None:
    manifest, contents, packed = make_layer(1, 2, 3)
    cache = open_cache()
    layer = cache.hold(manifest)
    assert layer.missing(0, 10) == [0]
    assert cache.store(layer, METADATA, packed)
    assert cache.store(layer, 2, contents[2])
    assert cache.flush() == 2
    cache.close()
    layer = open_cache().hold(manifest)
    assert layer.missing(0, manifest.size_bytes) == [0, 1]
    assert layer.read(4096, 4096) == contents[0][4096:8192]
    assert layer.read_chunk(2) == contents[2]
    assert layer.held_bytes == len(packed) + _TAIL_BYTES


def test_what_was_just_stored_is_read_from_memory_and_verified_from_the_disk(open_cache: OpenCache) -> None:
    manifest, contents, packed = make_layer(1, 2, 3)
    cache = open_cache()
    layer = cache.hold(manifest)
    for position, content in enumerate(contents):
        assert cache.store(layer, position, content)
    assert cache.store(layer, METADATA, packed)
    whole = b"".join(contents)
    assert layer.path.read_bytes() == whole
    with layer.path.open("r+b") as file:
        file.seek(CHUNK_BYTES + 5)
        file.write(b"rot")
    for start, length in ((0, 10), (CHUNK_BYTES, 4096), (CHUNK_BYTES, CHUNK_BYTES), (2 * CHUNK_BYTES, _TAIL_BYTES)):
        assert layer.read(start, length) == whole[start : start + length]
    assert layer.verify() == (4, [1])
    assert layer.missing(CHUNK_BYTES, 4096) == [1]
    assert cache.store(layer, 1, contents[1])
    cache.flush()
    cache.flush()  # Nothing is remembered any more: what follows is the disk's.
    assert layer.read(CHUNK_BYTES - 4096, 8192) == whole[CHUNK_BYTES - 4096 : CHUNK_BYTES + 4096]
    assert layer.verify() == (4, [])


def test_chunks_are_remembered_up_to_a_bound_and_until_the_second_flush() -> None:
    recent = RecentChunks(limit_bytes=100)
    for position, size in enumerate((50, 40, 30)):
        recent.put("m", position, bytes(size))
    assert [recent.get("m", position) is not None for position in range(3)] == [False, True, True]
    recent.put("m", 1, bytes(70))
    assert (recent.get("m", 2), recent.get("m", 1)) == (bytes(30), bytes(70))
    recent.age()
    recent.put("n", 0, bytes(10))
    assert (recent.get("m", 2), recent.get("m", 1)) == (None, bytes(70))
    recent.age()
    assert (recent.get("m", 1), recent.get("n", 0)) == (None, bytes(10))
    recent.put("o", 0, bytes(101))
    assert (recent.get("n", 0), recent.get("o", 0)) == (None, None)


def test_each_byte_of_a_layer_counts_once_in_what_is_here(open_cache: OpenCache) -> None:
    manifest, contents, packed = make_layer(1, 2, 3)
    cache = open_cache()
    layer = cache.hold(manifest)

    def here_bytes() -> int:
        seen = recorded_bytes(layer.directory, manifest.size_bytes)
        cache.flush()
        assert recorded_bytes(layer.directory, manifest.size_bytes) == seen, "who looks need not wait for a sync"
        return seen

    assert here_bytes() == 0
    assert cache.store(layer, METADATA, packed)
    assert here_bytes() == len(packed)
    assert cache.store(layer, 1, contents[1])
    assert here_bytes() == len(packed) + CHUNK_BYTES
    assert cache.store(layer, 0, contents[0])  # The metadata lies in it.
    assert here_bytes() == 2 * CHUNK_BYTES
    assert cache.store(layer, 2, contents[2])
    assert here_bytes() == manifest.size_bytes
    (layer.directory / "manifest.json").write_bytes(b"no manifest")
    assert here_bytes() == manifest.size_bytes
    assert recorded_bytes(layer.directory.with_name("none"), manifest.size_bytes) == 0


def test_what_was_written_and_not_synced_is_seen_by_who_looks_and_believed_by_nobody_else(
    open_cache: OpenCache, tmp_path: Path
) -> None:
    manifest, contents, _ = make_layer(1, 2)
    cache = open_cache()
    layer = cache.hold(manifest)
    cache.store(layer, 1, contents[1])
    cache.flush()
    cache.store(layer, 0, contents[0])
    directory = tmp_path / "as a crash leaves it" / manifest.id
    shutil.copytree(layer.directory, directory)
    assert recorded_bytes(directory, manifest.size_bytes) == manifest.size_bytes
    for as_guest in (True, False):
        opened = CachedLayer.open(directory, as_guest=as_guest)
        assert opened.positions() == [1]
        opened.close()
    assert recorded_bytes(directory, manifest.size_bytes) == len(contents[1])


def test_a_range_of_metadata_needs_no_chunk_and_one_beyond_it_does(open_cache: OpenCache) -> None:
    manifest, _, packed = make_layer(1, 2)
    cache = open_cache()
    layer = cache.hold(manifest)
    assert cache.store(layer, METADATA, packed)
    assert layer.missing(0, 8192) == []
    assert layer.missing(16384, 4096) == []
    assert layer.missing(4096, 8192) == [0]
    assert layer.missing(12288, 4096) == [0]
    assert layer.missing(CHUNK_BYTES - 1, 2) == [0, 1]


def test_a_layer_of_which_all_is_there_is_its_file(open_cache: OpenCache) -> None:
    manifest, contents, packed = make_layer(1, 2, 3)
    cache = open_cache()
    layer = cache.hold(manifest)
    cache.store(layer, METADATA, packed)
    for position, content in enumerate(contents):
        assert not layer.is_complete
        cache.store(layer, position, content)
    assert not layer.is_complete
    cache.flush()
    assert layer.is_complete
    assert layer.path.read_bytes() == b"".join(contents)


def test_the_longest_unused_layer_goes_first_and_what_is_held_stays(open_cache: OpenCache) -> None:
    cache = open_cache(limit_bytes=3 * CHUNK_BYTES)
    layers = []
    for number in (1, 2, 3):
        manifest, contents, _ = make_layer(number, 100)
        layer = cache.hold(manifest)
        assert cache.store(layer, 0, contents[0])
        layers.append(layer)
    for place, layer in enumerate((layers[1], layers[2])):
        cache.release(layer)
        os.utime(layer.directory, (1000 + place, 1000 + place))
    manifest, contents, _ = make_layer(4, 100)
    assert cache.store(cache.hold(manifest), 0, contents[0])
    assert not layers[1].directory.exists()
    assert layers[2].directory.exists()
    assert layers[0].has(0)
    assert cache.statistics().content_bytes == 3 * CHUNK_BYTES


def test_what_is_held_may_reach_the_bound_and_then_nothing_more_is_kept(open_cache: OpenCache) -> None:
    manifest, contents, packed = make_layer(1, 2, 3)
    cache = open_cache(limit_bytes=CHUNK_BYTES + len(packed))
    layer = cache.hold(manifest)
    assert cache.store(layer, METADATA, packed)
    assert cache.store(layer, 0, contents[0])
    assert not cache.store(layer, 1, contents[1])
    assert cache.store(layer, 0, contents[0]), "it is there already"
    assert layer.missing(0, manifest.size_bytes) == [1, 2]


def test_a_layer_held_twice_is_held_until_both_let_go(open_cache: OpenCache) -> None:
    manifest, _, _ = make_layer(1, 2)
    cache = open_cache()
    layer = cache.hold(manifest)
    assert cache.hold(manifest) is layer
    cache.release(layer)
    assert not cache.remove(manifest.id)
    cache.release(layer)
    assert cache.remove(manifest.id)
    assert not cache.remove(manifest.id)
    assert cache.statistics().layers == 0


def test_a_chunk_that_another_layer_has_is_not_fetched(open_cache: OpenCache) -> None:
    first, contents, _ = make_layer(1, 2, 3)
    second, _, _ = make_layer(9, 1, 3)
    cache = open_cache()
    layer, other = cache.hold(first), cache.hold(second)
    cache.store(layer, 0, contents[0])
    assert cache.from_another(other, 1) == contents[0]
    assert cache.from_another(other, 0) is None
    with layer.path.open("r+b") as file:
        file.write(b"?")
    assert cache.from_another(other, 1) is None, "it does not verify any more"


def test_damage_is_found_and_forgotten(open_cache: OpenCache) -> None:
    manifest, contents, packed = make_layer(1, 2, 3)
    cache = open_cache()
    layer = cache.hold(manifest)
    cache.store(layer, METADATA, packed)
    for position, content in enumerate(contents):
        cache.store(layer, position, content)
    cache.flush()
    assert layer.verify()[1] == []
    with layer.path.open("r+b") as file:
        file.seek(CHUNK_BYTES)
        file.write(b"?")
        file.seek(16384)
        file.write(b"?")
    assert layer.verify() == (4, [METADATA, 0, 1])
    cache.close()
    layer = open_cache().hold(manifest)
    assert layer.missing(0, manifest.size_bytes) == [0, 1]
    assert not layer.has(METADATA)


def test_a_cache_serves_one_process(open_cache: OpenCache) -> None:
    open_cache()
    with pytest.raises(StateLockedError, match="in use"):
        open_cache()


def test_a_guest_reads_what_is_recorded_and_writes_nothing_before_its_turn(
    open_cache: OpenCache, tmp_path: Path
) -> None:
    manifest, contents, _ = make_layer(1, 2, 3)
    other, later = make_layer(4, 5)[0], make_layer(6, 7)[0]
    first = open_cache()
    layer = first.hold(manifest)
    first.store(layer, 0, contents[0])
    first.flush()
    first.release(first.hold(other))
    files = [path for path in (tmp_path / "cache").rglob("*") if path.name != "lock"]
    before = [path.lstat().st_mtime_ns for path in files]
    guest = open_cache(0, as_guest=True)
    seen = guest.hold(manifest)
    assert seen.read_chunk(0) == contents[0]
    assert not guest.store(seen, 1, contents[1])
    assert (guest.remove(other.id), guest.flush()) == (False, 0)
    with pytest.raises(StateLockedError):
        guest.hold(later)
    guest.release(seen)
    assert guest.hold(manifest) is seen
    assert [path.lstat().st_mtime_ns for path in files] == before
    first.store(layer, 2, contents[2])
    first.close()
    assert guest.take()
    assert not guest.take()
    assert seen.missing(0, manifest.size_bytes) == [1]
    assert [each.manifest.id for each in guest.layers()] == [manifest.id], "the other one had no room"


@pytest.mark.parametrize("content", [b'{"version": 2}', b"{}", b"", b"\xff"])
def test_another_versions_cache_is_left_alone(open_cache: OpenCache, tmp_path: Path, content: bytes) -> None:
    open_cache().close()
    (tmp_path / "cache/format.json").write_bytes(content)
    with pytest.raises(CapabilityMissingError, match="remove"):
        open_cache()
    assert (tmp_path / "cache/format.json").read_bytes() == content


def _exchange(path: Path, kind: str, elsewhere: Path) -> None:
    """Put something of another kind in the place of a file or directory of the cache, or make it there."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(elsewhere)
    else:
        path.write_text("a file")


@pytest.mark.parametrize("kind", ["directory", "fifo", "link"])
@pytest.mark.parametrize("name", ["manifest.json", "data", "present", "origins.json"])
def test_a_layer_with_something_else_than_files_is_begun_anew_and_links_are_not_followed(
    open_cache: OpenCache, tmp_path: Path, name: str, kind: str
) -> None:
    """It harms no other layer either, which the same process serves."""
    (manifest, contents, _), (other, _, _) = make_layer(1, 2), make_layer(3, 4)
    cache = open_cache()
    layer = cache.hold(other)
    cache.store(cache.hold(manifest), 0, contents[0])
    cache.close()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("not the cache's")
    _exchange(layer.directory / name, kind, elsewhere)
    assert recorded_bytes(layer.directory, other.size_bytes) == 0
    cache = open_cache()
    assert cache.hold(other).positions() == []
    assert cache.hold(manifest).positions() == [0]
    assert elsewhere.read_text() == "not the cache's"


@pytest.mark.parametrize("kind", ["file", "fifo", "link"])
def test_what_has_a_layers_place_and_is_no_directory_makes_way_and_what_is_not_the_caches_stays(
    open_cache: OpenCache, tmp_path: Path, kind: str
) -> None:
    manifest, contents, _ = make_layer(1, 2)
    open_cache().close()
    (tmp_path / "elsewhere/precious").mkdir(parents=True)
    (tmp_path / "cache/lost+found/precious").mkdir(parents=True)
    _exchange(tmp_path / "cache" / manifest.id, kind, tmp_path / "elsewhere")
    cache = open_cache()
    assert cache.store(cache.hold(manifest), 0, contents[0])
    cache.close()
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == sorted(
        [manifest.id, "format.json", "lock", "lost+found"]
    )
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["precious"]
    assert (tmp_path / "cache/lost+found/precious").is_dir()


@pytest.mark.parametrize("place", ["", "lock", "format.json"])
def test_a_cache_that_cannot_be_used_says_which_and_what_to_do(
    open_cache: OpenCache, tmp_path: Path, place: str
) -> None:
    open_cache().close()
    _exchange(tmp_path / "cache" / place, "directory" if place else "file", tmp_path)
    with pytest.raises(StoreUnavailableError, match=f"{tmp_path}/cache cannot be used.*\n.*\n.*remove it"):
        open_cache()


@pytest.mark.parametrize("name", ["manifest.json", "data", "present"])
@pytest.mark.parametrize("content", [b"", b"\xff" * 3])
def test_damaged_files_of_a_layer_are_not_believed(open_cache: OpenCache, name: str, content: bytes) -> None:
    manifest, contents, _ = make_layer(1, 2)
    cache = open_cache()
    layer = cache.hold(manifest)
    cache.store(layer, 0, contents[0])
    cache.close()
    (layer.directory / name).write_bytes(content)
    layer = open_cache().hold(manifest)
    assert layer.missing(0, 1) == [0]
    assert layer.path.stat().st_size == manifest.size_bytes


@pytest.mark.root
@pytest.mark.parametrize(("size", "reserved"), [("6m", 0.0), ("8600k", 0.05)], ids=["full", "full but for a reserve"])
def test_a_full_disk_keeps_nothing_and_harms_nothing(
    tmp_path: Path, size: str, reserved: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsec.images.lazy.caching.cache._RESERVE_SHARE", reserved)
    mounts.mount("tmpfs", tmp_path, "tmpfs", options=f"size={size}")
    try:
        manifest, contents, _ = make_layer(1, 2, 3)
        cache = LayerCache(tmp_path / "cache")
        layer = cache.hold(manifest)
        assert cache.store(layer, 0, contents[0])
        assert not cache.store(layer, 1, contents[1])
        cache.flush()
        cache.close()
        cache = LayerCache(tmp_path / "cache")
        layer = cache.hold(manifest)
        assert layer.missing(0, manifest.size_bytes) == [1, 2]
        assert layer.verify()[1] == []
        cache.close()
    finally:
        mounts.unmount(tmp_path, detach=True)


def _fill(root: Path, acknowledge: Callable[[str, int], object]) -> None:
    """Keep chunks of two layers in a cache that holds one of them, and say what was flushed."""
    cache = LayerCache(root, limit_bytes=2 * CHUNK_BYTES)
    for number in (1, 2):
        manifest, contents, packed = make_layer(number, 100)
        layer = cache.hold(manifest)
        for position, content in ((METADATA, packed), (0, contents[0]), (1, contents[1])):
            cache.store(layer, position, content)
            cache.flush()
            acknowledge(manifest.id, position)
        cache.release(layer)
    cache.close()


def _killed_after(lines: int, root: Path) -> tuple[bool, list[tuple[str, int]]]:
    """Fill a cache in a process that dies after so many lines; return whether it did, and what it had acknowledged."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        Countdown(lines, ["images/lazy"]).begin()
        _fill(root, lambda name, position: os.write(writing, f"{name} {position}\n".encode()))
        sys.settrace(None)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = [line.split() for line in pipe.read().decode().splitlines()]
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status), [(name, int(position)) for name, position in said]


@pytest.mark.slow
def test_a_kill_at_any_line_leaves_only_what_is_true(tmp_path: Path) -> None:
    manifests_of = {manifest.id: manifest for manifest, _, _ in (make_layer(1, 100), make_layer(2, 100))}
    lines, died = 1, True
    while died:
        root = tmp_path / str(lines)
        died, acknowledged = _killed_after(lines, root)
        _check(root, list(manifests_of.values()), acknowledged)
        lines += 31
    assert lines > 600


def _check(root: Path, known: Sequence[LayerManifest], acknowledged: Sequence[tuple[str, int]]) -> None:
    cache = LayerCache(root)
    layers: list[CachedLayer] = [cache.hold(manifest) for manifest in known]
    for layer in layers:
        assert layer.verify()[1] == []
    # The second layer pushed the first one out once it needed its room.
    last = acknowledged[-1][0] if acknowledged else None
    for layer in layers:
        if layer.manifest.id == last:
            assert all(layer.has(position) for name, position in acknowledged if name == last)
    assert not [path for path in root.iterdir() if path.name.startswith(".doomed-")]
    cache.close()
