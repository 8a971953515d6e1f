"""The worker as it ships: every process that drives episodes puts it together here, so that all drive them alike."""

from __future__ import annotations

from pathlib import Path

from dsec.service.port import SandboxService
from dsec.service.state import StateService
from dsec.stores.objects import ObjectStore
from dsec.worker.episodes.parts import WorkerSettings
from dsec.worker.episodes.policies.registry import Policies
from dsec.worker.episodes.worker import EpisodeWorker
from dsec.worker.outside.registry import OutsideSystems


def standard_worker(
    directory: Path,
    service: SandboxService,
    state: StateService,
    store: ObjectStore | None = None,
    settings: WorkerSettings | None = None,
) -> EpisodeWorker:
    """Return a worker with all that ships: policies, tools, systems outside; to be entered.

    Args:
        directory: of the worker.
        service, state: where sandboxes are.
        store: where logs are copied; None: nowhere.
        settings: how it works.
    """
    outside = OutsideSystems()
    return EpisodeWorker(
        directory, service, state, store, settings, policies=Policies(tools=outside.tools), hands=outside.hands
    )
