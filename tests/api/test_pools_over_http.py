"""Pools and events over HTTP are what they are in process."""

from __future__ import annotations

import anyio
import httpx2
import pytest

from dsec.base.errors import CapabilityMissingError, HostOutOfMemoryError, InvalidRequestError, NotFoundError
from dsec.model.event import EventKind
from dsec.model.pool import PoolChange
from dsec.model.sandbox import SandboxSpec
from dsec.node.node import Node
from dsec.sdk.http import HttpService
from dsec.sdk.pools import pools_of
from dsec.service.port import SandboxService
from dsec.testing.memory_node import FakeHost

pytestmark = pytest.mark.anyio


async def test_pools_are_set_listed_used_and_removed(service: HttpService, node: Node) -> None:
    pools = pools_of(service)
    made = await pools.set_pool(SandboxSpec(), PoolChange(floor=2, maximum=4, spreads=0.0))
    assert made.policy.maximum == 4
    while (await pools.list_pools())[0].statistics.ready < 2:
        await anyio.lowlevel.checkpoint()
    info = await service.create(SandboxSpec(metadata={"task": "t"}), sandbox_id="sbx-a")
    assert info.spec.metadata == {"task": "t"}
    assert (await pools.list_pools())[0].statistics.hand_outs == 1
    assert (await pools.list_pools())[0].spec == (await node.pools.list_pools())[0].spec
    kinds = [event.kind for event in await pools.events(task="t")]
    assert EventKind.ARRIVED in kinds
    assert EventKind.READY in kinds
    assert await pools.events(since_s=1e12) == []
    await pools.remove_pool(made.pool_id)
    assert await pools.list_pools() == []


async def test_errors_travel_with_their_names(service: HttpService) -> None:
    pools = pools_of(service)
    with pytest.raises(InvalidRequestError, match="floor is -1; it must be 0"):
        await pools.set_pool(SandboxSpec(), PoolChange(floor=-1))
    with pytest.raises(NotFoundError, match="no pool 'x y'"):
        await pools.remove_pool("x y")


async def test_a_refusal_says_when_to_ask_again_in_header_and_error(
    service: HttpService, node: Node, http: httpx2.AsyncClient
) -> None:
    host = node._core.parts.host
    assert isinstance(host, FakeHost)
    host.memory_bytes = 1
    with pytest.raises(HostOutOfMemoryError, match="1 B of memory left") as refused:
        await service.create(SandboxSpec())
    assert refused.value.retry_after_s == 5.0
    answer = await http.post("/v1/sandboxes", json={"spec": {}})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["retry_after_s"] == 5.0


async def test_a_service_without_pools_says_so() -> None:
    class Bare:
        pass

    with pytest.raises(CapabilityMissingError, match="keeps no pools"):
        pools_of(Bare())  # type: ignore[arg-type]


async def test_a_nodes_own_pools_are_found(node: Node) -> None:
    service: SandboxService = node
    assert pools_of(service) is node.pools
