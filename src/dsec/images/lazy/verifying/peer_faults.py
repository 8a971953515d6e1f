"""Which peers gave something else for chunks of a layer: from the events of this host's layer daemon.

What they gave was found out before it was used, so that nothing is wrong here. What is wrong is there: a disk, a
memory, or somebody; and others of the fleet may be given the same.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dsec.base.ids import is_node_id
from dsec.images.lazy.formats.stored import CHUNK_BYTES
from dsec.images.lazy.serving.fetching import LayerEventKind
from dsec.images.lazy.verifying.findings import Finding, Subject

_FILES = ("events.jsonl.1", "events.jsonl")
_WITHIN_S = 86_400.0
"""What was longer ago says nothing of how a node is now."""
_SHOWN = 8
_BAD_PEER = LayerEventKind.BAD_PEER.value


class _Event(msgspec.Struct):
    """What is read of a line; the rest is passed over."""

    wall_s: float
    kind: str
    manifest: str
    start: int = 0
    source: str = ""


def peer_faults(root: Path, subject: Subject, manifest: str) -> Iterator[Finding]:
    """Yield a finding for each node that gave something else for chunks of a layer in the last day. Blocks.

    Args:
        root: the daemon's directory.
        subject: the layer.
        manifest: name of its manifest.
    """
    faults: dict[str, list[int]] = {}
    for event in _events(root):
        if event.kind == _BAD_PEER and event.manifest == manifest and is_node_id(event.source):
            faults.setdefault(event.source, []).append(event.start // CHUNK_BYTES)
    for node, numbers in sorted(faults.items()):
        shown = ", ".join(f"chunk {number}" for number in sorted(set(numbers))[:_SHOWN])
        more = ", ..." if len(set(numbers)) > _SHOWN else ""
        detail = f"node {node} gave something else for {shown}{more} in the last day; it was found out and not used"
        advice = f"check disk and memory of node {node}, and verify its images there (--full --repair)"
        yield subject.bad(detail, node=node, suffix=" peers", advice=advice)


def _events(root: Path) -> Iterator[_Event]:
    since_s = time.time() - _WITHIN_S
    for name in _FILES:
        try:
            lines = (root / name).read_bytes().splitlines()
        except FileNotFoundError:
            continue
        for line in lines:
            if _BAD_PEER.encode() not in line:
                continue
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):  # Half a line, of a full disk.
                event = msgspec.json.decode(line, type=_Event)
                if event.wall_s >= since_s:
                    yield event
