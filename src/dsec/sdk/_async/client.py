"""A connection to a server or a node, for more than one sandbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Unpack

from dsec.model.capability import CapabilityReport
from dsec.model.fleet import DrainProgress, DrainReport, DrainRequest, FleetInfo
from dsec.model.image import ImageInfo
from dsec.model.image_layers import Composition
from dsec.model.image_use import ImageUse
from dsec.model.image_work import (
    ImageProgress,
    ImagePublish,
    ImagePublished,
    ImagePull,
    ImagePulled,
    ImagePush,
    ImagePushed,
    ImageVerified,
    ImageVerify,
    ImageWorkInfo,
    PublishedImage,
    PushedImage,
)
from dsec.model.sandbox import SandboxFilter, SandboxInfo, SandboxSpec, SandboxState
from dsec.model.state import JobAction, JobInfo, JobProgress, JobReport, RestoreRequest, SnapshotInfo
from dsec.sdk._async.reported import report_of
from dsec.sdk._async.sandbox import AsyncSandbox
from dsec.sdk.keeping import Keeper, fleet_of, images_of, state_of
from dsec.sdk.values import SpecFields
from dsec.service.port import DEFAULT_CREATE_TIMEOUT_S, SandboxService

Drained = Callable[[DrainProgress], None]
"""What is called as a drain gets on."""
Progressed = Callable[[JobProgress], None]
"""What is called as an action on a job gets on."""
ImageProgressed = Callable[[ImageProgress], None]
"""What is called as work on an image gets on."""


class AsyncClient:
    """A connection, opened by its first use and closed by `aclose` or the end of its context.

    Args:
        url: of a server, such as ``http://host:8620`` or ``unix:/path/node.sock``; None: `DSEC_URL`, or else the node
            of this host.
        token: of that server; None: `DSEC_TOKEN`.
        state_dir: of the node of this host, where no URL is given.
    """

    def __init__(
        self, url: str | None = None, *, token: str | None = None, state_dir: str | Path | None = None
    ) -> None:
        self._keeper = Keeper(url=url, token=token, state_dir=state_dir)

    async def service(self) -> SandboxService:
        """Return the service underneath, which offers every operation."""
        return await self._keeper.service()

    async def create(
        self,
        image: str = "python",
        *,
        spec: SandboxSpec | None = None,
        sandbox_id: str | None = None,
        timeout_s: float = DEFAULT_CREATE_TIMEOUT_S,
        **fields: Unpack[SpecFields],
    ) -> AsyncSandbox:
        """Create a sandbox; see `AsyncSandbox.create`."""
        return await AsyncSandbox.create(
            image, spec=spec, sandbox_id=sandbox_id, timeout_s=timeout_s, service=await self.service(), **fields
        )

    async def connect(self, sandbox_id: str) -> AsyncSandbox:
        """Return the sandbox of this id."""
        return await AsyncSandbox.connect(sandbox_id, service=await self.service())

    async def list(
        self, *, metadata: dict[str, str] | None = None, states: Sequence[SandboxState] = ()
    ) -> list[SandboxInfo]:
        """List the sandboxes whose metadata contains all these pairs; without `states` all but stopped ones."""
        query = SandboxFilter(metadata=metadata or {}, states=tuple(states))
        return list(await (await self.service()).list(query))

    async def images(self) -> Sequence[ImageInfo]:
        """List the images."""
        return await (await self.service()).images()

    # -- images -------------------------------------------------------------------------------------------------

    async def pull_image(
        self,
        reference: str,
        *,
        name: str = "",
        eager: bool = False,
        store: str = "",
        on_progress: ImageProgressed | None = None,
    ) -> ImageInfo:
        """Make an image known on the node: at once, its chunks come when they are touched, unless `eager`.

        It goes on when the caller leaves; asked for again, it is joined, or found done. `cancel_image_work` ends it.

        Args:
            reference: ``HOST[:PORT]/REPOSITORY:TAG`` or ``@sha256:...`` of a registry, read with the node's
                credentials; or ``b3:...`` or a tag of an object store.
            name: of the image there; empty: as `dsec image pull` names it.
            eager: fetch all of it now.
            store: URL of the object store, as of `dsec image pull --store`; empty: the node's. Of folders, those that
                are stores of images already.
            on_progress: called as it gets on.

        Raises:
            InvalidRequestError: that is no reference, or of no image that can be had.
            ObjectNotFoundError: store or registry have not got it.
            UnauthorizedError, PermissionDeniedError: as the registry says to the node.
            StateCorruptedError, StoreUnavailableError, HostDiskFullError: see there.
            NodeUnavailableError: the node ended, or does too much; ask again.
            WorkCancelledError: somebody cancelled it.
        """
        request = ImagePull(reference=reference, name=name, eager=eager, store=store)
        work = images_of(await self.service()).pull(request)
        return (await report_of(f"pull of {reference}", work, ImagePulled, ImageProgress, on_progress)).image

    async def publish_image(
        self,
        image: str,
        *,
        tag: str = "",
        by_traces: bool = False,
        store: str = "",
        on_progress: ImageProgressed | None = None,
    ) -> PublishedImage:
        """Put an image of the node into an object store; its `reference` is what others pull it by. As `pull_image`.

        Args:
            image: its name.
            tag: what people may pull it by, too.
            by_traces: lay its layers out by its traces.
            store: as of `pull_image`.
            on_progress: called as it gets on.
        """
        request = ImagePublish(image=image, tag=tag, by_traces=by_traces, store=store)
        work = images_of(await self.service()).publish(request)
        return (await report_of(f"publication of {image}", work, ImagePublished, ImageProgress, on_progress)).image

    async def push_image(
        self, image: str, reference: str, *, by_traces: bool = False, on_progress: ImageProgressed | None = None
    ) -> PushedImage:
        """Put an image of the node into a registry, with the node's credentials. As `pull_image`.

        Args:
            image: its name.
            reference: ``HOST[:PORT]/REPOSITORY[:TAG]``.
            by_traces: lay its layers out by its traces.
            on_progress: called as it gets on.
        """
        request = ImagePush(image=image, reference=reference, by_traces=by_traces)
        work = images_of(await self.service()).push(request)
        return (await report_of(f"push of {image}", work, ImagePushed, ImageProgress, on_progress)).image

    async def verify_image(
        self, image: str, *, full: bool = False, repair: bool = False, on_progress: ImageProgressed | None = None
    ) -> ImageVerified:
        """Check an image of the node, and say what was found. As `pull_image`.

        Args:
            image: its name.
            full: read also every chunk that the origins of its layers have.
            repair: make good what can be.
            on_progress: called as it gets on.
        """
        request = ImageVerify(image=image, full=full, repair=repair)
        work = images_of(await self.service()).verify(request)
        return await report_of(f"verification of {image}", work, ImageVerified, ImageProgress, on_progress)

    async def image_work(self) -> Sequence[ImageWorkInfo]:
        """Say which pulls, publications, pushes and verifications go on or wait, whoever asked for them."""
        return await images_of(await self.service()).running()

    async def cancel_image_work(self, work: ImageWorkInfo | str) -> None:
        """End work on an image, for all who watch it; return when it has ended and what it had made is gone.

        Args:
            work: one of `image_work`, or its id.

        Raises:
            NotFoundError: nothing such goes on; it may be done.
        """
        work_id = work.work_id if isinstance(work, ImageWorkInfo) else work
        await images_of(await self.service()).cancel(work_id)

    async def image_layers(self, image: str, *, workspace: str = "", toolkits: Sequence[str] = ()) -> Composition:
        """Say what an image, or an environment of several, is made of."""
        return await images_of(await self.service()).layers(image, workspace, toolkits)

    async def image_statistics(self, image: str = "") -> Sequence[ImageUse]:
        """Say what of an image, or of all, is on the node, was read and came for nothing."""
        return await images_of(await self.service()).statistics(image)

    async def capabilities(self) -> Sequence[CapabilityReport]:
        """Say what the node can enforce."""
        return await (await self.service()).capabilities()

    # -- saved state --------------------------------------------------------------------------------------------

    async def restore(
        self,
        snapshot: SnapshotInfo | str,
        *,
        sandbox_id: str | None = None,
        seed: int | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout_s: float = RestoreRequest().timeout_s,
    ) -> AsyncSandbox:
        """Make a sandbox from a snapshot; see `AsyncSandbox.restore`."""
        service = await self.service()
        return await AsyncSandbox.restore(
            snapshot,
            sandbox_id=sandbox_id,
            seed=seed,
            env=env,
            metadata=metadata,
            timeout_s=timeout_s,
            service=service,
        )

    async def snapshots(self) -> Sequence[SnapshotInfo]:
        """List what the node's store holds, the oldest first."""
        return await state_of(await self.service()).list_snapshots()

    async def remove_snapshot(self, snapshot: SnapshotInfo | str) -> None:
        """Forget a snapshot; those made upon it stay readable."""
        wanted = snapshot.snapshot_id if isinstance(snapshot, SnapshotInfo) else snapshot
        await state_of(await self.service()).remove_snapshot(wanted)

    # -- jobs ---------------------------------------------------------------------------------------------------

    async def jobs(self) -> Sequence[JobInfo]:
        """List the jobs that live sandboxes name in their metadata (``job``)."""
        return await state_of(await self.service()).list_jobs()

    async def pause_job(
        self, job: str, *, keep_memory: bool = False, on_progress: Progressed | None = None
    ) -> JobReport:
        """Pause every sandbox of a job and say how that went; asking again does what is left.

        Args:
            job: its name.
            keep_memory: freeze only.
            on_progress: called as sandboxes are done.
        """
        return await self._change_job(job, JobAction.PAUSE, on_progress, keep_memory=keep_memory)

    async def resume_job(self, job: str, *, on_progress: Progressed | None = None) -> JobReport:
        """Resume every sandbox of a job; see `pause_job`."""
        return await self._change_job(job, JobAction.RESUME, on_progress)

    async def _change_job(
        self, job: str, action: JobAction, on_progress: Progressed | None, *, keep_memory: bool = False
    ) -> JobReport:
        work = state_of(await self.service()).change_job(job, action, keep_memory=keep_memory)
        return await report_of(f"job {job}", work, JobReport, JobProgress, on_progress)

    # -- the node among its peers --------------------------------------------------------------------------------

    async def fleet(self) -> FleetInfo:
        """Say how the node is, and how each of its peers."""
        return await fleet_of(await self.service()).look()

    async def drain(
        self, *to: str, at_once: int = DrainRequest().at_once, on_progress: Drained | None = None
    ) -> DrainReport:
        """Have the node take no more sandboxes and move all to peers; asking again does what is left.

        Args:
            to: ids or URLs of the peers that may take them; none: all.
            at_once: moves at a time.
            on_progress: called as sandboxes are done.
        """
        request = DrainRequest(to=to, at_once=at_once)
        work = fleet_of(await self.service()).drain(request)
        return await report_of("drain", work, DrainReport, DrainProgress, on_progress)

    async def undo_drain(self) -> None:
        """Have the node take sandboxes again; what moved stays where it is."""
        await fleet_of(await self.service()).undo_drain()

    async def aclose(self) -> None:
        """Close the connection. Sandboxes stay. Idempotent."""
        await self._keeper.aclose()

    async def __aenter__(self) -> AsyncClient:
        await self.service()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
