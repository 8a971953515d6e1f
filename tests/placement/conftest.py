"""Nodes, views and bits for the tests of placement."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from dsec.base.units import GIB, TIB
from dsec.placement.engine import PlacementEngine
from dsec.placement.request import PlacementRequest, Shape
from dsec.placement.view import Capacity, Health, NodeView, Usage

CAPACITY = Capacity(cpu_millis=192_000, memory_bytes=512 * GIB, disk_bytes=4 * TIB, sandboxes=3200, creations=400)

MakeView = Callable[..., NodeView]
MakeEngine = Callable[..., PlacementEngine]
MakeRequest = Callable[..., PlacementRequest]


@pytest.fixture
def make_view() -> MakeView:
    """Views of a large node; `used` and capacity fields are given by name."""

    def make(node: str = "node-0", **fields: Any) -> NodeView:
        used = {name: fields.pop(name) for name in ("cpu_millis", "memory_bytes", "creating") if name in fields}
        holds = fields.pop("holds", used.get("creating", 0))
        room = {name: fields.pop(name) for name in ("sandboxes", "creations", "memory", "disk") if name in fields}
        capacity = Capacity(
            cpu_millis=fields.pop("cores_millis", CAPACITY.cpu_millis),
            memory_bytes=room.get("memory", CAPACITY.memory_bytes),
            disk_bytes=room.get("disk", CAPACITY.disk_bytes),
            sandboxes=room.get("sandboxes", CAPACITY.sandboxes),
            creations=room.get("creations", CAPACITY.creations),
        )
        fields.setdefault("health", Health.ACCEPTING)
        return NodeView(node=node, capacity=capacity, used=Usage(sandboxes=holds, **used), **fields)

    return make


@pytest.fixture
def make_engine(make_view: MakeView) -> MakeEngine:
    """An engine that knows so many empty nodes, or the given views, at time 0."""

    def make(nodes: int = 0, views: tuple[NodeView, ...] = (), *, seed: int = 1, **settings: Any) -> PlacementEngine:
        engine = PlacementEngine(random.Random(seed).getrandbits, **settings)
        for view in (*views, *(make_view(f"node-{number}") for number in range(nodes))):
            engine.observe(view, 0.0)
        return engine

    return make


@pytest.fixture
def make_request() -> MakeRequest:
    """Requests with ids of their own."""
    numbers = iter(range(10**9))

    def make(*, sandbox_id: str = "", task_id: str = "", **shape: Any) -> PlacementRequest:
        name = sandbox_id or f"sbx-{next(numbers)}"
        return PlacementRequest(sandbox_id=name, shape=Shape(**shape), task_id=task_id)

    return make
