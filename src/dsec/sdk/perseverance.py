"""How long to go on asking a server that does not answer: it may be starting again."""

from __future__ import annotations

import anyio

from dsec.base.errors import DsecError

_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 2.0


class Perseverance:
    """Delays between tries, twice as long each time, until patience has run out since the last sign of life.

    Args:
        patience_s: seconds without a sign of life after which an error counts.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.renew()

    def renew(self) -> None:
        """Note a sign of life."""
        self._deadline_s = anyio.current_time() + self._patience_s
        self._delay_s = _FIRST_DELAY_S

    async def wait(self, error: DsecError) -> None:
        """Wait before the next try. Raises `error` when there shall be none."""
        left_s = self._deadline_s - anyio.current_time()
        if left_s <= 0:
            raise error
        await anyio.sleep(min(self._delay_s, left_s))
        self._delay_s = min(2 * self._delay_s, _LONGEST_DELAY_S)
