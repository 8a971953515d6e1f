"""The worker of a rollout's episodes: it lives inside the runner, and its directory in the rollout's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dsec.base.errors import CapabilityMissingError
from dsec.service.episodes import EpisodeService
from dsec.service.port import SandboxService
from dsec.service.state import HasState
from dsec.worker.episodes.standard import standard_worker


@asynccontextmanager
async def open_rollout_worker(directory: Path, service: SandboxService) -> AsyncIterator[EpisodeService]:
    """Open a worker; episodes that an earlier run left open go on at once.

    Args:
        directory: of the worker; only its owner may read it: specs hold what tasks give their sandboxes.
        service: drives the sandboxes.

    Raises:
        CapabilityMissingError: the service keeps no versions of a workspace.
        StateLockedError: another process has that worker.
    """
    if not isinstance(service, HasState):
        raise CapabilityMissingError(
            "this service makes no checkpoints, without which an episode cannot be gone on with",
            resolution="use a node with btrfs, or a policy that is no episode",
        )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with standard_worker(directory, service, service.state) as worker:
        yield worker
