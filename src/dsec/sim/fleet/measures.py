"""What is measured of a fleet."""

from __future__ import annotations

from collections.abc import Sequence

from dsec.sim.figures import Level, Samples, Series, figure, thinned
from dsec.sim.fleet.node import SimNode
from dsec.sim.result import LevelFigure, Result

_SERIES = (
    ("running", "sandboxes"),
    ("waiting", "requests"),
    ("created", "/s"),
    ("completed", "/s"),
    ("given_up", "/s"),
    ("timed_out", "/s"),
    ("imbalance", "fullest / mean"),
    ("utilisation", "share"),
    ("origin", "bytes/s"),
    ("cloud", "sandboxes"),
)
COUNTED = (
    "asked", "asked_again", "created", "completed", "ended", "given_up", "lost", "restarted", "rejected", "timed_out",
    "refused",
    "orphaned", "leaked", "duplicates", "image_hits", "image_fetches", "sent_to_cloud", "takeovers",
)  # fmt: skip


class Measures:
    """Counters, distributions and series of one run.

    Attributes:
        create_s: from the request to the sandbox.
        image_s: what a creation waited for its image.
        queue_s: what a creation waited for a place on its node.
        step_s: from the model's decision to the tool's end, of latency-sensitive work.
        best_effort_s: the same of best-effort work.
        slowdown: by which factor latency-sensitive tools took longer than drawn.
        trajectory_s: of whole trajectories.
        running, waiting: sandboxes that stand; requests without one.
    """

    __slots__ = (
        *COUNTED, "_completed_before", "_last", "_nodes", "_own", "_peak_per_s", "_racks", "_since_s", "best_effort_s",
        "cloud", "create_s", "image_s", "imbalance", "in_second", "queue_s", "rows", "running", "second_ends_s",
        "slowdown", "step_s", "trajectory_s", "utilisation", "waiting",
    )  # fmt: skip

    def __init__(self, nodes: Sequence[SimNode], racks: int) -> None:
        self._nodes = nodes
        self._own = [node for node in nodes if not node.group.cloud] or list(nodes)
        self._racks = racks
        for name in COUNTED:
            setattr(self, name, 0)
        self.running = Level()
        self.waiting = Level()
        self.cloud = Level()
        self.rows: list[tuple[float, ...]] = []
        self._last: dict[str, float] = {}
        self.in_second = self._peak_per_s = 0
        self.second_ends_s = 0.0
        self.restart(0.0)

    def begin_second(self, now_s: float) -> None:
        """Count the creations of another second; the most of any is a result."""
        self._peak_per_s = max(self._peak_per_s, self.in_second)
        self.in_second = 0
        self.second_ends_s = float(int(now_s)) + 1.0

    # Counters are plain attributes, because they are the hottest lines of a run.
    asked: int
    asked_again: int
    created: int
    completed: int
    ended: int
    given_up: int
    lost: int
    restarted: int
    rejected: int
    timed_out: int
    refused: int
    orphaned: int
    leaked: int
    duplicates: int
    image_hits: int
    image_fetches: int
    sent_to_cloud: int
    takeovers: int

    def restart(self, now_s: float) -> None:
        """Forget distributions, levels and rates so far; counts go on, because they must add up."""
        self._since_s, self._completed_before = now_s, self.completed
        self.create_s, self.image_s, self.queue_s = Samples(), Samples(), Samples()
        self.step_s, self.best_effort_s, self.slowdown = Samples(), Samples(), Samples()
        self.trajectory_s, self.imbalance, self.utilisation = Samples(), Samples(), Samples()
        for level in (self.running, self.waiting, self.cloud):
            level.restart(now_s)

    def sample(self, now_s: float, every_s: float, origin_bytes: float) -> None:
        """Look at all nodes."""
        held = [node.held for node in self._own if node.alive]
        mean = sum(held) / max(1, len(held))
        imbalance = max(held, default=0) / mean if mean >= 1 else 1.0
        capacity = sum(node.group.memory_bytes for node in self._own if node.alive)
        used = sum(node.memory_bytes for node in self._own)
        utilisation = used / capacity if capacity else 0.0
        if mean >= 1:
            self.imbalance.add(imbalance)
        self.utilisation.add(utilisation)
        rates = [
            self._rate(name, value, every_s)
            for name, value in (
                ("created", self.created), ("completed", self.completed), ("given_up", self.given_up),
                ("timed_out", self.timed_out), ("origin", origin_bytes),
            )
        ]  # fmt: skip
        self.rows.append(
            (
                now_s,
                self.running.value,
                self.waiting.value,
                *rates[:4],
                imbalance,
                utilisation,
                rates[4],
                self.cloud.value,
            )
        )

    def _rate(self, name: str, value: float, every_s: float) -> float:
        before = self._last.get(name, 0.0)
        self._last[name] = value
        return (value - before) / every_s

    def result(
        self, *, scenario: str, case: str, seed: int, now_s: float, events: int, extra: dict[str, float]
    ) -> Result:
        """Sum up."""
        series = self._series()
        self.begin_second(now_s)
        fetched = self.image_hits + self.image_fetches
        return Result(
            scenario=scenario,
            case=case,
            seed=seed,
            simulated_s=now_s,
            events=events,
            counts={
                **{name: float(getattr(self, name)) for name in COUNTED},
                "running_at_end": self.running.value,
                "waiting_at_end": self.waiting.value,
                "peak_created_per_s": float(self._peak_per_s),
                "completed_per_s": (self.completed - self._completed_before) / max(1e-9, now_s - self._since_s),
                "image_hit_share": self.image_hits / fetched if fetched else 0.0,
                "fullest_node": float(max(node.held for node in self._nodes)),
                **extra,
            },
            figures={
                "create_s": self.create_s.figure(),
                "image_s": self.image_s.figure(),
                "queue_s": self.queue_s.figure(),
                "step_s": self.step_s.figure(),
                "best_effort_s": self.best_effort_s.figure(),
                "slowdown": self.slowdown.figure(),
                "trajectory_s": self.trajectory_s.figure(),
                "imbalance": self.imbalance.figure(),
                "utilisation": self.utilisation.figure(),
                "node_sandboxes": figure([float(node.held) for node in self._nodes]),
            },
            levels={
                "running": LevelFigure.of(self.running, now_s),
                "waiting": LevelFigure.of(self.waiting, now_s),
                "cloud": LevelFigure.of(self.cloud, now_s),
            },
            series=series,
        )

    def _series(self) -> dict[str, Series]:
        times_s = [row[0] for row in self.rows]
        return {
            name: thinned(unit, times_s, [row[column] for row in self.rows])
            for column, (name, unit) in enumerate(_SERIES, start=1)
        }
