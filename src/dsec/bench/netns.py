"""Network namespaces of a benchmark's own: made, entered, shaped, and taken away at the end with all that is in them.

They are named, below ``/run/netns`` (ip-netns(8)), so that ``ip`` and ``tc`` reach them. A namespace that is deleted
goes when its last process ends, and its interfaces with it; a pair of which one end was there goes as a whole.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from dsec.base.errors import CapabilityMissingError, ExternalCommandError
from dsec.linux import syscalls

_CLONE_NEWNET = 0x40000000
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class NetworkNamespace:
    """A network namespace with a name.

    Attributes:
        name: what ``ip netns`` calls it.
    """

    name: str

    @property
    def path(self) -> str:
        """The file by which it is entered."""
        return f"/run/netns/{self.name}"

    def inside(self, *argv: str) -> tuple[str, ...]:
        """Return a command line that runs there.

        Mounts are those of the caller: ``ip netns exec`` would copy them all, and what is unmounted here later would go
        on being mounted there, and its devices in use, for as long as the command runs.
        """
        return ("nsenter", f"--net={self.path}", "--", *argv)

    def call(self, function: Callable[[], _T]) -> _T:
        """Call a function in a thread whose sockets are of that network, and return what it returns."""

        def there() -> _T:
            namespace = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                syscalls.libc_call("setns", namespace, _CLONE_NEWNET)
            finally:
                os.close(namespace)
            return function()

        # A thread of its own, which ends with it: no other work may find itself in that network.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(there).result()

    def ip(self, *argv: str) -> str:
        """Run ip(8) there, and return what it says."""
        return call("ip", "-n", self.name, *argv)

    def address(self, device: str, address: str) -> None:
        """Give an interface an address, and bring it up."""
        self.ip("address", "add", address, "dev", device)
        self.ip("link", "set", device, "up")

    def shape(self, device: str, bits_per_s: int, *, burst_bytes: int, queue_bytes: int) -> None:
        """Let no more than so many bits a second leave by an interface (tc-tbf(8)); takes effect at once.

        Args:
            device: the interface.
            bits_per_s: frames and all.
            burst_bytes: what passes at once; TCP's pieces of 64 KiB must fit.
            queue_bytes: what waits; more is dropped.
        """
        bucket = f"tbf rate {bits_per_s}bit burst {burst_bytes} limit {queue_bytes}"
        call("tc", "-n", self.name, "qdisc", "replace", "dev", device, "root", *bucket.split())

    def unshape(self, device: str) -> None:
        """Let everything leave as fast as it can. Idempotent."""
        command = ["tc", "-n", self.name, "qdisc", "del", "dev", device, "root"]
        subprocess.run(command, capture_output=True, check=False)


@contextmanager
def network_namespace(name: str) -> Iterator[NetworkNamespace]:
    """Make a namespace with nothing in it but its loopback, which is up, and delete it at the end. Needs root.

    Raises:
        CapabilityMissingError: ``ip`` is not installed.
        ExternalCommandError: the kernel refuses it, or there is one of that name.
    """
    call("ip", "netns", "add", name)
    try:
        made = NetworkNamespace(name)
        made.ip("link", "set", "lo", "up")
        yield made
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


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
