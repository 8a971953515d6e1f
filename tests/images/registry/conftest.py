"""Registries for the tests of this directory: real ones, one of each kind, for all tests of a module."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsec.images.registry.reference import Repository
from dsec.testing.registry_server import RegistryServer, find_registry, run_registry


@pytest.fixture(scope="session")
def registry_program() -> str:
    program = find_registry()
    if program is None:
        pytest.skip("no registry: scripts/install-test-packages installs one")
    return program


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory, registry_program: str) -> Iterator[RegistryServer]:
    """A registry that lets anybody in."""
    with run_registry(tmp_path_factory.mktemp("registry"), registry_program) as running:
        yield running


@pytest.fixture
def new_repository(registry: RegistryServer) -> Callable[[], Repository]:
    return lambda: Repository(host=registry.host, path=f"tests/{uuid.uuid4().hex}")


@pytest.fixture
def auth_path(tmp_path: Path) -> Path:
    return tmp_path / "auth.json"
