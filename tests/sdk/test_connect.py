"""Where the SDK connects when it is told, and when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec import AsyncClient, AsyncSandbox
from dsec.base.errors import InvalidRequestError, NodeUnavailableError
from dsec.node.node import Node
from dsec.sdk.connect import answers, endpoint_from, open_service
from dsec.sdk.http import HttpService
from dsec.sdk.keepalive import Endpoint
from dsec.sdk.keeping import close_shared_service

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("embedded_fakes")]


def test_the_environment_names_a_server_and_arguments_overrule_it() -> None:
    environment = {"DSEC_URL": "http://a:1", "DSEC_TOKEN": "t"}
    assert endpoint_from(None, None, environment) == Endpoint(url="http://a:1", token="t")
    assert endpoint_from("http://b:2", "u", environment) == Endpoint(url="http://b:2", token="u")
    assert endpoint_from(None, None, {}) is None


@pytest.mark.parametrize("url", ["localhost:80", "ftp://a", "http://", "http://a:1/v1"])
async def test_a_malformed_url_is_a_typed_error(url: str) -> None:
    async with open_service(url=url) as service:
        with pytest.raises(InvalidRequestError, match="not the address"):
            await service.images()


async def test_without_a_server_this_process_is_the_node_and_others_find_it(state_dir: Path) -> None:
    async with open_service() as first:
        assert isinstance(first, Node)
        assert await answers(state_dir / "node.sock")
        async with open_service() as second:
            assert isinstance(second, HttpService)
            assert await second.list() == []
    assert not await answers(state_dir / "node.sock")


async def test_a_lock_that_is_held_in_silence_is_told(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsec.sdk.connect.START_TIMEOUT_S", 0.1)
    from dsec.node.lock import hold_state

    with hold_state(state_dir), pytest.raises(NodeUnavailableError, match="does not answer"):
        async with open_service():
            pass


async def test_sandboxes_without_a_client_share_one_node() -> None:
    try:
        async with await AsyncSandbox.create() as one, await AsyncSandbox.create() as two:
            assert (await one.run("echo hi")).stdout == "hi\n"
            async with AsyncClient() as client:
                found = {info.sandbox_id for info in await client.list()}
            assert found == {one.sandbox_id, two.sandbox_id}
    finally:
        await close_shared_service()
