"""A process that kills itself at a chosen line: between any two effects, where a kill by the clock nearly always
comes while the process waits."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any


class Countdown:
    """Counts the executed lines of some packages of DSec, and sends this process SIGKILL at the last one.

    Args:
        lines: how many.
        packages: names of the packages below `dsec`.
    """

    def __init__(self, lines: int, packages: Sequence[str]) -> None:
        self._left = lines
        self._counted = tuple(f"{os.sep}dsec{os.sep}{name}{os.sep}" for name in packages)

    def begin(self, *_: object) -> None:
        """Count in frames that are entered, or resumed, from now on. Fit to be a signal handler."""
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._count if any(part in frame.f_code.co_filename for part in self._counted) else None

    def _count(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._left -= 1
            if self._left <= 0:
                sys.stderr.write(f"killed at {frame.f_code.co_filename}:{frame.f_lineno}\n")
                sys.stderr.flush()
                os.kill(os.getpid(), signal.SIGKILL)
        return self._count
