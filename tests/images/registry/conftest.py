"""Shared fixtures of the tests of registries; the registries themselves are `dsec.testing.servers`."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def auth_path(tmp_path: Path) -> Path:
    return tmp_path / "auth.json"
