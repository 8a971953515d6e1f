"""The registry client against a real registry, behind a proxy that makes it a bad one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.base.errors import (
    DsecError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StateCorruptedError,
    StoreUnavailableError,
    UnauthorizedError,
)
from dsec.images.registry import media
from dsec.images.registry.blobs import MAXIMUM_SKIPPED_BYTES, read_range
from dsec.images.registry.client import ClientOptions, RegistryClient, digest_of
from dsec.images.registry.http import Timeouts
from dsec.images.registry.reference import Repository
from dsec.images.registry.retrying import Backoff
from dsec.images.registry.upload import BlobFile, has_blob, put_manifest, upload_blob
from dsec.testing.faulty_registry import Fault, FaultyRegistry, is_blob, is_manifest, run_faulty_registry
from dsec.testing.registry_server import (
    RegistryServer,
    auth_file,
    make_certificate,
    run_registry,
    run_token_server,
)
from dsec.testing.servers import GuardedRegistry

pytestmark = pytest.mark.anyio

CONTENT = os.urandom(300_000)


class Pauses:
    """A clock that stands still but for pauses, which take no time."""

    def __init__(self) -> None:
        self.waited: list[float] = []
        self.time_s = 1000.0

    def now_s(self) -> float:
        return self.time_s

    async def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.time_s += seconds
        await anyio.lowlevel.checkpoint()


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
def faulty(registry: RegistryServer) -> Iterator[FaultyRegistry]:
    with run_faulty_registry(registry.host) as proxy:
        yield proxy


@pytest.fixture
async def client(faulty: FaultyRegistry, pauses: Pauses) -> AsyncIterator[RegistryClient]:
    options = ClientOptions(
        backoff=Backoff(tries=4),
        timeouts=Timeouts(stall_s=0.3),
        sleep=pauses.sleep,
        now_s=pauses.now_s,
        draw=lambda: 0.5,
    )
    opened = RegistryClient(faulty.host, options)
    yield opened
    await opened.aclose()


@pytest.fixture
async def repository(client: RegistryClient, new_repository: Callable[[], Repository], tmp_path: Path) -> Repository:
    """A repository, reached by way of the proxy, that holds `CONTENT`."""
    made = Repository(host=client.host, path=new_repository().path)
    await upload_blob(client, made, _file(tmp_path, CONTENT))
    return made


def _file(directory: Path, content: bytes) -> BlobFile:
    path = directory / f"blob-{len(content)}"
    path.write_bytes(content)
    return BlobFile(path, f"sha256:{hashlib.sha256(content).hexdigest()}", len(content))


DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


async def _put_manifest(client: RegistryClient, repository: Repository, tag: str = "v1") -> str:
    descriptor = f'{{"mediaType":"application/x","digest":"{DIGEST}","size":{len(CONTENT)}}}'
    data = f'{{"schemaVersion":2,"mediaType":"{media.OCI_MANIFEST}","config":{descriptor},"layers":[]}}'.encode()
    return await put_manifest(client, repository, tag, media.OCI_MANIFEST, data)


async def test_ranges_are_exactly_what_was_asked_for(client: RegistryClient, repository: Repository) -> None:
    for start, length in ((0, 1), (0, len(CONTENT)), (299_999, 1), (100_000, 65_536), (7, 0)):
        assert await read_range(client, repository, DIGEST, start, length) == CONTENT[start : start + length]
    with pytest.raises(StoreUnavailableError):
        await read_range(client, repository, DIGEST, 299_999, 2)
    with pytest.raises(ObjectNotFoundError):
        await read_range(client, repository, digest_of(b"never"), 0, 1)


@pytest.mark.slow
async def test_what_breaks_off_goes_on_where_it_broke_off(
    client: RegistryClient, repository: Repository, faulty: FaultyRegistry
) -> None:
    faulty.fail_once(is_blob, Fault(cut_at=50_000), Fault(stall_at=10), Fault(status=503), Fault(cut_at=0))
    assert await read_range(client, repository, DIGEST, 1000, 200_000) == CONTENT[1000:201_000]
    ranges = [seen.headers["range"] for seen in faulty.blobs()]
    assert ranges == ["bytes=1000-200999", *["bytes=51000-200999"], *["bytes=51010-200999"] * 3]


@pytest.mark.slow
async def test_a_registry_that_drips_is_left(repository: Repository, faulty: FaultyRegistry, pauses: Pauses) -> None:
    timeouts = Timeouts(window_s=0.1, least_bytes=1000)
    options = ClientOptions(backoff=Backoff(tries=2), timeouts=timeouts, sleep=pauses.sleep)
    client = RegistryClient(faulty.host, options)
    faulty.rule = lambda seen: Fault(drip_s=0.01) if is_blob(seen) else None
    with pytest.raises(StoreUnavailableError, match="sent"):
        await read_range(client, repository, DIGEST, 0, 1000)
    assert len(faulty.blobs()) == 2
    await client.aclose()


async def test_it_is_given_up_when_nothing_comes_of_it(
    client: RegistryClient, repository: Repository, faulty: FaultyRegistry, pauses: Pauses
) -> None:
    faulty.rule = lambda seen: Fault(status=502) if is_blob(seen) else None
    with pytest.raises(StoreUnavailableError, match="502"):
        await read_range(client, repository, DIGEST, 0, 10)
    assert len(faulty.blobs()) == 4
    assert pauses.waited == [0.125, 0.25, 0.5]


async def test_a_registry_that_ignores_ranges_is_skipped_over_where_little_is_skipped(
    client: RegistryClient, repository: Repository, faulty: FaultyRegistry
) -> None:
    faulty.rule = lambda seen: Fault(ignores_range=True) if is_blob(seen) else None
    assert await read_range(client, repository, DIGEST, 200_000, 1000) == CONTENT[200_000:201_000]


async def test_a_registry_that_ignores_ranges_is_left_where_much_would_be_skipped(
    client: RegistryClient, repository: Repository, faulty: FaultyRegistry
) -> None:
    faulty.rule = lambda seen: Fault(content=bytes(3 * MAXIMUM_SKIPPED_BYTES), ignores_range=True)
    before = faulty.sent_bytes
    with pytest.raises(StoreUnavailableError, match="ignores ranges"):
        await read_range(client, repository, DIGEST, MAXIMUM_SKIPPED_BYTES + 1, 1000)
    assert len(faulty.blobs()) == 1
    assert faulty.sent_bytes - before < 2 * MAXIMUM_SKIPPED_BYTES


@pytest.mark.parametrize(
    "headers",
    [
        *({"Content-Range": said} for said in ("bytes 0-9/300000", "bytes 5-4000/300000", "none")),
        {"Content-Encoding": "gzip"},
    ],
    ids=str,
)
async def test_another_range_than_was_asked_for_is_refused(
    client: RegistryClient, repository: Repository, faulty: FaultyRegistry, headers: dict[str, str]
) -> None:
    faulty.rule = lambda seen: Fault(headers=headers) if is_blob(seen) else None
    with pytest.raises(StoreUnavailableError):
        await read_range(client, repository, DIGEST, 5, 100)
    assert len(faulty.blobs()) == 1


async def test_a_length_that_lies_makes_nothing_wrong(
    client: RegistryClient, repository: Repository, faulty: FaultyRegistry
) -> None:
    faulty.fail_once(is_blob, Fault(length=50), Fault(length=10_000_000))
    assert await read_range(client, repository, DIGEST, 0, 100) == CONTENT[:100]


async def test_a_registry_that_asks_for_patience_gets_it_from_all_requests(
    client: RegistryClient, repository: Repository, faulty: FaultyRegistry, pauses: Pauses
) -> None:
    faulty.fail_once(is_blob, Fault(status=429, headers={"Retry-After": "7"}))
    assert await read_range(client, repository, DIGEST, 0, 10) == CONTENT[:10]
    assert pauses.waited == [7.125]
    pauses.time_s -= 5.0
    assert await read_range(client, repository, DIGEST, 0, 10) == CONTENT[:10]
    assert pauses.waited == [7.125, pytest.approx(4.875)]
    pauses.time_s -= 60.0
    with pytest.raises(StoreUnavailableError, match="left alone"), anyio.fail_after(60):
        await read_range(client, repository, DIGEST, 0, 10)
    assert len(faulty.blobs()) == 3


async def test_more_patience_than_is_reasonable_is_reported(
    client: RegistryClient, repository: Repository, faulty: FaultyRegistry, pauses: Pauses
) -> None:
    faulty.rule = lambda seen: Fault(status=429, headers={"Retry-After": "86400"})
    with pytest.raises(StoreUnavailableError) as caught:
        await read_range(client, repository, DIGEST, 0, 10)
    assert caught.value.retry_after_s == 86400
    assert pauses.waited == []


async def test_manifests_are_compared_with_their_digest(
    client: RegistryClient, repository: Repository, faulty: FaultyRegistry
) -> None:
    digest = await _put_manifest(client, repository)
    found = await client.manifest(repository, "v1")
    assert found.digest == digest
    assert (await client.manifest(repository, digest)).data == found.data
    faulty.rule = lambda seen: Fault(spoil=lambda body: body + b" ") if is_manifest(seen) else None
    for target in (digest, "v1"):  # Under a tag, the registry's own word on the digest is what is compared.
        with pytest.raises(StateCorruptedError, match="does not verify"):
            await client.manifest(repository, target)
    lie = {"Docker-Content-Digest": digest_of(b"another")}
    faulty.rule = lambda seen: Fault(headers=lie) if is_manifest(seen) else None
    assert (await client.manifest(repository, digest)).digest == digest  # Who knows better asks nobody.
    with pytest.raises(StateCorruptedError, match="does not verify"):
        await client.manifest(repository, "v1")
    with pytest.raises(ObjectNotFoundError, match="no-such"):
        await client.manifest(repository, "no-such")


async def test_a_registry_that_keeps_another_manifest_than_it_was_given_is_found_out(
    client: RegistryClient, repository: Repository, faulty: FaultyRegistry
) -> None:
    lie = {"Docker-Content-Digest": digest_of(b"another")}
    faulty.rule = lambda seen: Fault(headers=lie) if seen.method == "PUT" else None
    with pytest.raises(StateCorruptedError, match="keeps"):
        await _put_manifest(client, repository)


async def test_endless_documents_are_left(
    client: RegistryClient, repository: Repository, faulty: FaultyRegistry
) -> None:
    await _put_manifest(client, repository)
    faulty.rule = lambda seen: Fault(is_endless=True) if seen.method == "GET" else None
    with pytest.raises(StoreUnavailableError, match="more than"):
        await client.manifest(repository, "v1")
    descriptor = media.Descriptor(media_type="x", digest=DIGEST, size=len(CONTENT))
    with pytest.raises(StoreUnavailableError, match="more than"):
        await client.document(repository, descriptor, 1_000_000)
    with pytest.raises(StateCorruptedError, match="300000"):
        await client.document(repository, descriptor, 1000)


async def test_a_small_blob_of_another_content_is_refused(
    client: RegistryClient, repository: Repository, faulty: FaultyRegistry
) -> None:
    faulty.rule = lambda seen: Fault(spoil=lambda body: body[:-1] + b"?") if is_blob(seen) else None
    descriptor = media.Descriptor(media_type="x", digest=DIGEST, size=len(CONTENT))
    with pytest.raises(StateCorruptedError, match=DIGEST):
        await client.document(repository, descriptor, 1_000_000)


async def test_a_redirect_is_followed_and_told_no_secret(
    password_registry: GuardedRegistry, tmp_path: Path, pauses: Pauses
) -> None:
    host = password_registry.server.host
    with run_faulty_registry(host) as proxy, run_faulty_registry(host, name="localhost") as elsewhere:
        options = ClientOptions(environment=auth_file(tmp_path / "auth.json", proxy.host), sleep=pauses.sleep)
        client = RegistryClient(proxy.host, options)
        repository = Repository(host=proxy.host, path="x")
        await upload_blob(client, repository, _file(tmp_path, CONTENT))
        place = {"Location": f"http://{elsewhere.host}/some/place?signature=s3cret"}
        proxy.rule = lambda seen: Fault(status=307, headers=place) if is_blob(seen) else None
        elsewhere.rule = lambda seen: Fault(content=CONTENT)
        assert await read_range(client, repository, DIGEST, 5, 100) == CONTENT[5:105]
        assert all("authorization" in seen.headers for seen in proxy.blobs())
        assert "authorization" not in elsewhere.seen[0].headers
        elsewhere.rule = lambda seen: Fault(status=403)
        with pytest.raises(DsecError) as caught:
            await read_range(client, repository, DIGEST, 5, 100)
        assert "s3cret" not in str(caught.value)
        for target in (
            "ftp://x.example/",
            "http://user:pw@x.example/",
            "http://x.example:99999/",
            "",
            f"http://{proxy.host}/v2/again",
        ):
            proxy.rule = lambda seen, to=target: Fault(status=307, headers={"Location": to})  # type: ignore[misc]
            with pytest.raises(StoreUnavailableError):
                await read_range(client, repository, DIGEST, 5, 100)
        await client.aclose()


@pytest.mark.slow
async def test_tokens_are_got_for_what_is_to_be_done_and_kept_and_renewed(
    token_registry: GuardedRegistry, tmp_path: Path
) -> None:
    giver, server = token_registry.tokens, token_registry.server
    assert giver is not None
    client = RegistryClient(server.host, ClientOptions(environment=auth_file(tmp_path / "auth.json", server.host)))
    repository = Repository(host=server.host, path="team/env")
    await upload_blob(client, repository, _file(tmp_path, CONTENT))
    given = giver.given
    async with anyio.create_task_group() as group:
        for start in range(20):
            group.start_soon(read_range, client, repository, DIGEST, start, 1000)
    assert giver.given <= given + 1
    assert giver.asked[-1] == {"service": ["tests-registry"], "scope": ["repository:team/env:pull"]}
    other = RegistryClient(server.host, ClientOptions(environment=auth_file(tmp_path / "auth.json", server.host)))
    giver.lives_s[:] = [-300.0]
    with pytest.raises(UnauthorizedError):  # A token that is over when it comes is no token.
        await read_range(other, repository, DIGEST, 0, 10)
    assert giver.lives_s == []
    # It is kept, as nobody said that it is over; refused, it is given up for another.
    assert await read_range(other, repository, DIGEST, 0, 10) == CONTENT[:10]
    await client.aclose()
    await other.aclose()


@pytest.mark.slow
async def test_whoever_has_no_name_may_read_where_all_may_and_write_nowhere(
    token_registry: GuardedRegistry, tmp_path: Path
) -> None:
    giver, server = token_registry.tokens, token_registry.server
    assert giver is not None
    known = RegistryClient(server.host, ClientOptions(environment=auth_file(tmp_path / "auth.json", server.host)))
    repository = Repository(host=server.host, path="open/env")
    await upload_blob(known, repository, _file(tmp_path, CONTENT))
    nobody = RegistryClient(server.host, ClientOptions(environment={}))
    with pytest.raises(UnauthorizedError, match="no token"):
        await read_range(nobody, repository, DIGEST, 0, 10)
    giver.is_open = True
    assert await read_range(nobody, repository, DIGEST, 0, 10) == CONTENT[:10]
    with pytest.raises((UnauthorizedError, PermissionDeniedError)):
        await upload_blob(nobody, Repository(host=server.host, path="open/other"), _file(tmp_path, b"new"))
    giver.is_open = False
    wrong = auth_file(tmp_path / "wrong.json", server.host, password="wrong")
    liar = RegistryClient(server.host, ClientOptions(environment=wrong))
    with pytest.raises(UnauthorizedError) as caught:
        await read_range(liar, repository, DIGEST, 0, 10)
    assert "podman login" in caught.value.resolution
    for client in (known, nobody, liar):
        await client.aclose()


@pytest.mark.parametrize(
    ("realm", "fault"),
    [
        ("http://{host}/token", Fault(content=b'{"token": "a\\nX-Evil: b"}')),
        ("http://{host}/token", Fault(content=b'{"token": ""}')),
        ("http://{host}/token", Fault(content=b"[]")),
        ("http://{host}/token", Fault(is_endless=True)),
        ("http://{host}/token", Fault(status=500)),
        ("http://{host}/token", Fault(status=302, headers={"Location": "http://{host}/other"})),
        ("ftp://{host}/token", Fault()),
        ("/token", Fault()),
        ("http://[", Fault()),
        ("http://127.0.0.1:99999/token", Fault()),
        ("http://user:password@{host}/token", Fault()),
    ],
    ids=range(11),
)
async def test_who_gives_tokens_and_lies_is_left(
    client: RegistryClient, repository: Repository, faulty: FaultyRegistry, realm: str, fault: Fault
) -> None:
    challenge = {"WWW-Authenticate": f'Bearer realm="{realm.format(host=faulty.host)}",service="x"'}
    faulty.rule = lambda seen: fault if "/token" in seen.path else Fault(status=401, headers=challenge)
    with pytest.raises((StoreUnavailableError, UnauthorizedError)):
        await read_range(client, repository, DIGEST, 0, 10)


_faults = st.lists(
    st.none()
    | st.builds(Fault, cut_at=st.integers(0, 200_000))
    | st.builds(Fault, status=st.sampled_from([408, 429, 500, 503]))
    | st.builds(Fault, length=st.integers(0, 400_000))
    | st.builds(Fault, ignores_range=st.just(True), cut_at=st.none() | st.integers(0, 300_000))
    | st.builds(Fault, headers=st.sampled_from([{"Content-Range": "bytes 0-1/2"}, {"Retry-After": "0"}]))
    | st.builds(Fault, cut_first=st.just(True)),
    max_size=6,
)


@pytest.mark.slow
def test_whatever_a_registry_does_a_range_is_right_or_an_error(registry: RegistryServer, tmp_path: Path) -> None:
    with run_faulty_registry(registry.host) as proxy:
        pauses, repository = Pauses(), Repository(host=proxy.host, path=f"tests/{os.urandom(8).hex()}")
        options = ClientOptions(
            backoff=Backoff(tries=4), timeouts=Timeouts(stall_s=1), sleep=pauses.sleep, now_s=pauses.now_s
        )

        async def got(start: int, length: int) -> bytes | None:
            client = RegistryClient(proxy.host, options)
            try:
                return await read_range(client, repository, DIGEST, start, length)
            except StoreUnavailableError:
                return None
            finally:
                await client.aclose()

        async def put() -> None:
            client = RegistryClient(proxy.host, options)
            await upload_blob(client, repository, _file(tmp_path, CONTENT))
            await client.aclose()

        anyio.run(put)

        @settings(max_examples=25)
        @given(_faults, st.integers(0, 299_999), st.integers(1, 300_000))
        def check(faults: list[Fault | None], start: int, length: int) -> None:
            length = min(length, len(CONTENT) - start)
            proxy.fail_once(is_blob, *(fault or Fault() for fault in faults))
            assert anyio.run(got, start, length) in (None, CONTENT[start : start + length])

        check()


@pytest.mark.slow
async def test_a_password_is_sent_to_no_realm_that_is_less_protected(registry_program: str, tmp_path: Path) -> None:
    make_certificate(tmp_path, "ca", host="127.0.0.1")
    tls = {"certificate": str(tmp_path / "ca.crt"), "key": str(tmp_path / "ca.key")}
    with (
        run_token_server(tmp_path / "tokens") as giver,
        run_registry(tmp_path / "registry", registry_program, auth=giver.section, tls=tls) as server,
    ):
        home = tmp_path / ".config/containers/certs.d" / server.host
        home.mkdir(parents=True)
        environment = auth_file(tmp_path / "auth.json", server.host) | {"HOME": str(tmp_path)}
        plain = RegistryClient(server.host, ClientOptions(environment=environment))
        assert plain.http.base.startswith("http:")
        (home / "ca.crt").write_bytes((tmp_path / "ca.crt").read_bytes())
        client = RegistryClient(server.host, ClientOptions(environment=environment))
        with pytest.raises(StoreUnavailableError, match="https"):
            await client.manifest(Repository(host=server.host, path="x"), "v1")
        assert giver.asked == []
        await plain.aclose()
        await client.aclose()


@pytest.mark.slow
async def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(
    registry_program: str, tmp_path: Path, pauses: Pauses
) -> None:
    make_certificate(tmp_path, "server", host="127.0.0.1")
    make_certificate(tmp_path, "other", host="127.0.0.1")
    tls = {"certificate": str(tmp_path / "server.crt"), "key": str(tmp_path / "server.key")}
    with run_registry(tmp_path / "registry", registry_program, tls=tls) as server:
        place = tmp_path / ".config/containers/certs.d" / server.host
        place.mkdir(parents=True)
        for name, works in (("other", False), ("server", True)):
            (place / "ca.crt").write_bytes((tmp_path / f"{name}.crt").read_bytes())
            client = RegistryClient(server.host, ClientOptions(environment={"HOME": str(tmp_path)}, sleep=pauses.sleep))
            with pytest.raises(ObjectNotFoundError if works else StoreUnavailableError) as caught:
                await client.manifest(Repository(host=server.host, path="x"), "v1")
            assert works or "certs.d" in caught.value.resolution
            await client.aclose()
    assert pauses.waited == []


class TestUpload:
    """Uploads through a registry that fails."""

    @pytest.fixture(autouse=True)
    def small_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dsec.images.registry.upload.PART_BYTES", 70_000)

    async def test_what_broke_off_is_gone_on_with(
        self, client: RegistryClient, new_repository: Callable[[], Repository], faulty: FaultyRegistry, tmp_path: Path
    ) -> None:
        repository = Repository(host=client.host, path=new_repository().path)
        content = os.urandom(300_000)
        blob = _file(tmp_path, content)
        arrived: list[int] = []
        faults = [Fault(), Fault(status=503), Fault(), Fault(status=429, headers={"Retry-After": "1"})]
        faulty.fail_once(lambda seen: seen.method == "PATCH", *faults)
        await upload_blob(client, repository, blob, on_bytes=arrived.append)
        assert sum(arrived) == len(content)
        sent = sum(seen.body_bytes for seen in faulty.seen if seen.method == "PATCH")
        assert sent <= len(content) + 2 * 70_000
        assert await read_range(client, repository, blob.digest, 0, len(content)) == content

    async def test_an_end_that_was_not_heard_is_found_out(
        self, client: RegistryClient, new_repository: Callable[[], Repository], faulty: FaultyRegistry, tmp_path: Path
    ) -> None:
        repository = Repository(host=client.host, path=new_repository().path)
        blob = _file(tmp_path, os.urandom(100_000))
        faulty.fail_once(lambda seen: seen.method == "PUT", Fault(cut_first=True))
        await upload_blob(client, repository, blob)
        assert len([seen for seen in faulty.seen if seen.method == "PUT"]) == 1
        assert await client.blob_size(repository, blob.digest) == 100_000

    async def test_a_part_that_arrived_unheard_does_no_harm(
        self, client: RegistryClient, new_repository: Callable[[], Repository], faulty: FaultyRegistry, tmp_path: Path
    ) -> None:
        repository = Repository(host=client.host, path=new_repository().path)
        blob = _file(tmp_path, os.urandom(200_000))
        arrived: list[int] = []
        faulty.fail_once(lambda seen: seen.method == "PATCH", Fault(), Fault(cut_first=True))
        await upload_blob(client, repository, blob, on_bytes=arrived.append)
        assert sum(arrived) == 200_000
        assert await client.blob_size(repository, blob.digest) == 200_000

    async def test_an_upload_that_was_forgotten_begins_anew(
        self, client: RegistryClient, new_repository: Callable[[], Repository], faulty: FaultyRegistry, tmp_path: Path
    ) -> None:
        repository = Repository(host=client.host, path=new_repository().path)
        blob = _file(tmp_path, os.urandom(200_000))
        rest = [Fault(), Fault(status=404), Fault(status=404)]
        faulty.fail_once(lambda seen: "/blobs/uploads/" in seen.path and seen.method in ("PATCH", "GET"), *rest)
        await upload_blob(client, repository, blob)
        assert await client.blob_size(repository, blob.digest) == 200_000

    async def test_bytes_that_changed_on_the_way_are_refused(
        self, client: RegistryClient, new_repository: Callable[[], Repository], tmp_path: Path
    ) -> None:
        repository = Repository(host=client.host, path=new_repository().path)
        blob = _file(tmp_path, b"content")
        with pytest.raises(StateCorruptedError, match="other bytes"):
            await upload_blob(client, repository, BlobFile(blob.path, DIGEST, 7))
        with pytest.raises(StateCorruptedError, match="shorter"):
            await upload_blob(client, repository, BlobFile(blob.path, DIGEST, 8))

    async def test_what_another_repository_holds_is_taken_over(
        self, client: RegistryClient, repository: Repository, new_repository: Callable[[], Repository]
    ) -> None:
        other = Repository(host=client.host, path=new_repository().path)
        assert await has_blob(client, repository, DIGEST)
        assert not await has_blob(client, other, DIGEST)
        assert not await has_blob(client, other, digest_of(b"never"), elsewhere=repository)
        assert await has_blob(client, other, DIGEST, elsewhere=repository)
        assert await read_range(client, other, DIGEST, 0, 10) == CONTENT[:10]
