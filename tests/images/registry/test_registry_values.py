"""The pure parts of the registry client: references, challenges, pauses, credentials, trust, documents."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import DsecError, InvalidRequestError, StateCorruptedError
from dsec.images.names import not_found
from dsec.images.registry import media
from dsec.images.registry.challenge import Challenge, best_challenge
from dsec.images.registry.configuration import mirrors_of
from dsec.images.registry.credentials import Credentials, find_credentials
from dsec.images.registry.http import RegistryHttp
from dsec.images.registry.reference import Repository, is_loopback, parse_blob_url, parse_reference
from dsec.images.registry.retrying import Backoff, retry_after_s
from dsec.images.registry.trust import trust_of

_DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "host", "path", "tag", "digest"),
    [
        ("localhost/env", "localhost", "env", "latest", ""),
        ("localhost:5000/team/env:v2.3", "localhost:5000", "team/env", "v2.3", ""),
        ("registry.example/a/b-c/d__e", "registry.example", "a/b-c/d__e", "latest", ""),
        (f"Registry.Example:443/env@{_DIGEST}", "registry.example:443", "env", "", _DIGEST),
        (f"[::1]:5000/env:v1@{_DIGEST}", "[::1]:5000", "env", "v1", _DIGEST),
        ("docker.io/python:3", "docker.io", "library/python", "3", ""),
        ("index.docker.io/team/env", "docker.io", "team/env", "latest", ""),
    ],
)
def test_references_are_read_and_written(text: str, host: str, path: str, tag: str, digest: str) -> None:
    found = parse_reference(text)
    assert (found.repository.host, found.repository.path, found.tag, found.digest) == (host, path, tag, digest)
    assert parse_reference(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "h.example:99999/x",
        *("env", "team/env:v2", "registry.example/", "registry.example/Env", "registry.example/env:", "a.b/env:-x"),
        *("a.b/env@sha256:12", f"a.b/env@sha512:{'a' * 128}", "a.b/../env", "a.b/x//y", "a.b:99999999/x"),
        *("http://a.b/x", "a.b/env tag", "", ":", "@", f"a.b/{'x' * 300}", "a.b/env\n", "user@a.b/env"),
    ],
)
def test_what_is_no_reference_is_refused_and_no_host_is_implied(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_reference(text)
    assert "HOST" in caught.value.resolution


@given(st.text(max_size=80))
def test_any_text_is_a_reference_that_reads_back_or_is_refused(text: str) -> None:
    try:
        found = parse_reference(text)
    except InvalidRequestError:
        return
    assert parse_reference(str(found)) == found


def test_an_image_that_is_not_here_and_lies_in_a_registry_is_to_be_pulled() -> None:
    assert "dsec image pull registry.example/team/env:v1" in not_found("registry.example/team/env:v1", []).resolution
    assert "pull it (dsec image pull team/env:v1) if it was published" in not_found("team/env:v1", []).resolution


def test_blob_urls_read_back_and_nothing_else_is_one() -> None:
    repository = Repository(host="localhost:5000", path="team/env")
    assert parse_blob_url(repository.blob_url(_DIGEST)) == (repository, _DIGEST)
    for url in ("", "oci://localhost/env", "file:///x", f"oci://env@{_DIGEST}", f"oci://localhost/env:v1@{_DIGEST}"):
        with pytest.raises(InvalidRequestError):
            parse_blob_url(url)


def test_loopback_is_known_by_its_name_alone() -> None:
    assert all(map(is_loopback, ("localhost", "localhost:1", "127.0.0.1", "127.9.9.9:80", "[::1]:5000")))
    assert not any(map(is_loopback, ("localhost.evil.example", "127.0.0.1.example", "10.0.0.1:5000", "[fe80::1]")))


def test_challenges_are_read_as_the_specification_writes_them() -> None:
    bearer = 'Bearer realm="https://auth.example/token?a=\\"b\\"",service="r.example",scope="repository:x:pull"'
    assert best_challenge([bearer]) == Challenge(
        scheme="bearer", realm='https://auth.example/token?a="b"', service="r.example"
    )
    assert best_challenge(['Basic realm="x"', bearer.lower()]).scheme == "bearer"  # type: ignore[union-attr]
    assert best_challenge(['Basic realm="x, y", Bearer realm=https://a/']).realm == "https://a/"  # type: ignore[union-attr]
    assert best_challenge(["Negotiate", "Bearer service=x", ""]) is None


@given(st.text(max_size=200))
def test_no_challenge_breaks_its_reader(text: str) -> None:
    best_challenge([text])


def test_pauses_grow_within_bounds_and_end() -> None:
    backoff = Backoff(tries=6, first_pause_s=1.0, longest_pause_s=5.0, longest_retry_after_s=10.0)
    assert [backoff.pause_s(failures, 1.0) for failures in range(1, 7)] == [1.0, 2.0, 4.0, 5.0, 5.0, None]
    assert backoff.pause_s(3, 0.25) == 1.0
    assert backoff.pause_s(1, 0.5, retry_after_s=9.0) == 9.5
    assert backoff.pause_s(1, 0.5, retry_after_s=11.0) is None


def test_retry_after_is_a_number_or_a_date() -> None:
    assert retry_after_s("7", 0.0) == 7.0
    assert retry_after_s("Thu, 01 Jan 1970 00:01:40 GMT", 40.0) == 60.0
    assert retry_after_s("Thu, 01 Jan 1970 00:01:40 GMT", 400.0) == 0.0
    assert [retry_after_s(text, 0.0) for text in (None, "", "soon", "-1", "1e9", "٣")] == [None] * 6


def _auth(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_the_most_specific_entry_of_the_first_file_counts(tmp_path: Path) -> None:
    podman, docker = tmp_path / "run/containers/auth.json", tmp_path / "home/.docker/config.json"
    for path in (podman, docker):
        path.parent.mkdir(parents=True)
    podman.write_text(json.dumps({"auths": {"r.example": _auth("host", "1"), "r.example/team": _auth("team", "2")}}))
    docker.write_text(
        json.dumps(
            {
                "auths": {
                    "https://r.example/v1/": _auth("old", "3"),
                    "o.example": {"identitytoken": "t"},
                    "https://index.docker.io/v1/": _auth("hub", "4"),
                }
            }
        )
    )
    environment = {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "HOME": str(tmp_path / "home")}

    def found(host: str, path: str) -> Credentials | None:
        return find_credentials(Repository(host=host, path=path), environment)

    assert found("r.example", "team/env") == Credentials(user="team", password="2")
    assert found("r.example", "teams/env") == Credentials(user="host", password="1")
    assert found("o.example", "env") == Credentials(identity_token="t")
    assert found("r.example.evil.example", "env") is None
    assert found("docker.io", "library/env") == Credentials(user="hub", password="4")
    podman.unlink()
    assert found("r.example", "team/env") == Credentials(user="old", password="3")


def test_a_file_that_cannot_be_read_is_named_and_its_secrets_are_not(tmp_path: Path) -> None:
    file = tmp_path / "auth.json"
    environment = {"REGISTRY_AUTH_FILE": str(file)}
    for content in (
        '{"auths": {"r.example": {"auth": "c2VjcmV0"}}}',
        '{"auths": {"r.example": {"auth": "c2VjcmV0"',
        "[]",
    ):
        file.write_text(content)
        with pytest.raises(InvalidRequestError) as caught:
            find_credentials(Repository(host="r.example", path="x"), environment)
        assert str(file) in str(caught.value)
        assert "secret" not in str(caught.value)
        assert "c2VjcmV0" not in str(caught.value)
    assert "secret" not in repr(Credentials(user="u", password="secret"))


def test_a_helper_is_asked_for_what_it_keeps(tmp_path: Path) -> None:
    helper = tmp_path / "docker-credential-safe"
    helper.write_text('#!/bin/sh\nread host; echo "{\\"Username\\": \\"$1\\", \\"Secret\\": \\"$host\\"}"\n')
    helper.chmod(0o755)
    file = tmp_path / "auth.json"
    file.write_text(json.dumps({"credHelpers": {"r.example": "safe", "https://index.docker.io/v1/": "safe"}}))
    environment = {"REGISTRY_AUTH_FILE": str(file), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    found = find_credentials(Repository(host="r.example", path="x"), environment)
    assert found == Credentials(user="get", password="r.example")
    hub = find_credentials(Repository(host="docker.io", path="library/x"), environment)
    assert hub == Credentials(user="get", password="https://index.docker.io/v1/")


def test_plain_http_is_for_this_machine_and_for_what_is_marked(tmp_path: Path) -> None:
    file = tmp_path / "registries.conf"
    file.write_text(
        '[[registry]]\nlocation = "lan.example:5000"\ninsecure = true\n[[registry]]\nprefix = "x.example"\n'
    )
    environment = {"CONTAINERS_REGISTRIES_CONF": str(file), "HOME": str(tmp_path)}
    assert [trust_of(host, environment).scheme for host in ("localhost:1", "lan.example:5000", "lan.example")] == [
        "http",
        "http",
        "https",
    ]
    certificates = tmp_path / ".config/containers/certs.d/localhost:1"
    certificates.mkdir(parents=True)
    (certificates / "ca.crt").touch()
    assert trust_of("localhost:1", environment).scheme == "https"
    file.write_text("[[registry")
    with pytest.raises(InvalidRequestError, match=str(file)):
        trust_of("x.example", environment)


_MIRRORS = """
[[registry]]
prefix = "far.example"
[[registry.mirror]]
location = "near.example:5000/cache"
insecure = true
[[registry.mirror]]
location = "pinned.example"
pull-from-mirror = "digest-only"
[[registry.mirror]]
location = "moving.example"
pull-from-mirror = "tag-only"
[[registry]]
prefix = "far.example/team"
mirror-by-digest-only = true
[[registry.mirror]]
location = "team.example/x"
[[registry]]
prefix = "*.many.example"
location = "many.example"
[[registry.mirror]]
location = "one.example"
[[registry]]
prefix = "bad.example"
blocked = true
"""


@pytest.mark.parametrize(
    ("reference", "mirrors"),
    [
        ("far.example/a/b:v1", ["near.example:5000/cache/a/b:v1", "moving.example/a/b:v1"]),
        (f"far.example/a@{_DIGEST}", [f"near.example:5000/cache/a@{_DIGEST}", f"pinned.example/a@{_DIGEST}"]),
        ("far.example/team/b:v1", []),
        (f"far.example/team/b@{_DIGEST}", [f"team.example/x/b@{_DIGEST}"]),
        ("far.example/teams/b:v1", ["near.example:5000/cache/teams/b:v1", "moving.example/teams/b:v1"]),
        ("a.many.example/b:v1", ["one.example/b:v1"]),
        ("many.example/b:v1", []),
        ("other.example/b:v1", []),
    ],
)
def test_mirrors_are_found_by_the_longest_prefix(tmp_path: Path, reference: str, mirrors: list[str]) -> None:
    (tmp_path / "registries.conf").write_text(_MIRRORS)
    environment = {"CONTAINERS_REGISTRIES_CONF": str(tmp_path / "registries.conf")}
    assert [str(mirror) for mirror in mirrors_of(parse_reference(reference), environment)] == mirrors
    assert trust_of("near.example:5000", environment).is_plain
    assert not trust_of("team.example", environment).is_plain
    with pytest.raises(InvalidRequestError, match="blocked"):
        mirrors_of(parse_reference("bad.example/a:v1"), environment)


def _index(*platforms: dict[str, str] | None) -> media.Document:
    entries = [
        {"mediaType": media.OCI_MANIFEST, "digest": f"sha256:{number:064x}", "size": 1}
        | ({} if each is None else {"platform": each})
        for number, each in enumerate(platforms)
    ]
    return media.decode_document(json.dumps({"schemaVersion": 2, "manifests": entries}).encode(), "a test")


def test_the_manifest_for_this_machine_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    amd, arm = {"os": "linux", "architecture": "amd64"}, {"os": "linux", "architecture": "arm64", "variant": "v8"}
    windows, unknown = {"os": "windows", "architecture": "amd64"}, {"os": "unknown", "architecture": "unknown"}
    index = _index(windows, unknown, arm, amd)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert media.choose(index, "it").digest.endswith("3")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert media.choose(index, "it").digest.endswith("2")
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(InvalidRequestError, match="riscv64") as caught:
        media.choose(index, "it")
    assert "linux/arm64/v8" in caught.value.detail


@pytest.mark.parametrize(
    "document",
    [
        *(b"", b"[]", b"\xff", b'{"schemaVersion": 2}', b'{"schemaVersion": 2, "config": {}}', b"[" * 10_000),
        b'{"schemaVersion": 2, "config": {"mediaType": "x", "digest": "sha256:../../x", "size": 1}}',
        b'{"schemaVersion": 2, "config": {"mediaType": "x", "digest": "sha256:' + b"a" * 64 + b'", "size": -1}}',
        b'{"schemaVersion": 2, "manifests": [{"mediaType": "x", "digest": "md5:1", "size": 1}]}',
    ],
)
def test_documents_that_lie_are_refused(document: bytes) -> None:
    with pytest.raises(StateCorruptedError, match="somewhere"):
        media.decode_document(document, "somewhere")


def test_a_manifest_of_the_first_schema_is_refused_by_name() -> None:
    with pytest.raises(DsecError, match="schema 1"):
        media.decode_document(b'{"schemaVersion": 1, "fsLayers": []}', "somewhere")


def test_docker_hub_answers_under_another_name_than_its_own() -> None:
    assert RegistryHttp("docker.io").base == "https://registry-1.docker.io"
    assert RegistryHttp("r.example:5000").base == "https://r.example:5000"
