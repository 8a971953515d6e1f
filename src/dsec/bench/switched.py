"""Hosts on one switch, each behind a link of a known rate: network namespaces, veth pairs and a bridge.

What a host sends passes a token bucket at its own end, what it receives one at the switch's (``tc`` tbf, tc-tbf(8)), so
that each link carries its rate in both directions and no more, as a network card does. All of it lies in namespaces of
its own: nothing of it is seen by the machine that it runs on, and it goes with them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from dsec.bench.netns import NetworkNamespace, network_namespace

_BURST_BYTES, _QUEUE_BYTES = 128 << 10, 1 << 20
"""A piece of TCP is 64 KiB at most. A longer queue would only hide from TCP that the link is full."""
_NET = "10.97.0"
_DEVICE = "eth0"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SwitchedHost:
    """A host on the switch.

    Attributes:
        namespace: its network.
        address: at which the others reach it.
        switch, port: the switch, and its interface towards this host.
    """

    namespace: NetworkNamespace
    address: str
    switch: NetworkNamespace
    port: str

    def inside(self, *argv: str) -> tuple[str, ...]:
        """Return a command line that runs there, with the mounts of the caller."""
        return self.namespace.inside(*argv)

    def call(self, function: Callable[[], _T]) -> _T:
        """Call a function in a thread whose sockets are of this host, and return what it returns."""
        return self.namespace.call(function)

    @property
    def _ends(self) -> tuple[tuple[NetworkNamespace, str], ...]:
        return (self.namespace, _DEVICE), (self.switch, self.port)

    def shape(self, bits_per_s: int) -> None:
        """Let no more than so many bits a second pass, each way; takes effect at once."""
        for end, device in self._ends:
            end.shape(device, bits_per_s, burst_bytes=_BURST_BYTES, queue_bytes=_QUEUE_BYTES)

    def unshape(self) -> None:
        """Let everything pass as fast as it can. Idempotent."""
        for end, device in self._ends:
            end.unshape(device)

    def cut(self) -> None:
        """Let nothing pass any more: what is under way hears nothing of it."""
        self.switch.ip("link", "set", self.port, "down")

    def join(self) -> None:
        """Let everything pass again."""
        self.switch.ip("link", "set", self.port, "up")

    def sent_bytes(self) -> int:
        """Return what it has sent so far, frames and all."""
        return self._count("rx")

    def received_bytes(self) -> int:
        """Return what was sent to it so far, frames and all."""
        return self._count("tx")

    def _count(self, way: str) -> int:
        told = json.loads(self.switch.ip("-s", "-j", "link", "show", "dev", self.port))
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
        switch = stack.enter_context(network_namespace(name))
        switch.ip("link", "add", "switch", "type", "bridge")
        switch.ip("link", "set", "switch", "up")
        spaces = [stack.enter_context(network_namespace(f"{name}-{number}")) for number in range(1, count + 1)]
        yield [_join(space, switch, number) for number, space in enumerate(spaces, 1)]


def _join(namespace: NetworkNamespace, switch: NetworkNamespace, number: int) -> SwitchedHost:
    host = SwitchedHost(namespace, f"{_NET}.{number}", switch, f"port{number}")
    switch.ip("link", "add", host.port, "type", "veth", "peer", "name", _DEVICE, "netns", namespace.name)
    switch.ip("link", "set", host.port, "master", "switch", "up")
    namespace.address(_DEVICE, f"{host.address}/24")
    return host
