"""A node's half of announcing: what of its chunks a tracker has yet to hear.

Changes pile up between two announcements and cancel each other out: a chunk that came and went was never there. An
announcement that was not acknowledged is made again as it was, under its old number, before the next one: the tracker
may have heard it and only its answer was lost. When there is too much to say, or the tracker lost track, all is said
anew from what the node holds (`held`), so that nothing has to be remembered for long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dsec.distribution.messages import Acknowledgement, Announcement, LayerChange

COMPLETE = None
"""In `held`: all chunks of the layer are there."""
Held = Mapping[str, Iterable[str] | None]
"""Names of the manifests of layers, and of each the chunks that are there, or `COMPLETE`."""

MAXIMUM_PENDING = 65_536
"""Changes that are remembered; beyond, everything is announced anew."""


class Announcer:
    """What one node tells one tracker.

    Args:
        node: its id.
        address: where its chunks are had.
        life: drawn anew by whoever makes this.
    """

    def __init__(self, node: str, address: str, life: str) -> None:
        self.node, self.address, self.life = node, address, life
        self._sequence = 0
        self._full = True
        self._pending: dict[str, _Change] = {}
        self._count = 0
        self._sent: Announcement | None = None

    @property
    def has_news(self) -> bool:
        """Whether there is something to tell before the lease wants it."""
        return self._full or bool(self._pending) or self._sent is not None

    def gained(self, layer: str, chunks: Iterable[str]) -> None:
        """Note chunks that are there now."""
        change = self._change(layer)
        for chunk in chunks:
            self._count += 1
            change.lost.discard(chunk)
            change.gained.add(chunk)

    def lost(self, layer: str, chunks: Iterable[str]) -> None:
        """Note chunks that are not there any more. Of a layer that was complete, call `restate` instead."""
        change = self._change(layer)
        for chunk in chunks:
            self._count += 1
            change.gained.discard(chunk)
            change.lost.add(chunk)

    def completed(self, layer: str) -> None:
        """Note that all chunks of a layer are there."""
        self._count += 1
        self._pending[layer] = _Change(complete=True)

    def removed(self, layer: str) -> None:
        """Note that nothing of a layer is there any more."""
        self._count += 1
        self._pending[layer] = _Change(gone=True)

    def restate(self) -> None:
        """Announce everything next time."""
        self._full = True

    def make(self, held: Held, *, upload_bytes_per_s: int, upload_slots: int, uploads: int) -> Announcement:
        """Return what is to be sent now.

        Args:
            held: everything that is there; looked at only if all of it has to be said.
            upload_bytes_per_s, upload_slots, uploads: see `Announcement`.
        """
        if self._sent is not None:
            return self._sent
        full = self._full or self._count > MAXIMUM_PENDING
        changes = _all(held) if full else tuple(change.value(layer) for layer, change in self._pending.items())
        self._sequence += 1
        self._pending, self._count, self._full = {}, 0, False
        self._sent = Announcement(
            node=self.node,
            address=self.address,
            life=self.life,
            sequence=self._sequence,
            full=full,
            upload_bytes_per_s=upload_bytes_per_s,
            upload_slots=upload_slots,
            uploads=uploads,
            changes=changes,
        )
        return self._sent

    def acknowledged(self, announcement: Announcement, answer: Acknowledgement) -> None:
        """Take the tracker's answer to the announcement that was made last."""
        if self._sent is not None and announcement.sequence == self._sent.sequence:
            self._sent = None
        if answer.resend:
            self._full = True

    def _change(self, layer: str) -> _Change:
        change = self._pending.get(layer)
        if change is None:
            change = self._pending[layer] = _Change()
        elif change.complete:
            # Nobody knows here which chunks a complete layer has, so that less than all of it cannot be put as a
            # change.
            self._full = True
        return change


class _Change:
    """What is yet to be told of one layer. After `gone`, what is gained is all that there is."""

    __slots__ = ("complete", "gained", "gone", "lost")

    def __init__(self, *, complete: bool = False, gone: bool = False) -> None:
        self.complete, self.gone = complete, gone
        self.gained: set[str] = set()
        self.lost: set[str] = set()

    def value(self, layer: str) -> LayerChange:
        return LayerChange(
            layer=layer,
            complete=self.complete,
            gone=self.gone,
            gained=tuple(sorted(self.gained)),
            lost=() if self.gone else tuple(sorted(self.lost)),
        )


def _all(held: Held) -> tuple[LayerChange, ...]:
    return tuple(
        LayerChange(layer=layer, complete=True)
        if chunks is COMPLETE
        else LayerChange(layer=layer, gained=tuple(sorted(chunks or ())))
        for layer, chunks in held.items()
    )
