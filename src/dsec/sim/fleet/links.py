"""Links and the images that come over them.

A link serves its transfers one after another at full speed: the fluid limit of many transfers that share it has the
same last completion, and
the mean over a burst is up to half of it lower, so that times to *first* byte are flattered and totals are not. A
transfer occupies its
sender's and its receiver's link at once and moves at the slower one's speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Link:
    """One direction of a network card, or what a service sends in all.

    Args:
        bytes_per_s: 0: no limit.
    """

    __slots__ = ("bytes_per_s", "free_s", "moved_bytes")

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.free_s = 0.0
        self.moved_bytes = 0.0

    def reserve(self, now_s: float, size_bytes: float) -> float:
        """Take the next stretch of the link; return when it ends."""
        self.moved_bytes += size_bytes
        if not self.bytes_per_s:
            return now_s
        self.free_s = max(now_s, self.free_s) + size_bytes / self.bytes_per_s
        return self.free_s


def transfer(now_s: float, size_bytes: float, sender: Link, receiver: Link) -> float:
    """Move bytes from one to the other; return when the last arrives."""
    return max(sender.reserve(now_s, size_bytes), receiver.reserve(now_s, size_bytes))


class ImageCache:
    """The images of one node: what is there, what is on its way, and who waits for that.

    Args:
        capacity_bytes: 0: no limit. What was used longest ago makes room.
    """

    __slots__ = ("_capacity_bytes", "_held_bytes", "_sizes", "coming")

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._sizes: dict[int, float] = {}
        self._held_bytes = 0.0
        self.coming: dict[int, list[tuple[Callable[[float, Any], object], Any]]] = {}

    def __contains__(self, image: int) -> bool:
        return image in self._sizes

    def use(self, image: int) -> bool:
        """Say whether the image is there, and count it as used just now."""
        size = self._sizes.pop(image, None)
        if size is None:
            return False
        self._sizes[image] = size
        return True

    def hold(self, image: int, size_bytes: float) -> list[int]:
        """Keep an image; return which ones made room."""
        self._held_bytes += size_bytes - self._sizes.pop(image, 0.0)
        self._sizes[image] = size_bytes
        dropped: list[int] = []
        while self._capacity_bytes and self._held_bytes > self._capacity_bytes and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            self._held_bytes -= self._sizes.pop(oldest)
            dropped.append(oldest)
        return dropped

    def clear(self) -> list[int]:
        """Forget everything; return what was there."""
        dropped = list(self._sizes)
        self._sizes.clear()
        self.coming.clear()
        self._held_bytes = 0.0
        return dropped
