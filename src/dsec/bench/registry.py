"""The table of benchmarks."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pathlib import Path

    from dsec.bench.report import Report

    Measure = Callable[[Any], Awaitable[Report]]
    """Takes a `PureContext`, or a `BenchContext` if the benchmark is not pure."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark, imported when it runs.

    Attributes:
        name: as the command line calls it.
        where: ``module:function``.
        help: one line.
        samples: how many, if nothing is asked for.
        counts: what ``--count`` counts; empty: nothing.
        sizes: whether ``--size`` means something.
        size: it, if nothing is asked for.
        pure: whether it needs no sandboxes: no image, no directory, no node.
        picture: title of the picture that `--plot` draws over the amount written; empty: none.
        goal_ms: drawn in it.
        draws: ``module:function`` that draws another picture, from the report into a directory; empty: none.
        installs: the reference that ``--install-reference`` installs; empty: none.
    """

    name: str
    where: str
    help: str
    samples: int = 100
    counts: str = ""
    sizes: bool = False
    size: str = "1GiB"
    pure: bool = False
    installs: str = ""
    picture: str = ""
    goal_ms: float = 0.0
    draws: str = ""

    def load(self) -> Measure:
        return cast("Measure", _named(self.where))

    def draw(self, report: Report, directory: Path) -> None:
        """Draw what there is to draw.

        Raises:
            CapabilityMissingError: matplotlib is not installed.
        """
        if self.draws:
            _named(self.draws)(report, directory)
            return
        from dsec.bench.by_size import draw_by_size

        draw_by_size(report, directory, title=self.picture, goal_ms=self.goal_ms)


def _named(where: str) -> Callable[..., Any]:
    module, _, function = where.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


BENCHMARKS = (
    Benchmark(
        "create",
        "dsec.bench.create:bench_create",
        "Create a sandbox, the image resident; beside `docker run -d` and bare crun.",
    ),
    Benchmark(
        "pool",
        "dsec.bench.pool:bench_pool",
        "Hand out a ready sandbox in process and over HTTP, and recycle; beside creating each anew.",
    ),
    Benchmark(
        "levels",
        "dsec.bench.levels:bench_levels",
        "Waiting with a ready level that follows the arrivals; beside a fixed one of equal memory (simulated).",
        samples=5,
        pure=True,
    ),
    Benchmark(
        "classes",
        "dsec.bench.classes:bench_classes",
        "What a sandbox loses to a busy neighbour, best effort or of its own class; beside being alone.",
        samples=30,
    ),
    Benchmark(
        "exec",
        "dsec.bench.execute:bench_exec",
        "Run `true` over HTTP and in process; beside bare `crun exec` and Docker Engine.",
        samples=300,
    ),
    Benchmark(
        "files",
        "dsec.bench.files:bench_files",
        "Small file operations, and a large file in and out; beside a local copy.",
        sizes=True,
    ),
    Benchmark(
        "rollback",
        "dsec.bench.rollback:bench_rollback",
        "Roll back by the amount written; beside creating anew, here and with Docker Engine.",
        sizes=True,
        picture="Rollback by the amount written",
        goal_ms=15.0,
    ),
    Benchmark(
        "checkpoint",
        "dsec.bench.checkpoint:bench_checkpoint",
        "Save a sandbox's files by the amount written, settled and just written; beside a copy of them.",
        samples=30,
        sizes=True,
        picture="Checkpoint by the amount written",
        goal_ms=15.0,
    ),
    Benchmark(
        "fork",
        "dsec.bench.fork:bench_fork",
        "Fork a hundred children of one sandbox; beside creating as many.",
        counts="children",
    ),
    Benchmark(
        "snapshot",
        "dsec.bench.snapshot:bench_snapshot",
        "Make 15 MB of changes in an 800 MB tree durable, restore long chains, share between sandboxes; beside tar.",
        samples=30,
        counts="sandboxes that share",
        sizes=True,
    ),
    Benchmark(
        "fingerprint",
        "dsec.bench.fingerprint:bench_fingerprint",
        "Compare a sandbox of a 20,000-file image with its clean state; beside hashing all files.",
        counts="files of the image",
    ),
    Benchmark(
        "lazy-read",
        "dsec.bench.lazy_read:bench_lazy_read",
        "Read a layer that was loaded when touched and is all here; beside the same file mounted from disk.",
        sizes=True,
    ),
    Benchmark(
        "peers",
        "dsec.bench.peers:bench_peers",
        "Bring an image to 500 simulated nodes, a layer to 8 real ones, by peers; beside taking all from the store.",
        samples=3,
        counts="simulated nodes",
        pure=True,
    ),
    Benchmark(
        "pause",
        "dsec.bench.pause:bench_pause",
        "Memory that 200 paused sandboxes give back; the first answer of one, beside reading its pages back alone.",
        samples=50,
        counts="sandboxes",
    ),
    Benchmark(
        "dedup",
        "dsec.bench.dedup:bench_dedup",
        "Bytes that twenty related images share in chunks; beside whole files, whole layers and tars.",
    ),
    Benchmark(
        "lazy-start",
        "dsec.bench.lazy_start:bench_lazy_start",
        "First command of a 2 GiB image behind a link, nothing cached; beside eager pulls, docker load, podman load.",
        samples=10,
        sizes=True,
        size="2GiB",
    ),
    Benchmark(
        "lazy-trace",
        "dsec.bench.lazy_trace:bench_lazy_trace",
        "First command of an image behind a link with a trace of it: prefetched, and laid out by it; beside without.",
        samples=10,
    ),
    Benchmark(
        "lazy-burst",
        "dsec.bench.lazy_burst:bench_lazy_burst",
        "200 sandboxes of 20 images behind a link, nothing cached; beside all of it cached, and pulled whole first.",
        samples=2,
        counts="sandboxes, ten of an image",
        sizes=True,
        size="2GiB",
        draws="dsec.bench.lazy_burst:draw",
    ),
    Benchmark(
        "migrate",
        "dsec.bench.migrate:bench_migrate",
        "How long a sandbox stands still when it moves between two nodes; beside copying all that it wrote.",
        samples=50,
        sizes=True,
    ),
    Benchmark(
        "density",
        "dsec.bench.density:bench_density",
        "Fill the host with idle sandboxes: memory of each; the last creations beside the first.",
        counts="sandboxes",
    ),
    Benchmark(
        "rollout",
        "dsec.bench.rollout:bench_rollout",
        "Roll out 164 HumanEval tasks; beside their bare test commands.",
        counts="tasks",
    ),
    Benchmark(
        "placement",
        "dsec.bench.placement:bench_placement",
        "Choose nodes among 1,024 on old views; beside the plain rule and a full scan.",
        samples=30,
        counts="nodes",
        pure=True,
    ),
    Benchmark(
        "herd",
        "dsec.bench.herd:bench_herd",
        "Fill 160 nodes by eight schedulers on old views; beside an oracle, least-loaded and k choices.",
        samples=10,
        pure=True,
    ),
    Benchmark(
        "sim",
        "dsec.bench.sim:bench_sim",
        "Events per second of the simulator, and a day of one scale unit; beside a bare heap.",
        samples=10,
        pure=True,
    ),
    Benchmark(
        "plan",
        "dsec.bench.plan:bench_plan",
        "Compare ten thousand combinations of a workload; beside a plain loop over the same formulas.",
        samples=5,
        pure=True,
    ),
    Benchmark(
        "routing",
        "dsec.bench.routing:bench_routing",
        "Time to the first token when calls are routed, beside round-robin (simulated); decisions over 64 backends.",
        samples=3,
        pure=True,
    ),
    Benchmark(
        "gateway",
        "dsec.bench.gateway:bench_gateway",
        "What the model gateway adds to calls and streams, calls a second, memory of streams; beside LiteLLM's proxy.",
        samples=500,
        counts="open streams",
        pure=True,
        installs="LiteLLM's proxy",
    ),
    Benchmark(
        "commit",
        "dsec.bench.commit:bench_commit",
        "Make a round of an episode durable; beside the bare fsync of the same bytes, and SQLite.",
        samples=200,
        counts="rounds of the long episode",
        pure=True,
    ),
    Benchmark(
        "replay",
        "dsec.bench.replay:bench_replay",
        "Read an episode of 1,000 rounds back, verified; beside a bare parse of its lines.",
        samples=50,
        counts="rounds",
        pure=True,
    ),
    Benchmark(
        "worker",
        "dsec.bench.worker:bench_worker",
        "Drive 800 episodes in one worker: memory of each, rounds a second, commits; beside loops that write nothing.",
        samples=60,
        counts="episodes",
        pure=True,
    ),
    Benchmark(
        "rebuild",
        "dsec.bench.rebuild:bench_rebuild",
        "Memory over time of an agent's environment that is rebuilt each round; beside resident and paused ones.",
        samples=3,
        draws="dsec.bench.rebuild:draw",
    ),
)
