"""Docker Engine as a reference: an own engine for one benchmark, driven through its API.

The engine needs no network and touches nothing of another engine on the host.

Source: the Docker Engine API, version 1.41.
"""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dsec.base.errors import ExternalCommandError
from dsec.images.layer_tar import write_layer_tar

SETTLE_S = 0.05
"""How long the engine is left alone after an answer: it goes on tidying up, at the cost of whoever is next."""

_START_TIMEOUT_S = 60.0
_IMAGE = "reference"


class DockerEngine:
    """A running engine with the image imported."""

    def __init__(self, socket_path: Path) -> None:
        self._socket_path = socket_path
        self.command = ("docker", "-H", f"unix://{socket_path}")
        """Its command line, to which a subcommand is added."""

    def create(self) -> str:
        """Create and start a detached container that sleeps; return its id."""
        body = {
            "Image": _IMAGE,
            "Cmd": ["sleep", "infinity"],
            "HostConfig": {"NetworkMode": "none", "Memory": 2 << 30, "PidsLimit": 512, "NanoCpus": 10**9},
        }
        container = json.loads(self._call("POST", "/containers/create", body))["Id"]
        self._call("POST", f"/containers/{container}/start")
        return str(container)

    def run_detached(self) -> str:
        """Do the same with the command line, as a person would; return the container's id."""
        argv = ["docker", "-H", f"unix://{self._socket_path}", "run", "-d", "--network", "none"]
        argv += ["--memory", "2g", "--pids-limit", "512", "--cpus", "1", _IMAGE, "sleep", "infinity"]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()

    def exec(self, container: str, argv: Sequence[str]) -> int:
        """Run a command in a container, output and all; return its exit code."""
        body = {"Cmd": list(argv), "AttachStdout": True, "AttachStderr": True}
        command = json.loads(self._call("POST", f"/containers/{container}/exec", body))["Id"]
        self._call("POST", f"/exec/{command}/start", {"Detach": False, "Tty": False})
        return int(json.loads(self._call("GET", f"/exec/{command}/json"))["ExitCode"])

    def remove(self, container: str) -> None:
        """Kill and remove a container."""
        self._call("DELETE", f"/containers/{container}?force=1&v=1")

    def _call(self, method: str, path: str, body: Any = None) -> bytes:
        connection = _UnixConnection(self._socket_path)
        try:
            headers = {} if body is None else {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        if response.status >= 400:
            raise ExternalCommandError(
                f"Docker Engine answered {response.status} to {method} {path}",
                detail=content[-500:].decode(errors="replace"),
                resolution="run the benchmark with --without-docker",
            )
        return content


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(self._path))


def is_installed() -> bool:
    """Whether an engine and its command line can be started here."""
    return shutil.which("dockerd") is not None and shutil.which("docker") is not None


@contextmanager
def docker_engine(directory: Path, layers: Sequence[Path]) -> Iterator[DockerEngine]:
    """Run an engine below `directory`, with an image of the same files as `layers` (one layer; none: no image), until
    the block ends.

    Raises:
        ExternalCommandError: it does not start.
    """
    directory.mkdir()
    socket_path = directory / "docker.sock"
    child = _start(directory, socket_path)
    try:
        _wait_up(child, socket_path, directory / "log")
        if layers:
            _import(socket_path, layers)
        yield DockerEngine(socket_path)
    finally:
        _remove_all(socket_path)
        child.terminate()
        child.wait(timeout=60)


def _start(directory: Path, socket_path: Path) -> subprocess.Popen[bytes]:
    argv = ["dockerd", "-H", f"unix://{socket_path}", "--data-root", str(directory / "data")]
    argv += ["--exec-root", str(directory / "exec"), "--pidfile", str(directory / "pid")]
    argv += ["--iptables=false", "--bridge=none", "--storage-driver", "overlay2", "--log-level", "error"]
    with (directory / "log").open("wb") as log:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def _wait_up(child: subprocess.Popen[bytes], socket_path: Path, log: Path) -> None:
    engine = DockerEngine(socket_path)
    deadline = time.monotonic() + _START_TIMEOUT_S
    while child.poll() is None and time.monotonic() < deadline:
        try:
            engine._call("GET", "/_ping")
            return
        except OSError:
            time.sleep(0.05)
    raise ExternalCommandError(
        "Docker Engine does not start",
        detail=log.read_text(errors="replace")[-500:],
        resolution="run the benchmark with --without-docker",
    )


def _import(socket_path: Path, layers: Sequence[Path]) -> None:
    argv = ["docker", "-H", f"unix://{socket_path}", "import", "-", _IMAGE]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
        assert child.stdin is not None
        write_layer_tar(layers[0], child.stdin)
        child.stdin.close()
        child.wait()


def _remove_all(socket_path: Path) -> None:
    command = ["docker", "-H", f"unix://{socket_path}"]
    found = subprocess.run([*command, "ps", "-aq"], capture_output=True, text=True, check=False).stdout.split()
    if found:
        subprocess.run([*command, "rm", "-f", *found], capture_output=True, check=False)
