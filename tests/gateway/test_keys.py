"""Keys: who is let in, with what, until when."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from dsec.base.clock import ManualClock
from dsec.base.errors import (
    HostDiskFullError,
    NotFoundError,
    PermissionDeniedError,
    StateCorruptedError,
    UnauthorizedError,
)
from dsec.gateway.key_ring import KeyRing
from dsec.gateway.keys import add_key, check_scope, make_key, read_keys, revoke_key


def some_bytes(number: int) -> bytes:
    return bytes((number * 7 + index * 13) % 256 for index in range(number))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "keys.json"


def new(file: Path, clock: ManualClock, **more: Any) -> str:
    key, text = make_key("alpha", random_bytes=some_bytes, now_wall_s=clock.wall_s(), **more)
    add_key(file, key)
    return text


def test_the_file_holds_no_secret_and_is_its_owners(file: Path) -> None:
    text = new(file, ManualClock())
    assert text.split("-", 2)[2] not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0


def test_a_key_is_found_and_everything_else_is_refused(file: Path) -> None:
    clock = ManualClock()
    text = new(file, clock)
    ring = KeyRing(file, clock)
    assert ring.find(text).project == "alpha"
    for wrong in (
        None,
        "",
        "x",
        text[:-1],
        text[:-1] + ("A" if text[-1] != "A" else "B"),
        "dsk-0000000000" + text[14:],
    ):
        with pytest.raises(UnauthorizedError):
            ring.find(wrong)


def test_expiry_is_kept_in_boot_time_so_that_a_wall_clock_set_elsewhere_changes_nothing(file: Path) -> None:
    clock = ManualClock()
    text = new(file, clock, lifetime_s=100.0)
    ring = KeyRing(file, clock)
    clock.wall += 1e9
    assert ring.find(text).project == "alpha"
    clock.wall -= 2e9
    clock.boot += 99.0
    other, _ = make_key("beta", random_bytes=lambda number: b"other" * number, now_wall_s=clock.wall_s())
    add_key(file, other)  # The file is read again meanwhile.
    assert ring.find(text).project == "alpha"
    clock.boot += 1.0
    with pytest.raises(UnauthorizedError, match="expired"):
        ring.find(text)


def test_keys_made_and_revoked_count_without_a_restart(file: Path) -> None:
    clock = ManualClock()
    ring = KeyRing(file, clock)
    text = new(file, clock)
    clock.advance(1.0)
    assert ring.find(text).key_id == text[:14]
    revoke_key(file, text[:14])
    clock.advance(1.0)
    with pytest.raises(UnauthorizedError, match="revoked"):
        ring.find(text)


def test_revoking_what_is_not_there_is_an_error(file: Path) -> None:
    with pytest.raises(NotFoundError):
        revoke_key(file, "dsk-0123456789")


def test_a_key_calls_only_models_in_its_scope() -> None:
    key, _ = make_key("alpha", random_bytes=some_bytes, now_wall_s=0.0, models=("claude-*", "m"))
    check_scope(key, "claude-x")
    check_scope(key, "m")
    with pytest.raises(PermissionDeniedError, match="claude-"):
        check_scope(key, "gpt")


@pytest.mark.parametrize("content", ["{", '{"version": 9, "keys": []}', '{"version": 1, "keys": [{}]}'])
def test_a_broken_file_is_said_and_not_overwritten(file: Path, content: str) -> None:
    file.parent.mkdir()
    file.write_text(content)
    with pytest.raises(StateCorruptedError):
        read_keys(file)
    with pytest.raises(StateCorruptedError):
        new(file, ManualClock())
    assert file.read_text() == content


@pytest.mark.anyio
async def test_a_projects_key_never_reaches_a_backend_and_a_backends_key_never_a_caller(
    open_gateway: Any, backends: Any, shapes: Any, make_project_key: Any, tmp_path: Path
) -> None:
    key = make_project_key()
    own = "sk-own-key-of-the-gateway"
    told = {"error": {"message": f"Incorrect API key provided: {own}", "type": "invalid_request_error"}}
    backends[0].act = shapes.answering(told, status=400)
    gateway = await open_gateway(only_first=True, open_to_all=False, first='key_env = "OWN"', environment={"OWN": own})
    smuggled = {"X-Api-Key": key, "Cookie": f"k={key}", "X-Forwarded-For": key, "OpenAI-Beta": "assistants=v2"}
    answer = await gateway.chat(key=key, headers=smuggled)
    assert answer.status_code == 400
    assert own not in answer.text + str(answer.headers)
    assert key not in json.dumps(backends[0].headers) + backends[0].raw[0].decode()
    assert backends[0].headers[0]["authorization"] == f"Bearer {own}"
    assert backends[0].headers[0]["openai-beta"] == "assistants=v2"
    kept = b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir())
    assert own.encode() not in kept
    assert key.encode() not in kept


@pytest.mark.anyio
async def test_a_backend_that_denies_the_gateways_key_is_not_quoted(
    open_gateway: Any, backends: Any, shapes: Any
) -> None:
    told = {"error": {"message": "Incorrect API key provided: sk-o***way", "code": "invalid_api_key"}}
    backends[0].act = shapes.answering(told, status=401)
    gateway = await open_gateway(only_first=True)
    answer = await gateway.chat()
    assert answer.status_code == 502
    assert "sk-o" not in answer.text


@pytest.mark.anyio
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/messages", "/v1/models", "/v1/nothing", "/dsec/statistics"]
)
async def test_without_a_key_nothing_is_served(open_gateway: Any, backends: Any, path: str) -> None:
    gateway = await open_gateway(open_to_all=False)
    for headers in ({}, {"authorization": "Bearer no"}, {"x-api-key": "dsk-0123456789-" + "x" * 43}):
        answer = await gateway.http.request("GET" if "models" in path else "POST", path, headers=headers)
        assert answer.status_code == 401
        assert "error" in answer.json()
    assert not backends[0].bodies
    assert (await gateway.http.get("/health")).status_code == 200


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, HostDiskFullError), (errno.EROFS, PermissionDeniedError)])
def test_a_file_that_cannot_be_written_is_a_typed_error_and_stays_as_it_was(
    file: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    key, _ = make_key("alpha", random_bytes=os.urandom, now_wall_s=1.0)
    add_key(file, key)

    def full(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("dsec.gateway.keys.os.fsync", full)
    with pytest.raises(kind, match="cannot be written"):
        add_key(file, key)
    assert read_keys(file) == (key,)
