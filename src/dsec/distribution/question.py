"""What a lookup asks for one chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsec.distribution.messages import FailureKind, Lookup


@dataclass(frozen=True, slots=True)
class Question:
    """Who wants what, and whom not to send it to.

    Attributes:
        node, layer, chunk: who wants which chunk of which layer.
        avoided: who failed to give it, for as long as it is wanted.
        busy: who refused just now.
    """

    node: str
    layer: str
    chunk: str
    avoided: frozenset[str] = frozenset()
    busy: frozenset[str] = frozenset()


def questions_of(lookup: Lookup) -> Iterator[Question]:
    """Yield a question for each chunk that is wanted now."""
    failed: dict[str, set[str]] = {}
    busy: dict[str, set[str]] = {}
    for failure in lookup.failures:
        of_kind = busy if failure.kind is FailureKind.BUSY else failed
        of_kind.setdefault(failure.chunk, set()).add(failure.peer)
    for chunk in lookup.chunks:
        avoided, refused = failed.get(chunk, ()), busy.get(chunk, ())
        yield Question(lookup.node, lookup.layer, chunk, frozenset(avoided), frozenset(refused))
