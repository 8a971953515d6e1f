"""Swap that is a number: room for the memory of paused sandboxes, as a node on the in-memory fakes sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dsec.base.errors import SwapFullError
from dsec.base.units import GIB
from dsec.model.capability import Capability, CapabilityReport


class MemorySwap:
    """A `dsec.node.state.swap.Swap` of a given size.

    Args:
        used_bytes: tells what is in it.
        size_bytes: how much fits.

    Attributes:
        claimed_bytes: what is claimed now.
    """

    def __init__(self, used_bytes: Callable[[], int], size_bytes: int = 1 * GIB) -> None:
        self.size_bytes = size_bytes
        self.claimed_bytes = 0
        self._used_bytes = used_bytes

    @contextmanager
    def claim(self, size_bytes: int) -> Iterator[None]:
        if size_bytes > self.size_bytes - self._used_bytes() - self.claimed_bytes:
            raise SwapFullError(f"{size_bytes} bytes of memory do not fit")
        self.claimed_bytes += size_bytes
        try:
            yield
        finally:
            self.claimed_bytes -= size_bytes

    def tidy(self) -> None:
        """Nothing is ever left by half."""

    def remove(self) -> None:
        """Nothing is held."""

    def report(self) -> CapabilityReport:
        return CapabilityReport(capability=Capability.SWAP_FILE, available=True, reason="in memory")
