"""Chunks of a layer in a blob of a registry: the suite of chunk sources over real ones, and what bad ones do."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest

from dsec.base.errors import StateCorruptedError, StoreUnavailableError
from dsec.images.lazy.formats.stored import ChunkRef
from dsec.images.lazy.source import ChunkSource, fetch_verified
from dsec.images.registry.client import ClientOptions, RegistryClient, digest_of
from dsec.images.registry.http import Timeouts
from dsec.images.registry.reference import Repository
from dsec.images.registry.retrying import Backoff
from dsec.images.registry.source import RegistrySource, open_registry_source
from dsec.images.registry.upload import BlobFile, upload_blob
from dsec.testing.chunk_source_suite import ChunkSourceSuite, OpenSource, stored_chunks
from dsec.testing.faulty_registry import Fault, is_blob, run_faulty_registry
from dsec.testing.registry_server import RegistryServer
from dsec.testing.servers import GuardedRegistry

_NEVER = digest_of(b"nobody has this")


async def _blob(
    client: RegistryClient, path: Path, stored: Mapping[str, bytes], refs: Sequence[ChunkRef]
) -> tuple[Repository, str]:
    """Put chunks into a repository as one blob; without any, name one that is not there."""
    repository = Repository(host=client.host, path=f"tests/{uuid.uuid4().hex}")
    if not refs:
        return repository, _NEVER
    data = b"".join(stored[ref.id] for ref in refs)
    path.write_bytes(data)
    await upload_blob(client, repository, BlobFile(path, digest_of(data), len(data)))
    return repository, digest_of(data)


Place = tuple[str, Mapping[str, str]]
"""A registry's host, and the environment in which one is let in."""


class _RegistrySuite(ChunkSourceSuite):
    """The suite over a registry; subclass with a fixture `place`."""

    @pytest.fixture
    async def open_source(self, place: Place, tmp_path: Path) -> AsyncIterator[OpenSource]:
        client = RegistryClient(place[0], ClientOptions(environment=place[1]))

        async def open_source(stored: Mapping[str, bytes], refs: Sequence[ChunkRef]) -> ChunkSource:
            repository, digest = await _blob(client, tmp_path / "blob", stored, refs)
            return RegistrySource(repository.blob_url(digest), client)

        yield open_source
        await client.aclose()


@pytest.mark.slow
class TestOpenRegistry(_RegistrySuite):
    @pytest.fixture
    def place(self, registry: RegistryServer) -> Place:
        return registry.host, {}


@pytest.mark.slow
class TestRegistryWithPasswords(_RegistrySuite):
    @pytest.fixture
    def place(self, password_registry: GuardedRegistry) -> Place:
        return password_registry.server.host, password_registry.environment


@pytest.mark.slow
class TestRegistryWithTokens(_RegistrySuite):
    @pytest.fixture
    def place(self, token_registry: GuardedRegistry) -> Place:
        return token_registry.server.host, token_registry.environment


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_registry_that_lies_stalls_or_breaks_off_gives_the_chunk_or_an_error(
    registry: RegistryServer, tmp_path: Path
) -> None:
    stored, refs = stored_chunks([b"some content" * 9000, bytes(range(256)) * 300])
    options = ClientOptions(
        environment={}, backoff=Backoff(tries=3, first_pause_s=0.01), timeouts=Timeouts(stall_s=0.2)
    )
    with run_faulty_registry(registry.host) as proxy:
        client = RegistryClient(proxy.host, options)
        repository, digest = await _blob(client, tmp_path / "blob", stored, refs)
        source = RegistrySource(repository.blob_url(digest), client)
        ref = refs[1]
        good = [
            Fault(cut_at=9),
            Fault(stall_at=9),
            Fault(status=429, headers={"Retry-After": "0"}),
            Fault(cut_first=True),
        ]
        for fault in [*good, Fault(ignores_range=True), Fault(length=1), Fault(length=1 << 40), Fault(delay_s=0.01)]:
            proxy.fail_once(is_blob, fault)
            assert await source.fetch(ref) == stored[ref.id]
        proxy.rule = lambda seen: Fault(spoil=lambda body: bytes(len(body))) if is_blob(seen) else None
        with pytest.raises(StateCorruptedError, match=proxy.host):
            await fetch_verified([source], ref, timeout_s=5)
        for fault in (Fault(status=401), Fault(status=403), Fault(status=418), Fault(stall_at=0)):
            proxy.rule = lambda seen, it=fault: it if is_blob(seen) else None  # type: ignore[misc]
            with pytest.raises(StoreUnavailableError):
                await source.fetch(ref, timeout_s=1)
        proxy.rule = lambda seen: Fault(delay_s=60) if is_blob(seen) else None
        with pytest.raises(StoreUnavailableError):
            await source.fetch(ref, timeout_s=0.05)
        await client.aclose()


@pytest.mark.anyio
async def test_a_broken_file_of_this_host_is_no_damage_to_the_layer(registry: RegistryServer, tmp_path: Path) -> None:
    stored, refs = stored_chunks([b"content"])
    (tmp_path / "auth.json").write_text("{")
    with run_faulty_registry(registry.host) as proxy:
        client = RegistryClient(
            proxy.host, ClientOptions(environment={"REGISTRY_AUTH_FILE": str(tmp_path / "auth.json")})
        )
        repository, digest = await _blob(client, tmp_path / "blob", stored, refs)
        source = RegistrySource(repository.blob_url(digest), client)
        assert await source.fetch(refs[0]) == stored[refs[0].id]
        proxy.rule = lambda seen: Fault(status=401, headers={"WWW-Authenticate": "Basic realm=x"})
        with pytest.raises(StoreUnavailableError, match=r"auth\.json"):
            await source.fetch(refs[0])
        await client.aclose()


@pytest.mark.anyio
async def test_sources_of_one_registry_share_its_client() -> None:
    url = Repository(host="127.0.0.1:1", path="x").blob_url(_NEVER)
    _, (ref, *_) = stored_chunks([b"x"])
    for source in (open_registry_source(url), open_registry_source(url.replace("/x@", "/y@"))):
        assert source.name.startswith("oci://127.0.0.1:1/")
        with pytest.raises(StoreUnavailableError):
            await source.fetch(ref, timeout_s=0.1)
