"""Hosts on one switch, each behind a link of a known rate: network namespaces, veth pairs and a bridge.

What a host sends passes a token bucket at its own end, what it receives one at the switch's (``tc`` tbf, tc-tbf(8)), so
that each link carries its rate in both directions and no more, as a network card does. All of it lies in namespaces of
its own: nothing of it is seen by the machine that it runs on, and it goes with them.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from dsec.base.errors import CapabilityMissingError, ExternalCommandError
from dsec.linux import syscalls

_BURST_BYTES, _QUEUE_BYTES = 128 << 10, 1 << 20
"""A piece of TCP is 64 KiB at most. A longer queue would only hide from TCP that the link is full."""
_NET = "10.97.0"
_CLONE_NEWNET = 0x40000000
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SwitchedHost:
    """A host on the switch.

    Attributes:
        namespace: of its network.
        address: at which the others reach it.
        switch, port: namespace of the switch, and its interface towards this host.
    """

    namespace: str
    address: str
    switch: str
    port: str

    def inside(self, *argv: str) -> tuple[str, ...]:
        """Return a command line that runs there. Mounts are those of the caller, unlike with ``ip netns exec``."""
        return ("nsenter", f"--net=/run/netns/{self.namespace}", "--", *argv)

    def call(self, function: Callable[[], _T]) -> _T:
        """Call a function in a thread whose sockets are of this host, and return what it returns."""

        def there() -> _T:
            namespace = os.open(f"/run/netns/{self.namespace}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                syscalls.libc_call("setns", namespace, _CLONE_NEWNET)
            finally:
                os.close(namespace)
            return function()

        # A thread of its own, which ends with it: no other work may find itself in that network.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(there).result()

    def shape(self, bits_per_s: int) -> None:
        """Let no more than so many bits a second pass, each way; takes effect at once."""
        bucket = ("tbf", "rate", f"{bits_per_s}bit", "burst", str(_BURST_BYTES), "limit", str(_QUEUE_BYTES))
        call("tc", "-n", self.namespace, "qdisc", "replace", "dev", "eth0", "root", *bucket)
        call("tc", "-n", self.switch, "qdisc", "replace", "dev", self.port, "root", *bucket)

    def unshape(self) -> None:
        """Let everything pass as fast as it can. Idempotent."""
        for where, device in ((self.namespace, "eth0"), (self.switch, self.port)):
            subprocess.run(["tc", "-n", where, "qdisc", "del", "dev", device, "root"], capture_output=True, check=False)

    def cut(self) -> None:
        """Let nothing pass any more: what is under way hears nothing of it."""
        call("ip", "-n", self.switch, "link", "set", self.port, "down")

    def join(self) -> None:
        """Let everything pass again."""
        call("ip", "-n", self.switch, "link", "set", self.port, "up")

    def sent_bytes(self) -> int:
        """Return what it has sent so far, frames and all."""
        return self._count("rx")

    def received_bytes(self) -> int:
        """Return what was sent to it so far, frames and all."""
        return self._count("tx")

    def _count(self, way: str) -> int:
        told = json.loads(call("ip", "-n", self.switch, "-s", "-j", "link", "show", "dev", self.port))
        return int(told[0]["stats64"][way]["bytes"])


@contextmanager
def switched_hosts(count: int) -> Iterator[list[SwitchedHost]]:
    """Make hosts on one switch, not shaped, and take them away at the end. Whoever runs something there ends it before.

    Needs root.

    Raises:
        CapabilityMissingError: ``ip``, ``tc`` or ``nsenter`` is not installed.
        ExternalCommandError: the kernel refuses one of them.
    """
    name = f"dsw{secrets.token_hex(4)}"
    with ExitStack() as stack:
        _namespace(stack, name)
        call("ip", "-n", name, "link", "add", "switch", "type", "bridge")
        call("ip", "-n", name, "link", "set", "switch", "up")
        yield [_host(stack, name, number) for number in range(1, count + 1)]


def _namespace(stack: ExitStack, name: str) -> None:
    call("ip", "netns", "add", name)
    stack.callback(subprocess.run, ["ip", "netns", "delete", name], capture_output=True, check=False)
    call("ip", "-n", name, "link", "set", "lo", "up")


def _host(stack: ExitStack, switch: str, number: int) -> SwitchedHost:
    host = SwitchedHost(f"{switch}-{number}", f"{_NET}.{number}", switch, f"port{number}")
    _namespace(stack, host.namespace)
    pair = ("link", "add", host.port, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
    call("ip", "-n", switch, *pair)
    call("ip", "-n", switch, "link", "set", host.port, "master", "switch", "up")
    call("ip", "-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
    call("ip", "-n", host.namespace, "link", "set", "eth0", "up")
    return host


def call(*argv: str) -> str:
    """Run a program, and return what it says.

    Raises:
        CapabilityMissingError: it is not installed.
        ExternalCommandError: it fails.
    """
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise CapabilityMissingError(f"{argv[0]} is not installed", resolution="install iproute2") from error
    if done.returncode:
        raise ExternalCommandError(
            f"{' '.join(argv)} failed", detail=done.stderr[-500:], resolution="run it by hand, as root"
        )
    return done.stdout
