"""A real registry for tests: the distribution project's, as Debian packages it, on loopback and in a directory of its
own; with no, basic or token authentication. Tokens come from a small real server here, which signs them with a key of
its own by the `openssl` program; the registry verifies them.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import os
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from dsec.testing.server_process import free_ports, running_server

USER, PASSWORD = "tester", "secret-of-the-tester"
_HASHED = "$2y$04$abcdefghijklmnopqrstuuknYRxjLa7Mzvkk4kXtZIsU7EsuGHqpK"


@dataclass(frozen=True, slots=True)
class RegistryServer:
    """A running registry.

    Attributes:
        host: by which references name it.
        directory: where it keeps blobs.
        process: for tests that stop or kill it.
    """

    host: str
    directory: Path
    process: subprocess.Popen[bytes]

    @property
    def port(self) -> int:
        return int(self.host.rpartition(":")[2])


def find_registry() -> str | None:
    """Return the registry's program; None: it is not installed."""
    return shutil.which("docker-registry")


@contextmanager
def run_registry(
    directory: Path, program: str, *, auth: dict[str, object] | None = None, tls: dict[str, str] | None = None
) -> Iterator[RegistryServer]:
    """Run a registry until the context ends.

    Args:
        directory: of its own.
        auth: its ``auth`` section; None: anybody may do anything.
        tls: its ``http.tls`` section; None: plain HTTP.
    """
    directory.mkdir(parents=True, exist_ok=True)
    host = f"127.0.0.1:{free_ports(1)[0]}"
    configuration: dict[str, object] = {
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(directory / "data")}, "delete": {"enabled": True}},
        "http": {"addr": host, "secret": secrets.token_hex(8), **({"tls": tls} if tls else {})},
    }
    if auth is not None:
        configuration["auth"] = auth
    file = directory / "config.yml"  # Each JSON document is one of YAML.
    file.write_bytes(msgspec.json.encode(configuration))
    with running_server([program, "serve", str(file)], directory, lambda: _listens(host)) as process:
        yield RegistryServer(host, directory / "data", process)


def basic_auth(directory: Path) -> dict[str, object]:
    """Return the section that lets `USER` in with `PASSWORD`."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "htpasswd"
    file.write_text(f"{USER}:{_HASHED}\n")
    return {"htpasswd": {"realm": "tests", "path": str(file)}}


def auth_file(path: Path, host: str, *, user: str = USER, password: str = PASSWORD) -> dict[str, str]:
    """Write a file of credentials, and return the environment that names it."""
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    path.write_bytes(msgspec.json.encode({"auths": {host: {"auth": auth}}}))
    return {**os.environ, "REGISTRY_AUTH_FILE": str(path)}


@dataclass(slots=True)
class TokenServer:
    """A running server of tokens.

    Attributes:
        realm: its URL.
        section: the registry's ``auth`` section.
        lives_s: how long the next tokens live; below none, they are over when they come.
        is_open: whether it gives tokens to read to whoever has no name.
        asked: the query of each request.
        given: how many tokens.
    """

    realm: str
    section: dict[str, object]
    directory: Path
    lives_s: list[float] = field(default_factory=list)
    is_open: bool = False
    asked: list[dict[str, list[str]]] = field(default_factory=list)
    given: int = 0

    def answer(self, path: str, authorization: str | None, form: bytes) -> tuple[int, bytes]:
        """Return status and body."""
        query = parse_qs(urlsplit(path).query) | parse_qs(form.decode())
        self.asked.append(query)
        wanted = f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
        is_known = authorization == wanted or query.get("refresh_token") == [PASSWORD]
        if not is_known and not (self.is_open and authorization is None):
            return 401, b'{"errors":[{"code":"UNAUTHORIZED"}]}'
        self.given += 1
        token = self._sign(query, may_push=is_known)
        return 200, msgspec.json.encode({"token": token, "expires_in": 300})

    def _sign(self, query: dict[str, list[str]], *, may_push: bool) -> str:
        now, life_s = int(time.time()), self.lives_s.pop(0) if self.lives_s else 300.0
        access = []
        for scope in query.get("scope", []):
            for one in scope.split():
                kind, name, actions = one.split(":")
                allowed = [action for action in actions.split(",") if may_push or action == "pull"]
                access.append({"type": kind, "name": name, "actions": allowed})
        certificate = base64.b64encode(_der(self.directory / "token.crt")).decode()
        head = {"typ": "JWT", "alg": "RS256", "x5c": [certificate]}
        claims = {"iss": "tests", "sub": USER, "aud": query["service"][0], "jti": secrets.token_hex(8)}
        claims |= {"nbf": now - 600, "iat": now - 600, "exp": int(now + life_s), "access": access}  # type: ignore[dict-item]
        signed = f"{_url_safe(msgspec.json.encode(head))}.{_url_safe(msgspec.json.encode(claims))}"
        command = ["openssl", "dgst", "-sha256", "-sign", str(self.directory / "token.key")]
        signature = subprocess.run(command, input=signed.encode(), capture_output=True, check=True).stdout
        return f"{signed}.{_url_safe(signature)}"


@contextmanager
def run_token_server(directory: Path) -> Iterator[TokenServer]:
    """Run a server of tokens until the context ends."""
    directory.mkdir(parents=True, exist_ok=True)
    make_certificate(directory, "token", host="tests")
    section: dict[str, object] = {}
    tokens = TokenServer("", section, directory)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers.get("content-length", "0"))))

        def _answer(self, form: bytes) -> None:
            status, body = tokens.answer(self.path, self.headers.get("authorization"), form)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        tokens.realm = f"http://127.0.0.1:{server.server_address[1]}/token"
        section["token"] = {
            "realm": tokens.realm,
            "service": "tests-registry",
            "issuer": "tests",
            "rootcertbundle": str(directory / "token.crt"),
        }
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield tokens
        finally:
            server.shutdown()
            thread.join()


def make_certificate(directory: Path, name: str, *, host: str) -> None:
    """Make a key and a certificate that vouches for itself: ``<name>.key`` and ``<name>.crt``."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={host}"]
    command += ["-keyout", str(directory / f"{name}.key"), "-out", str(directory / f"{name}.crt")]
    if host[0].isdigit():
        command += ["-addext", f"subjectAltName=IP:{host}"]
    subprocess.run(command, capture_output=True, check=True)


def _der(file: Path) -> bytes:
    lines = file.read_text().splitlines()
    return binascii.a2b_base64("".join(line for line in lines if line and "CERTIFICATE" not in line))


def _url_safe(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _listens(host: str) -> bool:
    try:
        with closing(http.client.HTTPConnection(host, timeout=1.0)) as connection:
            connection.connect()
            return True
    except OSError:
        return False
