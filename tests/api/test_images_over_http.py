"""Images are pulled, published, pushed and verified over HTTP: each once, with progress and errors as in process."""

from __future__ import annotations

import dataclasses
import os
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from dsec.api.server import TcpAddress, serve
from dsec.base.errors import (
    CapabilityMissingError,
    ImageNotFoundError,
    InvalidRequestError,
    NodeUnavailableError,
    NotFoundError,
    ObjectNotFoundError,
    UnauthorizedError,
    WorkCancelledError,
)
from dsec.images.lazy.collection.opened import open_layer_objects
from dsec.images.lazy.serving.client import LAZY, LayerDaemon
from dsec.images.lazy.serving.daemon_options import DaemonOptions
from dsec.images.local_work import LocalImageWork
from dsec.images.store import LocalImageStore
from dsec.images.work import ImageWork, Say
from dsec.model.image import ImageConfig, LayerFormat
from dsec.model.image_work import (
    ImageProgress,
    ImagePublish,
    ImagePull,
    ImageReport,
    ImageRequest,
    ImageWorkInfo,
    work_id_of,
)
from dsec.node.image_work import AT_ONCE, WAITING
from dsec.node.node import Node
from dsec.sdk._async.client import AsyncClient
from dsec.sdk._sync.client import Client
from dsec.sdk.http import HttpService
from dsec.sdk.images import images_of
from dsec.stores.objects_folder import FolderObjectStore
from dsec.testing.ended_layers import layers_ended
from dsec.testing.faulty_registry import Fault, Seen, run_faulty_registry
from dsec.testing.memory_image_work import MemoryImageWork
from dsec.testing.memory_node import MemoryHost
from dsec.testing.registry_server import RegistryServer

pytestmark = pytest.mark.anyio

TOKEN = "a-token-for-tests"


@asynccontextmanager
async def _served(work: ImageWork) -> AsyncIterator[str]:
    """Serve a node with this work on images; give its URL."""
    parts = dataclasses.replace(MemoryHost().parts(), image_work=work)
    async with Node.open(parts) as node, serve(node, tcp=TcpAddress(token=TOKEN)) as serving:
        yield serving.url


@pytest.fixture
def work() -> MemoryImageWork:
    return MemoryImageWork()


@pytest.fixture
async def url(work: MemoryImageWork) -> AsyncIterator[str]:
    async with _served(work) as url:
        yield url
        work.may_end.set()


async def _until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - it comes about in another thread.
            await anyio.sleep(0.002)


async def test_progress_comes_first_and_the_report_last(url: str, work: MemoryImageWork) -> None:
    told: list[ImageProgress] = []

    def progress(event: ImageProgress) -> None:
        told.append(event)
        work.may_end.set()

    async with AsyncClient(url, token=TOKEN) as client:
        assert (await client.pull_image("registry.example/a:v1", on_progress=progress)).name == "registry.example/a:v1"
        assert told == [ImageProgress(what="working", done=1, total=2)]
        assert (await client.publish_image("a", tag="b")).reference == "b3:1"
        assert (await client.push_image("a", "registry.example/a:v1")).reference == "registry.example/a:v1"
        verified = await client.verify_image("a", full=True)
        assert (verified.ok, [finding.part for finding in verified.findings]) == (True, ["manifest"])
        assert (await client.image_layers("a", workspace="w", toolkits=["t", "u"])).images == ("a", "w", "t", "u")
        with pytest.raises(ImageNotFoundError):
            await client.image_statistics("a")


async def test_who_asks_the_same_joins_and_who_leaves_stops_nothing(url: str, work: MemoryImageWork) -> None:
    async with AsyncClient(url, token=TOKEN) as client:
        names: list[str] = []
        told: list[ImageProgress] = []

        async def pull() -> None:
            names.append((await client.pull_image("registry.example/a:v1", on_progress=told.append)).name)

        async with anyio.create_task_group() as leaving:
            leaving.start_soon(pull)
            await _until(lambda: bool(told))
            leaving.cancel_scope.cancel()
        told.clear()
        async with anyio.create_task_group() as group:
            group.start_soon(pull)
            group.start_soon(pull)
            await _until(lambda: len(told) == 2)
            work.may_end.set()
        assert names == ["registry.example/a:v1"] * 2
        assert work.asked == [ImagePull(reference="registry.example/a:v1")]
        await pull()
        assert len(work.asked) == 2, "asked for again it is looked at again"


async def test_errors_are_those_of_the_work(url: str, work: MemoryImageWork) -> None:
    work.error = UnauthorizedError("the registry does not let us in", resolution="podman login registry.example")
    work.may_end.set()
    async with AsyncClient(url, token=TOKEN) as client:
        for _ in range(2):
            with pytest.raises(UnauthorizedError, match="does not let us in") as raised:
                await client.pull_image("registry.example/a:v1")
            assert "podman login" in raised.value.resolution
        with pytest.raises(InvalidRequestError):
            await client.pull_image("x" * 1001)


async def test_more_than_a_node_takes_are_refused(url: str, work: MemoryImageWork) -> None:
    async with AsyncClient(url, token=TOKEN) as client:
        images = images_of(await client.service())
        for number in range(AT_ONCE + WAITING):
            async with images.pull(ImagePull(reference=f"tag-{number}")):
                pass
        with pytest.raises(NodeUnavailableError, match="go on or wait"):
            await client.pull_image("one-more")
        await _until(lambda: len(work.asked) == AT_ONCE)
        work.may_end.set()
        await _until(lambda: len(work.asked) == AT_ONCE + WAITING)
        assert (await client.pull_image("one-more")).name == "one-more"


async def test_work_that_is_cancelled_ends_for_all_who_watch_it_and_is_cleared_away(
    url: str, work: MemoryImageWork
) -> None:
    request = ImagePull(reference="registry.example/a:v1")
    failed: list[WorkCancelledError] = []
    async with AsyncClient(url, token=TOKEN) as client:

        async def pull() -> None:
            with pytest.raises(WorkCancelledError, match="cancelled") as raised:
                await client.pull_image(request.reference)
            failed.append(raised.value)

        async with anyio.create_task_group() as group:
            group.start_soon(pull)
            group.start_soon(pull)
            await _until(lambda: bool(work.asked))
            while (going_on := await client.image_work()) and going_on[0].progress is None:
                pass
            (told,) = going_on
            assert told == ImageWorkInfo(
                work_id=work_id_of(request),
                kind="pull",
                image=request.reference,
                is_waiting=False,
                progress=ImageProgress(what="working", done=1, total=2),
            )
            await client.cancel_image_work(told)
        assert (len(failed), work.cancelled, work.cleared) == (2, [request], [request])
        assert await client.image_work() == []
        with pytest.raises(NotFoundError, match="goes on"):
            await client.cancel_image_work(told.work_id)
        work.may_end.set()
        assert (await client.pull_image(request.reference)).name == request.reference


async def test_work_that_waits_can_be_cancelled_and_what_is_done_cannot(url: str, work: MemoryImageWork) -> None:
    async with AsyncClient(url, token=TOKEN) as client:
        images = images_of(await client.service())
        for number in range(AT_ONCE + 1):
            async with images.publish(ImagePublish(image=f"image-{number}", store="s3://bucket")):
                pass
        await _until(lambda: len(work.asked) == AT_ONCE)
        *_, last = await client.image_work()
        assert (last.kind, last.image, last.is_waiting) == ("publish", f"image-{AT_ONCE}", True)
        await client.cancel_image_work(last)
        assert len(await client.image_work()) == AT_ONCE
        work.may_end.set()
        with anyio.fail_after(60):
            while await client.image_work():
                pass
        assert len(work.asked) == AT_ONCE


async def test_work_that_is_done_when_it_is_cancelled_is_done() -> None:
    class Late(MemoryImageWork):
        async def carry_out(self, request: ImageRequest, say: Say) -> ImageReport:
            report: list[ImageReport] = []
            with anyio.CancelScope(shield=True):
                report.append(await super().carry_out(request, say))
            return report[0]

    late = Late()
    async with _served(late) as url, AsyncClient(url, token=TOKEN) as client, anyio.create_task_group() as group:
        pulled: list[str] = []

        async def pull() -> None:
            pulled.append((await client.pull_image("tag")).name)

        async def cancel() -> None:
            await client.cancel_image_work(work_id_of(ImagePull(reference="tag")))

        group.start_soon(pull)
        await _until(lambda: bool(late.asked))
        group.start_soon(cancel)
        await anyio.sleep(0.02)
        late.may_end.set()
        await _until(lambda: bool(pulled))
        assert (pulled, late.cleared) == (["tag"], [])


async def test_a_node_that_ends_ends_the_work_and_says_so(work: MemoryImageWork) -> None:
    async with (
        _served(work) as url,
        AsyncClient(url, token=TOKEN) as client,
        images_of(await client.service()).pull(ImagePull(reference="tag")) as events,
    ):
        assert isinstance(await anext(events), ImageProgress)
    assert work.cancelled == work.asked == [ImagePull(reference="tag")]


async def test_the_blocking_half_does_the_same(url: str, work: MemoryImageWork) -> None:
    work.may_end.set()

    def use() -> None:
        with Client(url, token=TOKEN) as client:
            assert client.pull_image("registry.example/a:v1", name="a").name == "a"
            assert client.verify_image("a").ok

    await anyio.to_thread.run_sync(use)


async def test_a_node_without_such_work_says_so(service: HttpService) -> None:
    with pytest.raises(CapabilityMissingError, match="come from nowhere"):
        await images_of(service).layers("a")


@pytest.mark.root
@pytest.mark.slow
async def test_an_image_goes_through_store_and_registry_without_a_shell(
    tmp_path: Path, registry: RegistryServer
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_bytes(os.urandom(100_000))
    url = (tmp_path / "objects").as_uri()
    daemon = LayerDaemon(tmp_path / "images" / LAZY, DaemonOptions(store_url=url))
    images = LocalImageStore(tmp_path / "images", lazy=daemon)
    images.add_image("mine:v1", [images.add_layer(tmp_path / "tree")], ImageConfig(), source="test")
    place = f"{registry.host}/{uuid.uuid4().hex}"
    work = LocalImageWork(images, daemon, store_url=url, node="n0de1d")
    with layers_ended(daemon.root):
        async with _served(work) as served, AsyncClient(served, token=TOKEN) as client:
            published = await client.publish_image("mine:v1", tag="mine:v2")
            with pytest.raises(ObjectNotFoundError):
                await client.pull_image("mine:v3")
            assert published.reference.startswith("b3:")
            pushed = await client.push_image("mine:v1", f"{place}:v1")
            assert pushed.reference.startswith(f"{place}:v1@sha256:")
            images.remove("mine:v1")
            pulled = await client.pull_image("mine:v2")
            assert [layer.format for layer in pulled.layers] == [LayerFormat.LAZY]
            told: list[ImageProgress] = []
            pulled = await client.pull_image(pushed.reference, name="whole", eager=True, on_progress=told.append)
            assert [layer.format for layer in pulled.layers] == [LayerFormat.EROFS]
            assert told
            assert (await client.verify_image("whole", full=True)).ok
            assert (await client.image_layers("whole")).images == ("whole",)
            assert [use.image for use in await client.image_statistics()] == ["mine:v2", "whole"]
            other = tmp_path / "other"
            with pytest.raises(InvalidRequestError, match="no store of images"):
                await client.publish_image("whole", store=other.as_uri())
            assert not other.exists()
            await open_layer_objects(FolderObjectStore(other))
            await client.publish_image("whole", tag="there:v1", store=other.as_uri())
            assert (await client.pull_image("there:v1", store=other.as_uri())).name == "there:v1"
            with pytest.raises(InvalidRequestError, match="in a registry"):
                await client.pull_image(pushed.reference, store=other.as_uri())
    images.close()


@pytest.mark.root
@pytest.mark.slow
async def test_a_pull_that_is_cancelled_leaves_nothing_on_the_host(tmp_path: Path, registry: RegistryServer) -> None:
    (tmp_path / "tree").mkdir()
    for number in range(4):
        (tmp_path / f"tree/file-{number}").write_bytes(os.urandom(3_900_000))
    daemon = LayerDaemon(tmp_path / "images" / LAZY, DaemonOptions(store_url=(tmp_path / "objects").as_uri()))
    images = LocalImageStore(tmp_path / "images", lazy=daemon)
    images.add_image("mine:v1", [images.add_layer(tmp_path / "tree")], ImageConfig(), source="test")
    work = LocalImageWork(images, daemon, store_url=(tmp_path / "objects").as_uri(), node="n0de1d")
    with layers_ended(daemon.root), run_faulty_registry(registry.host) as proxy:
        async with _served(work) as served, AsyncClient(served, token=TOKEN) as client:
            pushed = await client.push_image("mine:v1", f"{proxy.host}/{uuid.uuid4().hex}:v1")
            images.remove("mine:v1")
            came: list[Seen] = []

            def rule(seen: Seen) -> Fault | None:
                came.extend([seen] if "range" in seen.headers else [])
                return Fault(stall_at=0) if len(came) > 2 else None  # The metadata and a chunk come, then nothing.

            proxy.rule = rule

            async def pull() -> None:
                with pytest.raises(WorkCancelledError):
                    await client.pull_image(pushed.reference, eager=True)

            async with anyio.create_task_group() as group:
                group.start_soon(pull)
                await _until(lambda: len(came) > 2)
                (work_info,) = await client.image_work()
                await client.cancel_image_work(work_info)
            assert list(images.list()) == []
            assert list((images.root / "layers").iterdir()) == []
            assert [entry for entry in (daemon.root / "cache").iterdir() if entry.is_dir()] == []
    images.close()
