"""Shared fixtures."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Awaitable, Callable, Generator, Iterator
from functools import wraps

import anyio
import pytest
from hypothesis import settings

from dsec.linux.swap import swap_table
from dsec.testing.leftovers import Session

pytest_plugins = ["dsec.testing.servers"]

# How long an example takes depends on what else the host does.
settings.register_profile("dsec", deadline=None)
settings.load_profile("dsec")

SESSION = pytest.StashKey[Session]()
FIRST = ("tests/images/test_recipes.py",)
"""Modules with a test that takes minutes. Begun among the last, it would run when all others are done."""
END_S = 60.0
"""An asynchronous test ends so long before pytest's own timeout, which cannot interrupt a fixture's end."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_configure(config: pytest.Config) -> None:
    """Begin the session of a process that runs tests: of each worker, or the only one."""
    if not config.getoption("numprocesses", None) or hasattr(config, "workerinput"):
        # Pytest's own directories stay where people look for them.
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        config.stash[SESSION] = Session.begin()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Note whose nodes the test had, while it has its directories."""
    if isinstance(item, pytest.Function) and item.get_closest_marker("root"):
        item.config.stash[SESSION].note_nodes(item.funcargs.values())


def pytest_unconfigure(config: pytest.Config) -> None:
    if SESSION in config.stash:
        config.stash[SESSION].end()


@pytest.fixture(scope="session", autouse=True)
def nothing_stays_on_the_host(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail when tests left something on the host."""
    session = pytestconfig.stash[SESSION]
    session.others.append(tmp_path_factory.getbasetemp())
    yield
    left = session.wait_nothing_left()
    assert not left, "tests of this process left behind:\n" + "\n".join(left)


@pytest.fixture(scope="session", autouse=True)
def no_swap_file_stays_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail when a test left a swap file on in its directory: deleted with it, it would hold its disk until the host
    restarts. Who has a state directory elsewhere looks by `dsec.testing.leaks`."""
    yield
    ours = str(tmp_path_factory.getbasetemp())
    left = [area.path for area in swap_table() if area.path.startswith(ours)]
    assert not left, "remove the swap file (dsec down --destroy) before its directory"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest. Skip, with the reason said, what only root can run."""
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))
    if os.geteuid() == 0:
        return
    marker = pytest.mark.skip(reason="needs root")
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(marker)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Let no asynchronous test wait for ever: cancelled, it still ends in good order."""
    if inspect.iscoroutinefunction(pyfuncitem.obj) and (timeout_s := _timeout_s(pyfuncitem)):
        pyfuncitem.obj = _bounded(pyfuncitem.obj, timeout_s - END_S)
    return (yield)


def _timeout_s(item: pytest.Item) -> float:
    """How long a test may take: what its mark says, or what holds for all; 0: as long as it likes."""
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0] if mark else item.config.getini("timeout"))


def _bounded(test: Callable[..., Awaitable[None]], limit_s: float) -> Callable[..., Awaitable[None]]:
    @wraps(test)
    async def run(**arguments: object) -> None:
        with anyio.fail_after(limit_s):
            await test(**arguments)

    return run
