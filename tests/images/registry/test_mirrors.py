"""Mirrors that registries.conf names are pulled from, and left when they are of no use."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from dsec.images.lazy.origins import Origins, close_origins
from dsec.images.lazy.source import fetch_verified
from dsec.images.registry.client import ClientOptions, RegistryClient, digest_of
from dsec.images.registry.pull import PullRequest, pull_from_registry
from dsec.images.registry.push import PushRequest, push_image
from dsec.images.registry.reference import Reference, Repository, parse_reference
from dsec.images.registry.upload import BlobFile, upload_blob
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig, ImageInfo
from dsec.testing.chunk_source_suite import stored_chunks
from dsec.testing.faulty_registry import Fault, FaultyRegistry, run_faulty_registry
from dsec.testing.registry_server import RegistryServer


@dataclass(frozen=True, slots=True)
class _Mirrored:
    """A registry, and a mirror of it."""

    far: FaultyRegistry
    near: FaultyRegistry
    environment: dict[str, str]

    def pull(self, store: LocalImageStore, reference: Reference, progress: Callable[[str], None]) -> ImageInfo:
        async def act() -> ImageInfo:
            client = RegistryClient(self.far.host, ClientOptions(environment=self.environment))
            try:
                request = PullRequest(reference=reference, progress=progress)
                return await pull_from_registry(store, request, client)
            finally:
                await client.aclose()

        return anyio.run(act)


@pytest.fixture
def mirrored(tmp_path: Path, registry: RegistryServer) -> Iterator[_Mirrored]:
    with run_faulty_registry(registry.host) as far, run_faulty_registry(registry.host) as near:
        file = tmp_path / "registries.conf"
        mirror = f'[[registry.mirror]]\nlocation = "{near.host}"\n'
        file.write_text(f'[[registry]]\nlocation = "{far.host}"\n{mirror}')
        yield _Mirrored(far, near, {"CONTAINERS_REGISTRIES_CONF": str(file), "HOME": str(tmp_path)})


@pytest.mark.root
@pytest.mark.slow
def test_an_image_comes_from_a_mirror_and_from_its_registry_where_that_is_of_no_use(
    mirrored: _Mirrored, tmp_path: Path
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_bytes(os.urandom(10_000))
    here = LocalImageStore(tmp_path / "here")
    layer = here.add_layer(tmp_path / "tree")
    here.add_image("mine", [layer], ImageConfig(), source="test")
    reference = parse_reference(f"{mirrored.far.host}/{uuid.uuid4().hex}:v1")

    async def push() -> None:
        client = RegistryClient(mirrored.far.host, ClientOptions(environment=mirrored.environment))
        await push_image(here, PushRequest(name="mine", reference=reference), client)
        await client.aclose()

    anyio.run(push)
    here.close()
    assert not mirrored.near.seen, "what is pushed goes to the registry itself"
    for number, fault in enumerate(
        (None, Fault(status=404), Fault(status=500), Fault(status=401), Fault(cut_first=True))
    ):
        there = LocalImageStore(tmp_path / f"there-{number}")
        mirrored.near.rule = lambda seen, it=fault: it  # type: ignore[misc]
        mirrored.far.seen.clear()
        told: list[str] = []
        pulled = mirrored.pull(there, reference, told.append)
        assert pulled.name == str(reference)
        origins = there.stored_layer(layer)[1].origins
        assert [origin.partition("@")[0].split("/")[2] for origin in origins] == (
            [mirrored.near.host, mirrored.far.host] if fault is None else [mirrored.far.host]
        )
        assert bool(mirrored.far.seen) == bool(fault)
        assert [mirrored.near.host in line for line in told] == ([] if fault is None else [True])
        there.close()


@pytest.mark.anyio
async def test_a_mirror_that_is_down_is_not_asked_first_again(registry: RegistryServer, tmp_path: Path) -> None:
    stored, refs = stored_chunks([b"one" * 1000, b"two" * 1000])
    data = b"".join(stored[ref.id] for ref in refs)
    (tmp_path / "blob").write_bytes(data)
    repository = Repository(host=registry.host, path=f"tests/{uuid.uuid4().hex}")
    client = RegistryClient(registry.host, ClientOptions(environment={}))
    await upload_blob(client, repository, BlobFile(tmp_path / "blob", digest_of(data), len(data)))
    await client.aclose()
    down = Repository(host="127.0.0.1:1", path="x").blob_url(digest_of(data))
    urls, origins = (down, repository.blob_url(digest_of(data))), Origins()
    try:
        sources = await origins.sources(urls)
        assert [source.name for source in sources] == list(urls)
        assert await fetch_verified(sources, refs[0], timeout_s=0.2) == b"one" * 1000
        assert [source.name for source in await origins.sources(urls)] == list(reversed(urls))
    finally:
        await close_origins()
