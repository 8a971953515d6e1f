"""How long an episode has gone on, by a clock that nobody sets, without the times in which it stood still.

What lies before this life is known by the wall clock alone, from the log. Within a life the boot clock counts, so that
a wall clock that is set to next year ends nothing.
"""

from __future__ import annotations

from dsec.base.clock import Clock


class Stopwatch:
    """Runs from the moment that it is made.

    Args:
        clock: its boot clock counts.
        before_s: how long it went on before.
        is_held: whether it stands still at first.
    """

    def __init__(self, clock: Clock, before_s: float = 0.0, *, is_held: bool = False) -> None:
        self._clock = clock
        self._before_s = before_s
        self._since_s = None if is_held else clock.boot_s()

    def elapsed_s(self) -> float:
        """Return the seconds so far."""
        running_s = 0.0 if self._since_s is None else self._clock.boot_s() - self._since_s
        return self._before_s + running_s

    def hold(self) -> None:
        """Stand still. Idempotent."""
        self._before_s, self._since_s = self.elapsed_s(), None

    def release(self) -> None:
        """Go on. Idempotent."""
        if self._since_s is None:
            self._since_s = self._clock.boot_s()
