"""What the episodes of a worker share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from dsec.base.clock import Clock
from dsec.base.errors import DsecError, PlatformError
from dsec.base.units import KIB, MIB
from dsec.episode.operations import RoundRecord
from dsec.episode.spec import EpisodeSpec
from dsec.service.port import SandboxService
from dsec.service.state import StateService
from dsec.stores.episode_log_disk import Disk
from dsec.stores.episode_log_group import DEFAULT_THREADS, GroupCommit
from dsec.stores.episode_log_lease import DEFAULT_LEASE_S as STORE_LEASE_S
from dsec.stores.episode_log_place import DEFAULT_SEGMENT_BYTES
from dsec.stores.episode_log_tenure import DEFAULT_LEASE_S
from dsec.stores.episode_log_upload import UploadSettings
from dsec.stores.objects import ObjectStore
from dsec.worker.episodes.ports import EnvironmentFactory, HandsFactory, PolicyFactory, RecoveryStrategy
from dsec.worker.episodes.shelf import Shelf


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How a worker works.

    Attributes:
        at_once: loops that run at once; other episodes are queued.
        episodes: that have not ended; more are refused.
        threads: that wait for the disk.
        lease_s: how long another writer on this host waits for one that stands still.
        store_lease_s: how long another worker waits for one whose store does not answer; see `episode_log_lease`.
        backoff_s: waits before an episode that a failure of the platform stopped is tried again; then it stays stopped.
        openings_at_once: logs that are read at the same time; what memory that takes the process keeps.
        sandboxes_at_once: that are found or made, paused or resumed at the same time; a node bears so many.
        uploads_at_once: puts to the store under way, of all episodes together.
        upload: how a log is copied.
        upload_wait_s: how long an ended episode, or the end of the worker, waits for the copy.
        announce_s: how long an operation that must not run twice waits until the store has its announcement.
        state_bytes: a log that has grown so much since its last whole state is given one, once all of it is uploaded.
        steering_bytes: of one thing that an episode is told.
        segment_bytes: of a log.
        dear_s: operations on files that took so long are saved inside their round; see `LoopLimits`.
    """

    at_once: int = 1000
    episodes: int = 10_000
    threads: int = DEFAULT_THREADS
    lease_s: float = DEFAULT_LEASE_S
    store_lease_s: float = STORE_LEASE_S
    backoff_s: Sequence[float] = (1.0, 5.0, 25.0)
    openings_at_once: int = 2
    sandboxes_at_once: int = 32
    uploads_at_once: int = 16
    upload: UploadSettings = field(default_factory=UploadSettings)
    upload_wait_s: float = 10.0
    announce_s: float = 60.0
    state_bytes: int = 8 * MIB
    steering_bytes: int = 64 * KIB
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    dear_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """What the episodes of a worker share.

    Attributes:
        shelf: the directory.
        worker_id: who writes, for people and leases.
        service, state: where sandboxes are.
        store: where logs are copied; None: nowhere.
        group: saves logs.
        tasks: in which everything of the worker runs.
        loops: a place for each loop that may run.
        openings: for whoever reads a log.
        sandboxes: for whoever asks much of a node at once.
        uploads: shared by all uploaders.
        settings: how it works.
        clock: tells times.
        disk: where logs are.
        environments, policies, hands: see `dsec.worker.episodes.ports`.
        strategy: returns who decides what to do when an episode does not go well.
        recorded: reads the rounds of an episode.
    """

    shelf: Shelf
    worker_id: str
    service: SandboxService
    state: StateService
    store: ObjectStore | None
    group: GroupCommit
    tasks: TaskGroup
    loops: anyio.CapacityLimiter
    openings: anyio.CapacityLimiter
    sandboxes: anyio.CapacityLimiter
    uploads: anyio.CapacityLimiter
    settings: WorkerSettings
    clock: Clock
    disk: Disk
    environments: EnvironmentFactory
    policies: PolicyFactory
    hands: HandsFactory
    strategy: Callable[[EpisodeSpec], RecoveryStrategy]
    recorded: Callable[[str], Awaitable[Sequence[RoundRecord]]]

    async def beside(self, run: Callable[[], Awaitable[None]], told: Callable[[DsecError], None]) -> None:
        """Run something beside a loop; whatever comes of it ends neither the worker nor another episode.

        Args:
            run: what is run.
            told: hears how it failed.
        """
        try:
            await run()
        except DsecError as error:
            told(error)
        except Exception as error:  # noqa: BLE001 - a supervisor: one episode must not end the worker's others.
            told(unthought_of(run, error))


def unthought_of(what: object, error: Exception) -> PlatformError:
    """Return our error for one that nobody thought of."""
    name = getattr(what, "__qualname__", str(what))
    return PlatformError(
        f"{name} failed in a way that was not thought of",
        detail=f"{type(error).__name__}: {error}",
        resolution="this is a mistake of ours; resume the episode to try again",
    )
