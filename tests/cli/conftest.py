"""A server for the command line to talk to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dsec.testing.command_line import Dsec, serving_in_memory


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dsec]:
    with serving_in_memory(tmp_path_factory.mktemp("served")) as command:
        yield command


@pytest.fixture
def dsec(server: Dsec) -> Iterator[Dsec]:
    """The command line against a node without sandboxes; one node serves a module: starting is slower than a test."""
    yield server
    server.ok("sandbox", "rm", "--all")
