"""Real servers as fixtures: an S3 service and registries of each kind, one of each a session.

They take seconds to start, so that all tests of a process (of an xdist worker) share them, and each test has a place of
its own there: a folder of a bucket, a repository. What a test does to a shared server it undoes itself: stopped, it
goes on. A test that ends a server, or reaches into its files, runs one of its own.

Each ends with its session, and with the thread that started it: `kill -9` of the tests leaves no server. What a server
says is in the directory that it was given, which is the session's.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dsec.images.registry.reference import Repository
from dsec.testing.registry_server import (
    RegistryServer,
    TokenServer,
    auth_file,
    basic_auth,
    find_registry,
    run_registry,
    run_token_server,
)
from dsec.testing.s3_server import S3Server, find_program, make_bucket, run_s3_server

BUCKET = "dsec-test"
"""The bucket of the shared service. Another for each test would cost it a third of a second."""


@dataclass(frozen=True, slots=True)
class GuardedRegistry:
    """A registry that wants a name, and how one is let in.

    Attributes:
        server: the registry.
        environment: names the file of credentials.
        tokens: who gives tokens; None: it wants name and password themselves.
    """

    server: RegistryServer
    environment: dict[str, str]
    tokens: TokenServer | None = None


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A service with the bucket `BUCKET`."""
    program = find_program()
    if program is None:
        pytest.skip("no S3 server: scripts/install-test-packages installs one")
    with run_s3_server(tmp_path_factory.mktemp("s3"), program) as running:
        make_bucket(running, BUCKET)
        yield running


@pytest.fixture
def s3_url(s3_server: S3Server) -> str:
    """A folder of its own for each test."""
    return f"s3://{BUCKET}/{uuid.uuid4()}"


@pytest.fixture(scope="session")
def registry_program() -> str:
    """The registry's program, for a test that runs one of its own."""
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
def own_registry(tmp_path: Path, registry_program: str) -> Iterator[RegistryServer]:
    """A registry for one test, which ends it or spoils what it keeps."""
    with run_registry(tmp_path / "own-registry", registry_program) as running:
        yield running


@pytest.fixture(scope="session")
def password_registry(tmp_path_factory: pytest.TempPathFactory, registry_program: str) -> Iterator[GuardedRegistry]:
    """A registry that lets in whoever knows a password."""
    directory = tmp_path_factory.mktemp("passwords")
    with run_registry(directory, registry_program, auth=basic_auth(directory)) as server:
        yield GuardedRegistry(server, auth_file(directory / "auth.json", server.host))


@pytest.fixture(scope="session")
def token_registry(tmp_path_factory: pytest.TempPathFactory, registry_program: str) -> Iterator[GuardedRegistry]:
    """A registry that lets in whoever brings a token."""
    directory = tmp_path_factory.mktemp("tokens")
    with (
        run_token_server(directory) as tokens,
        run_registry(directory / "registry", registry_program, auth=tokens.section) as server,
    ):
        yield GuardedRegistry(server, auth_file(directory / "auth.json", server.host), tokens)


@pytest.fixture
def new_repository(registry: RegistryServer) -> Callable[[], Repository]:
    """Make a repository of the registry that lets anybody in."""
    return lambda: Repository(host=registry.host, path=f"tests/{uuid.uuid4().hex}")
