"""A link of a known rate between this host and an object store at its other end.

The other end is a network namespace of its own, joined by a veth pair. What leaves it passes a token bucket (``tc``
tbf, tc-tbf(8)), so that all that is fetched shares one rate, whatever fetches it and over how many connections; both
ends use the kernel's real TCP. The way back carries requests only and is not shaped. There is no delay beyond the
host's own.

A rate above what the host can carry over such a pair is what the host can carry: `ShapedStore.measure` says what came.
Addresses are of 198.18.0.0/15, which RFC 2544 sets aside for this.
"""

from __future__ import annotations

import os
import random
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsec.base.errors import StoreUnavailableError
from dsec.base.units import MIB
from dsec.bench.far_store import BUCKET
from dsec.bench.netns import NetworkNamespace, call, network_namespace

FAST_BITS, SLOW_BITS = 25_000_000_000, 1_000_000_000
"""Links of hosts in a data centre, and of one that is far from its store."""
_PORT = 80
_BURST_S = 0.001
"""What the bucket lets through at once, in seconds of its rate."""
_SMALLEST_BURST_BYTES, _QUEUE_BYTES = 256 << 10, 16 << 20
_READY_S = 20.0
_PROBE = "probe"
_PROBE_BYTES = 64 * MIB
_PROBE_CONNECTIONS = 4
_SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3")


@dataclass(frozen=True, slots=True)
class Link:
    """A network namespace and the pair of interfaces that leads to it.

    Attributes:
        namespace: the network at its end.
        device: the interface there.
        near, far: addresses of the two ends.
    """

    namespace: NetworkNamespace
    device: str
    near: str
    far: str

    def shape(self, bits_per_s: int) -> None:
        """Let no more than so many bits a second come from the far end; takes effect at once."""
        burst_bytes = max(_SMALLEST_BURST_BYTES, round(bits_per_s / 8 * _BURST_S))
        self.namespace.shape(self.device, bits_per_s, burst_bytes=burst_bytes, queue_bytes=_QUEUE_BYTES)

    def inside(self, *argv: str) -> tuple[str, ...]:
        """Return a command line that runs at the far end, with the mounts of the caller."""
        return self.namespace.inside(*argv)


@contextmanager
def link() -> Iterator[Link]:
    """Lay a link, not shaped yet, and take it away at the end. Whoever runs something at its far end ends it before.

    Needs root.

    Raises:
        CapabilityMissingError: ``ip`` or ``tc`` is not installed.
        ExternalCommandError: the kernel refuses one of them.
    """
    name = f"dsec{secrets.token_hex(4)}"
    # One of 32,768 nets of two hosts each. Nobody refuses one that is taken; that is unlikely.
    first = random.SystemRandom().randrange(1 << 15) * 4
    near, far = (
        f"198.{18 + (first + each >> 16)}.{(first + each) >> 8 & 255}.{(first + each) & 255}" for each in (1, 2)
    )
    with network_namespace(name) as namespace:
        made = Link(namespace=namespace, device=f"{name}f", near=near, far=far)
        call("ip", "link", "add", f"{name}n", "type", "veth", "peer", "name", made.device, "netns", name)
        call("ip", "address", "add", f"{near}/30", "dev", f"{name}n")
        call("ip", "link", "set", f"{name}n", "up")
        namespace.address(made.device, f"{far}/30")
        # The pair goes with the namespace.
        yield made


@dataclass(frozen=True, slots=True)
class ShapedStore:
    """An object store behind a link.

    Attributes:
        link: the link.
        directory: the folder that it serves, to put objects into without passing the link.
        url: as a node's setting `store`; only in processes that were given `environment`.
        endpoint: its URL for plain HTTP; a file of the folder is below ``/far/``.
    """

    link: Link
    directory: Path
    url: str
    endpoint: str

    def measure(self, each_bytes: int = _PROBE_BYTES) -> float:
        """Return the bits a second that come through, with so many bytes over each of four connections at a time.

        Raises:
            StoreUnavailableError: the far end does not answer.
        """
        probe = self.directory / _PROBE
        with probe.open("wb") as file:
            file.truncate(each_bytes)
        ends: list[float] = []
        begin = time.perf_counter()
        threads = [threading.Thread(target=self._probe, args=(each_bytes, ends)) for _ in range(_PROBE_CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(ends) < _PROBE_CONNECTIONS:
            raise StoreUnavailableError(f"{self.endpoint} does not answer", resolution="run the benchmark again")
        return 8 * each_bytes * _PROBE_CONNECTIONS / (max(ends) - begin)

    def _probe(self, left: int, ends: list[float]) -> None:
        buffer = bytearray(MIB)
        with socket.create_connection((self.link.far, _PORT), timeout=60) as connection:
            connection.sendall(f"GET /{BUCKET}/{_PROBE} HTTP/1.1\r\nHost: far\r\n\r\n".encode())
            while left > 0 and (count := connection.recv_into(buffer)):
                left -= count
        if left <= 0:
            ends.append(time.perf_counter())

    def received_bytes(self) -> int:
        """Return what came over the link so far, frames and all."""
        name = self.link.device[:-1] + "n"
        return int(Path(f"/sys/class/net/{name}/statistics/rx_bytes").read_text())


@contextmanager
def shaped_store(directory: Path) -> Iterator[ShapedStore]:
    """Serve a folder at the far end of a link until the block ends. In the meantime the ``AWS_*`` variables of this
    process, and of those that it starts, lead there.

    Args:
        directory: the folder; made if missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        laid = stack.enter_context(link())
        argv = laid.inside(sys.executable, "-m", "dsec.bench.far_store", str(directory), laid.far, str(_PORT))
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
        stack.callback(_end, child)
        _wait_ready(child)
        endpoint = f"http://{laid.far}"
        stack.enter_context(_environment({"AWS_ENDPOINT_URL": endpoint, "AWS_SKIP_SIGNATURE": "true"}))
        yield ShapedStore(link=laid, directory=directory, url=f"s3://{BUCKET}", endpoint=endpoint)


def _wait_ready(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    if not select.select([child.stdout], [], [], _READY_S)[0] or child.stdout.readline() != b"ready\n":
        raise StoreUnavailableError("the store at the far end does not start", resolution="run the benchmark again")


def _end(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGKILL)
    child.wait()
    if child.stdout is not None:
        child.stdout.close()


@contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    former = {name: os.environ.pop(name, None) for name in (*wanted, *_SECRETS)}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in former.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
