"""Whether a pool still recycles.

A sandbox that fails its clean check is destroyed, never handed out. When checks fail one after another the fault is
not one task's: an image whose check cannot pass, or a host that no longer undoes. Recycling then costs as much as
creating and gives nothing, so that it stops and every returned sandbox is destroyed and made anew. After a while
one recycle is tried; if its check passes, recycling goes on. (The circuit breaker: M. T. Nygard, "Release It!",
2007.)
"""

from __future__ import annotations

from dsec.model.pool import PoolPolicy


class Recycling:
    """Count failed clean checks in a row and decide."""

    __slots__ = ("_probing", "_stopped_s", "failed_in_a_row", "last_reason")

    def __init__(self) -> None:
        self.failed_in_a_row = 0
        self.last_reason = ""
        self._stopped_s: float | None = None
        self._probing = False

    @property
    def stopped(self) -> bool:
        return self._stopped_s is not None

    def may_begin(self, policy: PoolPolicy, now_s: float) -> bool:
        """Whether a returned sandbox may be recycled now. Once stopped, only one at a time, after the wait."""
        if self._stopped_s is None:
            return True
        return not self._probing and now_s - self._stopped_s >= policy.recycle_again_after_s

    def begun(self) -> None:
        """A recycle was begun; if recycling has stopped it is the one that is tried."""
        self._probing = self.stopped

    def ended(self, policy: PoolPolicy, now_s: float, *, clean: bool, reason: str) -> None:
        """Count the outcome of a clean check."""
        self._probing = False
        if clean:
            self.failed_in_a_row, self._stopped_s = 0, None
            return
        self.failed_in_a_row += 1
        self.last_reason = reason
        if self.stopped or self.failed_in_a_row >= policy.failed_checks_until_fresh:
            self._stopped_s = now_s
