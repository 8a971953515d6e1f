"""What a simulated distribution comes to."""

from __future__ import annotations

from collections.abc import Sequence

from dsec.distribution.messages import FailureKind, VerdictKind
from dsec.sim.distribution.node import Nature, SimNode
from dsec.sim.figures import Figure, Series, figure, thinned


class Measures:
    """Counts of one run."""

    def __init__(self) -> None:
        self.origin_bytes = 0
        self.peer_bytes = 0
        self.granted = 0
        self.given_up = 0
        self.unanswered = 0
        self.failures = dict.fromkeys(FailureKind, 0)
        self.verdicts = dict.fromkeys(VerdictKind, 0)
        self._ready: list[float] = []
        self._complete: list[float] = []

    def became_ready(self, now_s: float) -> None:
        """Note that a node can run its first command."""
        self._ready.append(now_s)

    def became_complete(self, now_s: float) -> None:
        """Note that a node has everything."""
        self._complete.append(now_s)

    def counts(self, nodes: Sequence[SimNode], image_bytes: int) -> dict[str, float]:
        """Sum up; of those that died nothing is expected."""
        living = [node for node in nodes if node.alive]
        honest = [node for node in living if node.nature in (Nature.HONEST, Nature.LYING)]
        mean = sum(node.sent_bytes for node in honest) / max(1, len(honest))
        most = max((node.sent_bytes for node in honest), default=0)
        return {
            "all_ready_s": max(self._ready, default=0.0),
            "all_complete_s": max(self._complete, default=0.0),
            "ready": len(self._ready),
            "complete": len(self._complete),
            "living": len(living),
            "origin_bytes": self.origin_bytes,
            "origin_images": self.origin_bytes / image_bytes,
            "peer_bytes": self.peer_bytes,
            "wasted_bytes": sum(node.wasted_bytes for node in living),
            "sent_most_bytes": most,
            "sent_most_of_mean": most / mean if mean else 0.0,
            "granted": self.granted,
            "given_up": self.given_up,
            "unanswered": self.unanswered,
            **{f"failures_{kind.value}": count for kind, count in self.failures.items()},
            **{kind.value: count for kind, count in self.verdicts.items()},
        }

    def figures(self, nodes: Sequence[SimNode]) -> dict[str, Figure]:
        """Return the distributions over nodes, each from its own start."""
        return {
            "ready_s": figure([node.first_s - node.start_s for node in nodes if node.first_s >= 0]),
            "complete_s": figure([node.all_s - node.start_s for node in nodes if node.all_s >= 0]),
            "sent_bytes": figure([float(node.sent_bytes) for node in nodes if node.alive]),
        }

    def series(self, count: int) -> dict[str, Series]:
        """Return how the share of nodes grew that were ready, and that had all."""
        return {
            name: thinned("share", [0.0, *times], [at / count for at in range(len(times) + 1)])
            for name, times in (("ready", self._ready), ("complete", self._complete))
        }
