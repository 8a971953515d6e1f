"""Shared fixtures."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# How long an example takes depends on what else the host does.
settings.register_profile("dsec", deadline=None)
settings.load_profile("dsec")


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
