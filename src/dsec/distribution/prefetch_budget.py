"""How much of a node's bandwidth may go into what nobody has asked for yet. Pure.

Theory. A bucket fills with bytes at a share of the bandwidth (30 %, training report), up to what comes in together in
`burst_s`: a sandbox that begins may draw at once what it left alone before. Over any time longer than that the share
holds. The bandwidth is set, or taken from what was fetched: bytes by the time in which at least one fetch was under
way, whoever wanted it. A link that is shared or slow for a moment shows less than it can do, so that a higher value
counts at once and a lower one by and by.
"""

from __future__ import annotations

from dsec.base.units import MIB
from dsec.model.value import Value

SHARE = 0.3
BURST_S = 2.0
ASSUMED_BYTES_S = 16.0 * MIB
"""What a node is taken to have before it fetched anything, which is at the latest a layer's metadata."""
_LOWERED = 0.125
"""Weight of a sample below what is known."""
_SAMPLE_BYTES = MIB
_SAMPLE_S = 0.05
"""Samples below either say more about answering than about bandwidth, and are gathered until they are longer."""


class BudgetSettings(Value, frozen=True):
    """How much may be brought beforehand.

    Attributes:
        share: of the bandwidth, 0 to 1; 0: nothing is brought by plan.
        bandwidth_bytes_s: the node's bandwidth; 0: measured.
        burst_s: how many seconds' worth may be drawn at once.
    """

    share: float = SHARE
    bandwidth_bytes_s: float = 0.0
    burst_s: float = BURST_S


class BandwidthMeter:
    """Measures the bandwidth of fetches; times are seconds of any clock that only goes forward."""

    def __init__(self) -> None:
        self._under_way = 0
        self._since_s = 0.0
        self._busy_s = 0.0
        self._bytes = 0
        self.bytes_s = 0.0
        """The estimate; 0: nothing was measured yet."""

    def began(self, now_s: float) -> None:
        """Note that a fetch begins."""
        self._pass(now_s)
        self._under_way += 1

    def ended(self, now_s: float, received_bytes: int) -> None:
        """Note that a fetch ended, with so many bytes as they came; 0: it failed."""
        self._pass(now_s)
        self._under_way -= 1
        self._bytes += received_bytes
        if self._bytes >= _SAMPLE_BYTES and self._busy_s >= _SAMPLE_S:
            sample = self._bytes / self._busy_s
            weight = 1.0 if sample > self.bytes_s else _LOWERED
            self.bytes_s += weight * (sample - self.bytes_s)
            self._bytes, self._busy_s = 0, 0.0

    def _pass(self, now_s: float) -> None:
        if self._under_way:
            self._busy_s += max(0.0, now_s - self._since_s)
        self._since_s = now_s


class Budget:
    """The bucket.

    Args:
        settings: how much.
        meter: what is measured, where nothing is set.
    """

    def __init__(self, settings: BudgetSettings, meter: BandwidthMeter) -> None:
        self._settings = settings
        self._meter = meter
        self._level = 0.0
        self._seen_s: float | None = None

    @property
    def bytes_s(self) -> float:
        """How much may be brought in a second."""
        known = self._settings.bandwidth_bytes_s or self._meter.bytes_s or ASSUMED_BYTES_S
        return self._settings.share * known

    def wait_s(self, now_s: float, wanted_bytes: int) -> float:
        """Return for how long a piece of so many bytes has to wait; 0: it may come now. Infinite without a budget."""
        self._fill(now_s, wanted_bytes)
        missing = wanted_bytes - self._level
        if missing <= 0:
            return 0.0
        return missing / self.bytes_s if self.bytes_s > 0 else float("inf")

    def spend(self, spent_bytes: int) -> None:
        """Take bytes out."""
        self._level -= spent_bytes

    def _fill(self, now_s: float, wanted_bytes: int) -> None:
        # A piece that is longer than the bucket could otherwise never come.
        capacity = max(self.bytes_s * self._settings.burst_s, float(wanted_bytes))
        if self._seen_s is None:
            self._level = self.bytes_s * self._settings.burst_s
        else:
            self._level += (now_s - self._seen_s) * self.bytes_s
        self._level = min(self._level, capacity)
        self._seen_s = now_s
