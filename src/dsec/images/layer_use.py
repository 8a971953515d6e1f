"""Who may be unmounted: which mounts were asked for when, and which are about to go.

Whoever creates a sandbox looks whether its layers are mounted, which costs a few stat(2) calls and no lock, and then
registers it. Whoever unmounts must not come between the two. The rule:

1. A user notes its use, *then* looks whether the mount is leaving; if so, it takes the slow way, by the store's lock.
2. Who unmounts marks mounts as leaving, *then* looks how long ago each was used, *then* asks which layers sandboxes
   use, and then unmounts, under the store's lock, those that are still leaving.
3. Whoever mounts under the lock takes the mark away.

Either a user sees the mark, or its use is seen. Between a use and its registration nothing but the question of step 2
must be kept out: a node answers it in the thread that registers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable


class LayerUse:
    """Uses of mounts, by any names that they have. Methods may be called from any thread.

    Args:
        now_s: monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._mutex = threading.Lock()
        self._used_s: dict[str, float] = {}
        self._leaving: frozenset[str] = frozenset()

    def touch(self, names: Iterable[str]) -> bool:
        """Note a use; return whether all of them stay mounted for now. Takes no lock."""
        now, leaving = self._now_s(), False
        for name in names:
            self._used_s[name] = now
            leaving = leaving or name in self._leaving
        return not leaving

    def leave(self, mounted: Iterable[str], idle_s: float) -> frozenset[str]:
        """Mark those mounts as leaving that nobody used for some time, and return them.

        One of which no use is known counts as used now: another process mounted it, or it was found at the start.
        """
        with self._mutex:
            now = self._now_s()
            known = {name: self._used_s.setdefault(name, now) for name in mounted}
            self._leaving = frozenset(name for name, used_s in known.items() if now - used_s >= idle_s)
            for name in self._leaving:
                if now - self._used_s[name] < idle_s:
                    self._leaving -= {name}
            for name in self._used_s.keys() - known.keys():
                if now - self._used_s[name] > idle_s:
                    del self._used_s[name]
            return self._leaving

    def is_leaving(self, name: str) -> bool:
        """Whether a mount is still to go. Called under the store's lock."""
        return name in self._leaving

    def stay(self, names: Iterable[str]) -> None:
        """Take marks away."""
        with self._mutex:
            self._leaving -= frozenset(names)
