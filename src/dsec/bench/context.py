"""What every benchmark gets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsec.base.errors import ExternalCommandError
from dsec.base.units import GIB
from dsec.bench.docker import DockerEngine, docker_engine, is_installed
from dsec.bench.progress import Progress
from dsec.bench.workplace import Workplace
from dsec.node.node import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """How much to measure.

    Attributes:
        samples: values of each distribution.
        count: sandboxes (density) or tasks (rollout); None: the benchmark's own number.
        size_bytes: the largest file or amount written.
        without_docker: leave Docker Engine out.
        install_reference: install what is measured beside DSec, if it is not there.
    """

    samples: int = 100
    count: int | None = None
    size_bytes: int = 1 * GIB
    without_docker: bool = False
    install_reference: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PureContext:
    """What a benchmark of pure code gets: options, and the host's description, to which it may add notes."""

    options: BenchOptions
    progress: Progress
    host: dict[str, Any] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Record a remark in the report, and say it."""
        self.host.setdefault("notes", []).append(text)
        self.progress.say(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchContext(PureContext):
    """What a benchmark of sandboxes gets: also a place to work in."""

    workplace: Workplace

    @contextmanager
    def docker(self) -> Iterator[DockerEngine | None]:
        """Run an own Docker Engine with the image; None, with a note, where there is none or it does not start."""
        reason = "left out as asked" if self.options.without_docker else "not installed"
        if self.options.without_docker or not is_installed():
            self.note(f"no reference Docker Engine: {reason}")
            yield None
            return
        self.progress.say("starting a Docker Engine of our own and importing the image")
        engine = docker_engine(self.workplace.directory / "docker", self.workplace.layer_paths())
        try:
            running = engine.__enter__()
        except ExternalCommandError as error:
            self.note(f"no reference Docker Engine: {error.brief}: {error.detail}")
            yield None
            return
        try:
            yield running
        finally:
            engine.__exit__(None, None, None)


def run_directory(node: Node) -> Path:
    """Return where a node that runs as root keeps its bundles."""
    return Path("/run/dsec") / node.node_id
