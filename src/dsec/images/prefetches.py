"""The port of prefetches: bring what will be read of images before it is.

Contract of every driver: calls block, for a moment or until a layer's metadata is here; they may be called from any
thread; a prefetch is a favour, so that none of them raises anything but for a mistake of the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dsec.distribution.prefetch import PrefetchProgress
from dsec.model.prefetch import PrefetchStep


class Prefetches(Protocol):
    """Who brings."""

    def programs(self, images: Sequence[str]) -> frozenset[str] | None:
        """Return the names of the programs of which it is known what they read of a stack of images, the empty one for
        its first use; None: all of these images is here, or who serves them brings nothing.
        """

    def begin(self, owner: str, steps: Sequence[PrefetchStep], *, is_guess: bool = False) -> PrefetchProgress:
        """Bring what these steps will read, the nearest first, in place of what was to be brought for an owner before.
        Steps of which nothing is known count as steps, and bring nothing.

        Args:
            owner: on whose behalf.
            steps: the current one, then later ones.
            is_guess: the current one may be another: only what is read in any case is brought of it.
        """

    def stop(self, owner: str) -> None:
        """Bring nothing more for an owner."""

    def untouched(self, images: Sequence[str], ago_s: float) -> bool:
        """Tell whether nobody had read any chunk of a stack's lazy layers so many seconds ago: what was read since is
        its first use.
        """

    def keep_first_use(self, images: Sequence[str]) -> None:
        """Keep what was read of the first of these images until now as what its first use reads, if it has no such
        trace.
        """


class NoPrefetches:
    """Brings nothing."""

    def programs(self, images: Sequence[str]) -> frozenset[str] | None:
        return None

    def begin(self, owner: str, steps: Sequence[PrefetchStep], *, is_guess: bool = False) -> PrefetchProgress:
        return PrefetchProgress()

    def stop(self, owner: str) -> None:
        pass

    def untouched(self, images: Sequence[str], ago_s: float) -> bool:
        return False

    def keep_first_use(self, images: Sequence[str]) -> None:
        pass
