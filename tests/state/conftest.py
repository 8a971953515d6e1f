"""Volumes for the tests of writable layers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.base.units import GIB
from dsec.state.volume import StateVolume, destroy_volume, open_volume


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateVolume]:
    """A real btrfs volume in a loop file, shared by a module."""
    state = tmp_path_factory.mktemp("state")
    yield open_volume(state, size_bytes=2 * GIB)
    destroy_volume(state)


@pytest.fixture
def own_state(tmp_path: Path) -> Iterator[Path]:
    """A state directory whose volume, if one is made, goes away with the test."""
    yield tmp_path
    destroy_volume(tmp_path)
