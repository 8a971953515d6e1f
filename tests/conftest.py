"""Shared fixtures."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Generator
from functools import wraps

import anyio
import pytest
from hypothesis import settings

# How long an example takes depends on what else the host does.
settings.register_profile("dsec", deadline=None)
settings.load_profile("dsec")

ASYNC_LIMIT_S = 240.0
"""Less than pytest's own timeout: that one cannot interrupt a fixture's end, so that a test has to end before it."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason said, what only root can run."""
    if os.geteuid() == 0:
        return
    marker = pytest.mark.skip(reason="needs root")
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(marker)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Let no asynchronous test wait for ever: cancelled, it still ends in good order."""
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = _bounded(pyfuncitem.obj)
    return (yield)


def _bounded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @wraps(test)
    async def run(**arguments: object) -> None:
        with anyio.fail_after(ASYNC_LIMIT_S):
            await test(**arguments)

    return run
