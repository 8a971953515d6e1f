"""The server as any HTTP client sees it."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import httpx2
import msgspec
import pytest

from dsec.api.server import Serving, TcpAddress, serve
from dsec.base.errors import InvalidRequestError
from dsec.node.node import Node

pytestmark = pytest.mark.anyio


async def create(http: httpx2.AsyncClient, **body: object) -> str:
    response = await http.post("/v1/sandboxes", json=body)
    assert response.status_code == 201, response.text
    identifier: str = response.json()["sandbox_id"]
    return identifier


@pytest.mark.parametrize("token", ["", "Bearer", "Bearer wrong", "Basic a-token-for-tests", "Bearer a-token-for-test"])
async def test_tcp_without_the_right_token_is_refused(serving: Serving, token: str) -> None:
    async with httpx2.AsyncClient(base_url=serving.url, headers={"authorization": token}) as client:
        for path in ("/v1/sandboxes", "/v1/nothing"):
            response = await client.get(path)
            assert (response.status_code, response.json()["code"]) == (401, "unauthorized")


async def test_health_and_the_document_need_no_token(serving: Serving) -> None:
    async with httpx2.AsyncClient(base_url=serving.url) as client:
        assert (await client.get("/v1/health")).json()["status"] == "ok"
        assert (await client.get("/v1/openapi.json")).json()["openapi"] == "3.1.0"


async def test_unix_socket_is_its_owners_and_needs_no_token(serving: Serving) -> None:
    assert serving.socket_path is not None
    assert stat.S_IMODE(serving.socket_path.stat().st_mode) == 0o600
    transport = httpx2.AsyncHTTPTransport(uds=str(serving.socket_path))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/v1/sandboxes")).json() == []


async def test_an_empty_token_is_refused(node: Node) -> None:
    with pytest.raises(InvalidRequestError):
        async with serve(node, tcp=TcpAddress(token="")):
            pass


async def test_what_stands_in_the_place_of_the_socket_is_no_crash_and_is_left(node: Node, short_dir: Path) -> None:
    path = short_dir / "node.sock"
    path.mkdir()
    with pytest.raises(InvalidRequestError, match="cannot listen"):
        async with serve(node, socket_path=path):
            pass
    path.rmdir()
    async with serve(node, socket_path=path):
        path.unlink()
        path.write_text("somebody else's")
    assert path.read_text() == "somebody else's"


async def test_a_socket_path_that_is_too_long_is_a_typed_error(node: Node, short_dir: Path) -> None:
    deep = short_dir / ("d" * 100)
    deep.mkdir()
    with pytest.raises(InvalidRequestError, match="cannot listen"):
        async with serve(node, socket_path=deep / "node.sock"):
            pass


async def test_a_stale_socket_is_replaced(node: Node, short_dir: Path) -> None:
    path = short_dir / "node.sock"
    path.touch()
    async with serve(node, socket_path=path):
        assert path.is_socket()
    assert not path.exists()


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"argv": "true"}, "argv"),
        ({"argv": ["true"], "timeout": 3}, "timeout"),
        ({"argv": ["true"], "timeout_s": "soon"}, "timeout_s"),
        ({"argv": ["true"], "terminal": {"colums": 3}}, "colums"),
        ({"cwd": "/"}, "argv"),
    ],
)
async def test_a_bad_field_is_named(http: httpx2.AsyncClient, body: object, named: str) -> None:
    response = await http.post("/v1/sandboxes/sbx-1/run", json=body)
    assert (response.status_code, response.json()["code"]) == (400, "invalid_request")
    assert named in response.json()["brief"]
    assert "soon" not in response.text


async def test_what_is_not_json_is_refused(http: httpx2.AsyncClient) -> None:
    headers = {"content-type": "application/json"}
    response = await http.post("/v1/sandboxes/sbx-1/run", content=b'{"argv": [', headers=headers)
    assert (response.status_code, response.json()["code"]) == (400, "invalid_request")
    response = await http.post("/v1/sandboxes/sbx-1/run", content=b'{"argv": ["\xff"]}', headers=headers)
    assert response.status_code == 400


async def test_an_unknown_content_type_is_refused(http: httpx2.AsyncClient) -> None:
    response = await http.post("/v1/sandboxes/sbx-1/run", content=b"a=b", headers={"content-type": "text/plain"})
    assert (response.status_code, response.json()["code"]) == (415, "invalid_request")


async def test_unknown_query_parameters_are_refused_and_named(http: httpx2.AsyncClient) -> None:
    for target in ("/v1/sandboxes?stat=ready", "/v1/sandboxes/sbx-1/files?path=/a&users=0", "/v1/sandboxes?state=x"):
        response = await http.get(target)
        assert response.status_code == 400, target
    assert "`users`" in (await http.get("/v1/sandboxes/sbx-1/files?path=/a&users=0")).json()["brief"]


async def test_a_checkpoint_in_the_wrong_place_does_not_lead_to_the_clean_state(http: httpx2.AsyncClient) -> None:
    sandbox = f"/v1/sandboxes/{await create(http, spec={})}"
    response = await http.post(f"{sandbox}/rollback?snapshot=snap-001")
    assert response.status_code == 400
    assert "`snapshot`" in response.json()["brief"]
    assert (await http.get(sandbox)).json()["generation"] == 0
    assert (await http.delete(f"{sandbox}?force=1")).status_code == 400


async def test_unknown_paths_and_methods_are_told_apart(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/v1/nothing")).status_code == 404
    response = await http.put("/v1/sandboxes/sbx-1/run")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert (await http.get("/v1/sandboxes/sbx-1/terminal")).status_code == 426


async def test_a_malformed_sandbox_id_never_reaches_the_service(http: httpx2.AsyncClient) -> None:
    response = await http.get("/v1/sandboxes/..%00")
    assert (response.status_code, response.json()["code"]) == (400, "invalid_request")


async def test_a_body_over_the_limit_is_refused(http: httpx2.AsyncClient) -> None:
    response = await http.post(
        "/v1/sandboxes/sbx-1/run", content=b"{" + b" " * (33 << 20), headers={"content-type": "application/json"}
    )
    assert response.status_code == 413


async def test_an_endless_request_head_is_cut_off(serving: Serving) -> None:
    import anyio

    port = int(serving.url.rpartition(":")[2])
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(b"GET /v1/health HTTP/1.1\r\n")
        answer = b""
        with anyio.fail_after(60):
            try:
                for _ in range(64):
                    await stream.send(b"x: " + b"y" * 8192 + b"\r\n")
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass
            try:
                answer = await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                pass
    assert answer == b"" or b" 431 " in answer


async def test_bytes_are_base64_in_json_and_raw_in_msgpack(http: httpx2.AsyncClient) -> None:
    box = await create(http)
    body = {"argv": ["cat"], "stdin": "/wCA"}
    response = await http.post(f"/v1/sandboxes/{box}/run", json=body)
    assert response.json()["stdout"] == "/wCA"
    packed = msgspec.msgpack.encode({"argv": ["cat"], "stdin": b"\xff\x00\x80"})
    media = {"content-type": "application/msgpack", "accept": "application/msgpack"}
    response = await http.post(f"/v1/sandboxes/{box}/run", content=packed, headers=media)
    assert msgspec.msgpack.decode(response.content)["stdout"] == b"\xff\x00\x80"


async def test_create_with_the_same_id_is_the_same_sandbox(http: httpx2.AsyncClient) -> None:
    assert await create(http, sandbox_id="sbx-mine") == "sbx-mine"
    assert await create(http, sandbox_id="sbx-mine") == "sbx-mine"
    response = await http.post("/v1/sandboxes", json={"sandbox_id": "sbx-mine", "spec": {"seed": 3}})
    assert (response.status_code, response.json()["code"]) == (409, "already_exists")


async def test_listing_filters_by_metadata_and_state(http: httpx2.AsyncClient) -> None:
    one = await create(http, spec={"metadata": {"task": "a b", "job": "1"}})
    await create(http, spec={"metadata": {"task": "c", "job": "1"}})
    found = (await http.get("/v1/sandboxes", params={"metadata.task": "a b", "state": "ready"})).json()
    assert [box["sandbox_id"] for box in found] == [one]
    assert len((await http.get("/v1/sandboxes?metadata.job=1")).json()) == 2
    assert (await http.get("/v1/sandboxes?state=paused&state=failed")).json() == []


async def test_a_stream_is_lines_that_begin_with_the_start_and_end_with_the_exit(http: httpx2.AsyncClient) -> None:
    box = await create(http)
    body = {"argv": ["sh", "-c", "echo one; echo two >&2; exit 3"]}
    async with http.stream("POST", f"/v1/sandboxes/{box}/stream", json=body) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        events = [json.loads(line) async for line in response.aiter_lines()]
    assert events[0]["type"] == "started"
    assert events[-1]["type"] == "exit"
    assert events[-1]["status"]["exit_code"] == 3
    assert {event["stream"] for event in events[1:-1]} == {"stdout", "stderr"}


async def test_an_error_before_the_first_event_has_its_own_status(http: httpx2.AsyncClient) -> None:
    box = await create(http)
    response = await http.post(f"/v1/sandboxes/{box}/stream", json={"argv": ["no-such-program"]})
    assert (response.status_code, response.json()["code"]) == (404, "command_not_found")


async def test_a_file_can_have_any_bytes_in_its_name_and_content(http: httpx2.AsyncClient) -> None:
    box = await create(http)
    target = f"/v1/sandboxes/{box}/files?path=/tmp/%ff%01%20a%2Bb"
    content = bytes(range(256)) * 1000
    assert (await http.put(target, content=content)).json()["size_bytes"] == len(content)
    assert (await http.get(target)).content == content
    entry = (await http.get(f"/v1/sandboxes/{box}/files/list?path=/tmp")).json()[0]
    assert entry["name"] == "\ufffd\x01 a+b"
    assert (await http.get(target.replace("%01", "%02"))).json()["code"] == "path_not_found"
