"""Shared fixtures."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Generator, Iterator
from functools import wraps

import anyio
import pytest
from hypothesis import settings

from dsec.linux.swap import swap_table

pytest_plugins = ["dsec.testing.servers"]

# How long an example takes depends on what else the host does.
settings.register_profile("dsec", deadline=None)
settings.load_profile("dsec")

ASYNC_LIMIT_S = 240.0
"""Less than pytest's own timeout: that one cannot interrupt a fixture's end, so that a test has to end before it."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def no_swap_file_stays_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail when a test left a swap file on in its directory: deleted with it, it would hold its disk until the host
    restarts. Who has a state directory elsewhere looks by `dsec.testing.leaks`."""
    yield
    ours = str(tmp_path_factory.getbasetemp())
    left = [area.path for area in swap_table() if area.path.startswith(ours)]
    assert not left, "remove the swap file (dsec down --destroy) before its directory"


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
