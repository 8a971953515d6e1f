"""Traces of real sandboxes, and what is brought by them before the next sandbox reads it."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pytest
from tests.system.conftest import dsec

from dsec.base.errors import CommandNotFoundError, InvalidRequestError
from dsec.cli.image_prefetching import PrefetchOrder, bring
from dsec.cli.image_tracing import TraceOrder, record_trace
from dsec.images.importers.directory import import_directory
from dsec.images.importers.request import ImportRequest
from dsec.images.lazy.formats.manifest import BLOCK_BYTES
from dsec.images.lazy.publication.published_traces import trace_prefix
from dsec.images.lazy.publication.sharing import publish_image, pull_image
from dsec.images.lazy.serving.client import LAZY, LayerDaemon, end_daemon, lazy_layers
from dsec.images.lazy.tracing.image_use import ImageUse, image_uses
from dsec.images.lazy.tracing.traces import FIRST_USE, Trace, TraceShelf
from dsec.images.staging import remove_tree
from dsec.images.store import LocalImageStore
from dsec.linux.mounts import mounts_under
from dsec.model.prefetch import PrefetchHint, PrefetchStep
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec
from dsec.node.builder import daemon_options, open_node
from dsec.node.settings import NodeSettings
from dsec.stores.objects_folder import FolderObjectStore

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]

_SCRIPT = "perl -e 'print 6 * 7'"
_READS = ("sh", "-c", _SCRIPT)


def _settings(state_dir: Path, **changes: object) -> NodeSettings:
    settings = NodeSettings(
        state_dir=str(state_dir),
        store=(state_dir.parent / "objects").as_uri(),
        prefetch_share=1.0,
        bandwidth_bytes_s=1 << 40,
    )
    return msgspec.structs.replace(settings, **changes)


def _images(state_dir: Path) -> LocalImageStore:
    settings = _settings(state_dir)
    root = state_dir / "images"
    return LocalImageStore(root, lazy=lazy_layers(root, daemon_options(settings, settings.store)))


def _daemon(state_dir: Path) -> LayerDaemon:
    settings = _settings(state_dir)
    return LayerDaemon(state_dir / "images" / LAZY, daemon_options(settings, settings.store))


async def _pulled(state_dir: Path) -> None:
    """Make the image of a state directory one that is here by its manifest only, larger than one chunk."""
    objects = FolderObjectStore(state_dir.parent / "objects")
    here = LocalImageStore(state_dir / "images")
    reference = (await publish_image(here, "guest", objects)).reference
    here.close()
    shutil.rmtree(state_dir / "images")
    there = LocalImageStore(state_dir / "images")
    await pull_image(there, reference, objects)
    there.close()


async def _traced(state_dir: Path, argv: tuple[str, ...] = _READS, repeat: int = 1) -> Trace:
    images = _images(state_dir)
    try:
        order = TraceOrder(image="guest", argv=argv, repeat=repeat, timeout_s=60.0, settings=_settings(state_dir))
        (trace,) = await record_trace(images, order)
        TraceShelf(images.root).put(trace)
        return trace
    finally:
        images.close()


def _make_cold(state_dir: Path) -> None:
    """Have nothing of the image here but its manifest and its traces."""
    remove_tree(state_dir / "images/mounts")
    (state_dir / "images/mounts").mkdir(mode=0o700)
    end_daemon(state_dir / "images" / LAZY)
    remove_tree(state_dir / "images" / LAZY)


def _use(state_dir: Path) -> ImageUse:
    images = _images(state_dir)
    try:
        (use,) = image_uses(images, [images.get("guest")], _daemon(state_dir))
        return use
    finally:
        images.close()


async def _wait(condition: Callable[[], bool]) -> None:
    def look() -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "it never came to be"
            time.sleep(0.01)

    await anyio.to_thread.run_sync(look)


async def test_a_trace_names_what_a_command_reads_and_leaves_nothing(state_dir: Path) -> None:
    trace = await _traced(state_dir, repeat=2)
    assert trace.command == "perl"
    assert trace.runs == 2
    assert trace.layers[0].manifest == ""
    size_bytes = sum(layer.size_bytes for layer in trace.layers)
    assert 0 < trace.read_bytes < size_bytes
    assert not (state_dir / "tracing").exists()
    with pytest.raises(CommandNotFoundError):
        await _traced(state_dir, ("no-such-program",))
    assert not (state_dir / "tracing").exists()


async def test_each_image_of_a_stack_has_a_trace_of_what_was_read_of_it(state_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "opt/tool").mkdir(parents=True)
    for name in ("read", "unread"):
        (tmp_path / f"opt/tool/{name}").write_bytes(random.randbytes(200_000))
    images = _images(state_dir)
    try:
        import_directory(images, ImportRequest(path=tmp_path, name="tool"))
        order = TraceOrder(
            image="guest",
            above=("tool",),
            argv=("sh", "-c", "cat /opt/tool/read | wc -c"),
            repeat=1,
            timeout_s=60.0,
            settings=_settings(state_dir),
        )
        base, tool = await record_trace(images, order)
        assert [trace.image_id for trace in (base, tool)] == [images.get(name).image_id for name in ("guest", "tool")]
        assert (base.command, tool.command) == ("cat", "cat")
        assert base.reads
        assert 196_608 <= tool.read_bytes < 400_000, "what was read, and what the kernel read ahead"
        assert {layer for layer, *_ in tool.reads} == {0}
    finally:
        images.close()


def _program(state_dir: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "dsec", "--state-dir", str(state_dir), *arguments]


def _sleeps(seconds: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes() == b"sleep\0" + seconds.encode() + b"\0":
                return True
    return False


async def test_what_a_killed_recording_left_the_next_one_clears_away(state_dir: Path) -> None:
    seconds = str(random.randrange(10_000, 99_999))
    command = _program(state_dir, "image", "trace", "guest", "--", "sleep", seconds)
    # It is killed, which nothing but the process itself can be.
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as recording:  # noqa: ASYNC220
        await _wait(lambda: _sleeps(seconds))
        recording.kill()
    node_id = (state_dir / "tracing/node.id").read_text().strip()
    failing = dsec(state_dir, "image", "trace", "guest", "--", "perl", "-e", "die 'no tests'")
    assert "warning: the command exited with 255: no tests" in failing.stderr
    done = dsec(state_dir, "image", "trace", "guest", "--json", "--", *_READS)
    (trace,) = msgspec.json.decode(done.stdout)
    assert trace["command"] == "perl"
    assert not _sleeps(seconds)
    assert not (state_dir / "tracing").exists()
    assert not (Path("/run/dsec") / node_id).exists()
    assert not list(mounts_under(state_dir / "tracing"))
    (use,) = msgspec.json.decode(dsec(state_dir, "image", "stats", "guest", "--json").stdout)
    assert use["commands"] == ["perl"]
    assert use["local_bytes"] == use["size_bytes"], "it is wholly here, and nothing of it is seen"
    wanted = msgspec.json.decode(dsec(state_dir, "image", "prefetch", "guest", "--json").stdout)["wanted"]
    assert wanted == 0


def _is_the_same_and_ends(found: Trace, trace: Trace) -> bool:
    """Tell whether a moved trace holds what was read, and at most a block more of each file: its end was metadata."""
    return 0 <= found.read_bytes - trace.read_bytes <= 16 * BLOCK_BYTES


async def test_traces_go_with_a_published_image(state_dir: Path, tmp_path: Path) -> None:
    trace = await _traced(state_dir)
    objects = FolderObjectStore(state_dir.parent / "objects")
    here = LocalImageStore(state_dir / "images")
    published = await publish_image(here, "guest", objects)
    here.close()
    await objects.put(f"{trace_prefix(published.reference)}run-nonsense.json", b"\xff nonsense")
    there = LocalImageStore(tmp_path / "images")
    pulled = await pull_image(there, published.reference, objects)
    (found,) = TraceShelf(there.root).of(pulled.image_id)
    assert _is_the_same_and_ends(found, trace)
    assert [layer.manifest for layer in found.layers] == list(published.manifests)
    there.tag("guest", "other")
    there.remove("guest")
    assert TraceShelf(there.root).of(pulled.image_id) == (found,)
    there.remove("other")
    assert not list((there.root / "traces").iterdir())
    there.close()


async def test_an_image_laid_out_by_its_traces_is_the_same_and_its_traces_are_about_the_new_files(
    state_dir: Path,
) -> None:
    trace = await _traced(state_dir)
    objects = FolderObjectStore(state_dir.parent / "objects")
    here = LocalImageStore(state_dir / "images")
    plain = await publish_image(here, "guest", objects)
    published = await publish_image(here, "guest", objects, by_traces=True)
    here.close()
    assert published.manifests != plain.manifests
    shutil.rmtree(state_dir / "images")
    there = _images(state_dir)
    try:
        pulled = await pull_image(there, published.reference, objects)
        await anyio.to_thread.run_sync(there.verify, "guest")
        (found,) = TraceShelf(there.root).of(pulled.image_id)
        assert [layer.manifest for layer in found.layers] == list(published.manifests)
        assert _is_the_same_and_ends(found, trace)
        assert len(found.chunks()) <= len(trace.chunks())
        again = await _traced(state_dir)
        assert set(again.chunks()) <= set(found.chunks()), "what is read now is where the trace says"
    finally:
        there.close()
        _make_cold(state_dir)
        remove_tree(state_dir / "images/mounts")


async def test_what_a_sandbox_will_read_comes_before_it_reads_it(state_dir: Path) -> None:
    await _pulled(state_dir)
    trace = await _traced(state_dir)
    assert trace.layers[0].manifest
    wanted = len(trace.chunks())
    _make_cold(state_dir)
    daemon = _daemon(state_dir)
    async with open_node(_settings(state_dir)) as node:
        box = (await node.create(SandboxSpec(image="guest"))).sandbox_id
        await _wait(lambda: daemon.prefetch_progress(box).wanted == wanted and daemon.prefetch_progress(box).is_over)
        assert (await node.run(box, CommandRequest(argv=_READS))).stdout == b"42"
        use = await anyio.to_thread.run_sync(_use, state_dir)
        assert use.touched_bytes > 0
        assert use.commands == ("perl",)
        assert use.wasted_bytes + use.touched_bytes <= use.fetched_bytes
        hint = PrefetchHint(sandbox_id=box, steps=(PrefetchStep(images=("guest",), command="sh"),))
        assert (await node.prefetch.hint(hint)).wanted == wanted
        await node.remove(box)
        await _wait(lambda: not daemon.prefetch_progress(box).wanted)
        coming = PrefetchHint(owner="rollout", steps=(PrefetchStep(images=("guest",)), PrefetchStep(images=("none",))))
        assert (await node.prefetch.hint(coming)).wanted == wanted
        with pytest.raises(InvalidRequestError):
            await node.prefetch.hint(PrefetchHint(steps=coming.steps))


async def test_ordinary_use_of_an_image_without_traces_is_kept_where_that_is_wanted(state_dir: Path) -> None:
    await _pulled(state_dir)
    # Long enough for a busy host to start a command in.
    async with open_node(_settings(state_dir, trace_s=2.0)) as node:
        box = (await node.create(SandboxSpec(image="guest"))).sandbox_id
        await node.run(box, CommandRequest(argv=_READS))
        shelf = TraceShelf(state_dir / "images")
        images = _images(state_dir)
        image_id = images.get("guest").image_id
        images.close()
        await _wait(lambda: shelf.get(image_id, FIRST_USE) is not None)
        trace = shelf.get(image_id, FIRST_USE)
        assert trace is not None
        assert trace.source == "use"
        assert trace.chunks()
        await node.remove(box)


async def test_an_image_is_brought_by_hand(state_dir: Path) -> None:
    await _pulled(state_dir)
    images, daemon = _images(state_dir), _daemon(state_dir)

    def brought(*commands: str, everything: bool = False) -> tuple[int, int]:
        order = PrefetchOrder(image="guest", everything=everything, commands=commands, is_limited=False, waits=True)
        done = bring(images, daemon, order)
        return done.wanted, done.here + done.brought

    try:
        with pytest.raises(InvalidRequestError, match="no trace"):
            await anyio.to_thread.run_sync(brought)
        trace = await _traced(state_dir)
        wanted, here = await anyio.to_thread.run_sync(brought, "perl")
        assert wanted == here == len(trace.chunks())
        with pytest.raises(InvalidRequestError, match="perl"):
            await anyio.to_thread.run_sync(brought, "ruby")
        elsewhere = tuple(msgspec.structs.replace(layer, manifest="ab" * 32) for layer in trace.layers)
        TraceShelf(images.root).put(msgspec.structs.replace(trace, layers=elsewhere))
        assert await anyio.to_thread.run_sync(brought, "perl") == (0, 0), "what is about other files brings nothing"
        wanted, here = await anyio.to_thread.run_sync(lambda: brought(everything=True))
        assert wanted == here
        use = await anyio.to_thread.run_sync(_use, state_dir)
        assert use.here_bytes == use.size_bytes
    finally:
        images.close()
        _make_cold(state_dir)
        remove_tree(state_dir / "images/mounts")
