"""The conformance suite of `StateService`: what holds of saved state for every node, and for every way to it.

Use it by inheriting in a test module and overriding the `service` fixture, as with `dsec.testing.service_suite`. Only
operations that every node with checkpoints has are here; what a node lacks has to be said (`CapabilityMissingError`).
"""

from __future__ import annotations

import pytest

from dsec.base.errors import (
    AlreadyExistsError,
    CapabilityMissingError,
    InvalidRequestError,
    LimitExceededError,
    NotFoundError,
    PathNotFoundError,
    SandboxNotFoundError,
    SnapshotNotFoundError,
)
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.model.state import (
    CheckpointRequest,
    ForkRequest,
    JobAction,
    JobProgress,
    JobReport,
    MigrationRequest,
    PackRequest,
    RestoreRequest,
    ScrubRules,
    SnapshotRequest,
)
from dsec.sdk.state import state_of
from dsec.service.port import SandboxService
from dsec.service.state import StateService

_FILE = "/tmp/step"


class StateSuite:
    """Tests that every `StateService` passes.

    Attributes:
        image: what sandboxes are made from.
    """

    pytestmark = pytest.mark.anyio
    image = "python"

    @pytest.fixture
    async def service(self) -> SandboxService:
        raise NotImplementedError

    @pytest.fixture
    def state(self, service: SandboxService) -> StateService:
        return state_of(service)

    @pytest.fixture
    async def box(self, service: SandboxService) -> str:
        spec = SandboxSpec(image=self.image, seed=7, env={"A": "parent", "B": "parent"}, metadata={"task": "fix-42"})
        return (await service.create(spec)).sandbox_id

    async def _write(self, service: SandboxService, box: str, content: bytes) -> None:
        await service.write_file(box, _FILE, content)

    async def _read(self, service: SandboxService, box: str) -> bytes:
        return await self._content(service, box, _FILE)

    # -- checkpoints --------------------------------------------------------------------------------------------

    async def test_a_rollback_leads_to_what_was_saved_by_id_and_by_name(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        await self._write(service, box, b"one")
        point = await state.checkpoint(box, CheckpointRequest(name="snap-001"))
        for generation, name in enumerate((point.checkpoint_id, "snap-001"), 1):
            await self._write(service, box, b"two")
            assert (await service.rollback(box, snapshot=name)).generation == generation
            assert await self._read(service, box) == b"one"

    async def test_checkpoints_form_a_tree_from_which_one_can_be_taken(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        a = (await state.checkpoint(box)).checkpoint_id
        b = (await state.checkpoint(box)).checkpoint_id
        await service.rollback(box, snapshot=a)
        c = (await state.checkpoint(box)).checkpoint_id
        listed = await state.list_checkpoints(box)
        assert [(each.checkpoint_id, each.parent) for each in listed] == [(a, None), (b, a), (c, a)]
        assert [each.is_current for each in listed] == [False, False, True]
        await state.remove_checkpoint(box, a)
        await state.remove_checkpoint(box, a)
        assert [each.parent for each in await state.list_checkpoints(box)] == [None, None]

    async def test_a_name_is_given_once_in_a_sandbox(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        await state.checkpoint(box, CheckpointRequest(name="mine"))
        with pytest.raises(AlreadyExistsError):
            await state.checkpoint(box, CheckpointRequest(name="mine"))
        assert len(await state.list_checkpoints(box)) == 1
        other = (await service.create(SandboxSpec(image=self.image))).sandbox_id
        await state.checkpoint(other, CheckpointRequest(name="mine"))

    async def test_a_checkpoint_of_another_sandbox_is_none_of_ones_own(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        point = await state.checkpoint(box)
        other = (await service.create(SandboxSpec(image=self.image))).sandbox_id
        with pytest.raises(SnapshotNotFoundError):
            await service.rollback(other, snapshot=point.checkpoint_id)
        with pytest.raises(SnapshotNotFoundError):
            await state.fork(other, ForkRequest(checkpoint=point.checkpoint_id))

    async def test_a_paused_sandbox_is_saved_as_it_stands(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        await service.pause(box)
        await state.checkpoint(box)
        assert (await service.inspect(box)).state is SandboxState.PAUSED

    async def test_what_is_not_there_is_said(self, state: StateService, box: str) -> None:
        with pytest.raises(SandboxNotFoundError):
            await state.checkpoint("sbx-nobody")
        with pytest.raises(SandboxNotFoundError):
            await state.fork("sbx-nobody")
        with pytest.raises(SnapshotNotFoundError):
            await state.fork(box, ForkRequest(checkpoint="nothing"))

    # -- forks --------------------------------------------------------------------------------------------------

    async def test_a_child_has_its_parents_files_and_writes_its_own(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        await self._write(service, box, b"one")
        first, second = [child.sandbox_id for child in await state.fork(box, ForkRequest(count=2))]
        await self._write(service, first, b"mine")
        assert await self._read(service, box) == b"one"
        assert await self._read(service, second) == b"one"
        await service.rollback(first)
        assert await self._read(service, first) == b"one"

    async def test_a_child_begins_at_the_checkpoint_that_was_named(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        await self._write(service, box, b"one")
        await state.checkpoint(box, CheckpointRequest(name="one"))
        await self._write(service, box, b"two")
        (child,) = await state.fork(box, ForkRequest(checkpoint="one"))
        assert await self._read(service, child.sandbox_id) == b"one"
        assert await self._read(service, box) == b"two"

    async def test_children_have_an_identity_of_their_own(self, state: StateService, box: str) -> None:
        request = ForkRequest(count=3, env={"B": "child"}, metadata={"branch": "x"})
        children = await state.fork(box, request)
        assert all(child.parent == box and child.state is SandboxState.READY for child in children)
        assert len({child.sandbox_id for child in children}) == 3
        assert len({child.spec.seed for child in children} | {7}) == 4
        assert all(child.spec.env == {"A": "parent", "B": "child"} for child in children)
        assert all(child.spec.metadata == {"task": "fix-42", "branch": "x"} for child in children)

    async def test_a_child_outlives_its_parent(self, service: SandboxService, state: StateService, box: str) -> None:
        await self._write(service, box, b"one")
        (child,) = await state.fork(box)
        await service.remove(box)
        await self._write(service, child.sandbox_id, b"two")
        await service.rollback(child.sandbox_id)
        assert await self._read(service, child.sandbox_id) == b"one"

    async def test_asking_again_with_ids_makes_no_more(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        request = ForkRequest(count=2, sandbox_ids=("sbx-one", "sbx-two"))
        first, again = await state.fork(box, request), await state.fork(box, request)
        assert [each.sandbox_id for each in first] == [each.sandbox_id for each in again] == ["sbx-one", "sbx-two"]
        assert len(await service.list()) == 3

    @pytest.mark.parametrize(
        ("request_", "error"),
        [
            (ForkRequest(count=0), InvalidRequestError),
            (ForkRequest(count=10**9), LimitExceededError),
            (ForkRequest(count=2, seeds=(1,)), InvalidRequestError),
            (ForkRequest(count=2, sandbox_ids=("sbx-one", "sbx-one")), InvalidRequestError),
        ],
        ids=["none", "too many", "seeds missing", "one id twice"],
    )
    async def test_a_fork_that_cannot_be_makes_nothing(
        self,
        service: SandboxService,
        state: StateService,
        box: str,
        request_: ForkRequest,
        error: type[Exception],
    ) -> None:
        with pytest.raises(error):
            await state.fork(box, request_)
        assert [info.sandbox_id for info in await service.list()] == [box]

    # -- snapshots ----------------------------------------------------------------------------------------------

    async def test_a_snapshot_outlives_its_sandbox_and_is_restored_by_id_and_by_name(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        await self._write(service, box, b"one")
        info = await state.snapshot(box, SnapshotRequest(name="step-1", metadata={"score": "0.5"}))
        assert (info.sandbox_id, info.image, info.name, info.parent) == (box, self.image, "step-1", None)
        assert info.files > 0
        assert info.content_bytes > 0
        await service.remove(box)
        assert [each.snapshot_id for each in await state.list_snapshots()] == [info.snapshot_id]
        for reference in (info.snapshot_id, "step-1"):
            restored = await state.restore(reference)
            assert restored.snapshot == info.snapshot_id
            assert await self._read(service, restored.sandbox_id) == b"one"

    async def test_the_next_snapshot_is_a_difference_and_holds_everything(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        await self._write(service, box, b"one")
        first = await state.snapshot(box)
        await service.write_file(box, "/tmp/other", b"two")
        second = await state.snapshot(box)
        assert (second.parent, second.depth, second.files) == (first.snapshot_id, 1, first.files + 1)
        restored = (await state.restore(second.snapshot_id)).sandbox_id
        assert await self._read(service, restored) == b"one"
        assert await self._content(service, restored, "/tmp/other") == b"two"
        third = await state.snapshot(restored)
        assert (third.parent, third.sandbox_id) == (second.snapshot_id, restored)

    async def test_a_checkpoint_becomes_a_snapshot_as_it_was(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        await self._write(service, box, b"one")
        await state.checkpoint(box, CheckpointRequest(name="one"))
        await self._write(service, box, b"two")
        info = await state.snapshot(box, SnapshotRequest(checkpoint="one"))
        assert [each.name for each in await state.list_checkpoints(box)] == ["one"]
        restored = (await state.restore(info.snapshot_id)).sandbox_id
        assert await self._read(service, restored) == b"one"
        with pytest.raises(SnapshotNotFoundError):
            await state.snapshot(box, SnapshotRequest(checkpoint="nothing"))

    async def test_snapshots_leave_one_checkpoint_behind(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        await state.checkpoint(box, CheckpointRequest(name="mine"))
        for step in range(3):
            await self._write(service, box, b"%d" % step)
            await state.snapshot(box)
        assert [each.name for each in await state.list_checkpoints(box)] == ["mine", ""]

    async def test_a_restored_sandbox_is_one_of_its_own(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        await self._write(service, box, b"one")
        info = await state.snapshot(box)
        restored = await state.restore(info.snapshot_id, RestoreRequest(env={"B": "mine"}, metadata={"x": "y"}))
        assert restored.sandbox_id != box
        assert restored.spec.hostname == restored.sandbox_id
        assert (restored.spec.env, restored.spec.seed) == ({"A": "parent", "B": "mine"}, 7)
        assert restored.spec.metadata == {"task": "fix-42", "x": "y"}
        assert (await state.restore(info.snapshot_id, RestoreRequest(seed=9))).spec.seed == 9
        await self._write(service, restored.sandbox_id, b"two")
        assert await self._read(service, box) == b"one"
        await service.rollback(restored.sandbox_id)
        assert await self._read(service, restored.sandbox_id) == b"one"

    async def test_restoring_again_with_an_id_makes_no_more(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        info = await state.snapshot(box, SnapshotRequest(name="mine"))
        request = RestoreRequest(sandbox_id="sbx-one", env={"B": "mine"})
        first = await state.restore("mine", request)
        await state.snapshot(box, SnapshotRequest(name="mine"))
        for reference in ("mine", info.snapshot_id):
            assert (await state.restore(reference, request)).created_at_s == first.created_at_s
        assert len(await service.list()) == 2
        other = await state.snapshot(box)
        for reference, again in (
            (other.snapshot_id, request),
            (info.snapshot_id, RestoreRequest(sandbox_id="sbx-one", seed=1)),
            (info.snapshot_id, RestoreRequest(sandbox_id=box)),
        ):
            with pytest.raises(AlreadyExistsError):
                await state.restore(reference, again)

    async def test_of_several_snapshots_with_a_name_the_newest_is_meant(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        infos = []
        for content in (b"one", b"two"):
            await self._write(service, box, content)
            infos.append(await state.snapshot(box, SnapshotRequest(name="mine")))
        newest = (await state.list_snapshots())[-1]
        assert (await state.restore("mine")).snapshot == newest.snapshot_id
        await state.remove_snapshot("mine")
        left = [each.snapshot_id for each in await state.list_snapshots()]
        assert left == [each.snapshot_id for each in infos if each != newest]

    async def test_a_snapshot_upon_one_that_was_removed_stays_readable(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        await self._write(service, box, b"one")
        first = await state.snapshot(box)
        await service.write_file(box, "/tmp/other", b"two")
        second = await state.snapshot(box)
        await state.remove_snapshot(first.snapshot_id)
        await state.remove_snapshot(first.snapshot_id)
        with pytest.raises(SnapshotNotFoundError):
            await state.restore(first.snapshot_id)
        restored = (await state.restore(second.snapshot_id)).sandbox_id
        assert await self._read(service, restored) == b"one"
        third = await state.snapshot(box)
        await state.remove_snapshot(second.snapshot_id)
        restored = (await state.restore(third.snapshot_id)).sandbox_id
        assert await self._read(service, restored) == b"one"

    async def test_a_snapshot_or_restore_that_cannot_be_makes_nothing(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        with pytest.raises(SnapshotNotFoundError):
            await state.restore("nothing")
        with pytest.raises(SnapshotNotFoundError):
            await state.remove_snapshot("nothing")
        with pytest.raises(InvalidRequestError):
            await state.snapshot(box, SnapshotRequest(name="no name"))
        with pytest.raises(SandboxNotFoundError):
            await state.snapshot("sbx-nobody")
        info = await state.snapshot(box)
        for request in (RestoreRequest(timeout_s=0), RestoreRequest(env={"no name": ""})):
            with pytest.raises(InvalidRequestError):
                await state.restore(info.snapshot_id, request)
        assert [each.sandbox_id for each in await service.list()] == [box]
        assert len(await state.list_snapshots()) == 1

    # -- packs --------------------------------------------------------------------------------------------------

    async def test_a_pack_is_an_image_with_what_the_session_wrote_and_without_its_residue(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        await service.write_file(box, "/usr/bin/mine", b"one", user="root")
        await service.write_file(box, "/root/.bash_history", b"secret", user="root")
        await self._write(service, box, b"temporary")
        report = await state.pack(box, PackRequest(name="packed:v1"))
        assert "/root/.bash_history: histories" in report.removed
        assert await self._read(service, box) == b"temporary"
        other = (await service.create(SandboxSpec(image="packed:v1"))).sandbox_id
        assert await self._content(service, other, "/usr/bin/mine") == b"one"
        for path in ("/root/.bash_history", _FILE):
            with pytest.raises(PathNotFoundError):
                await service.stat_file(other, path, user="root")

    async def test_a_checkpoint_is_packed_as_it_was(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        await service.write_file(box, "/usr/bin/mine", b"one", user="root")
        await state.checkpoint(box, CheckpointRequest(name="one"))
        await service.write_file(box, "/usr/bin/mine", b"two", user="root")
        await state.pack(box, PackRequest(name="packed", checkpoint="one"))
        other = (await service.create(SandboxSpec(image="packed"))).sandbox_id
        assert await self._content(service, other, "/usr/bin/mine") == b"one"
        with pytest.raises(SnapshotNotFoundError):
            await state.pack(box, PackRequest(name="other", checkpoint="nothing"))

    async def test_a_dry_run_of_a_pack_makes_nothing_and_says_the_same(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        await service.write_file(box, "/root/.netrc", b"secret", user="root")
        before = [image.name for image in await service.images()]
        dry = await state.pack(box, PackRequest(name="packed", dry_run=True))
        assert [image.name for image in await service.images()] == before
        made = await state.pack(box, PackRequest(name="packed"))
        assert (dry.files, dry.removed) == (made.files, made.removed)
        assert (dry.name, dry.layer) == ("", "")

    async def test_a_pack_that_cannot_be_makes_nothing(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        before = [image.image_id for image in await service.images()]
        for request, error in (
            (PackRequest(name=self.image), AlreadyExistsError),
            (PackRequest(name="../x"), InvalidRequestError),
            (PackRequest(name="x", scrub=ScrubRules(remove=("!x",))), InvalidRequestError),
        ):
            with pytest.raises(error):
                await state.pack(box, request)
        assert [image.image_id for image in await service.images()] == before
        assert await state.list_checkpoints(box) == []

    async def _content(self, service: SandboxService, box: str, path: str) -> bytes:
        return b"".join([piece async for piece in service.read_file(box, path)])

    # -- comparisons --------------------------------------------------------------------------------------------

    async def test_a_fingerprint_says_in_words_what_is_not_clean(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        try:
            clean = await state.fingerprint(box)
        except CapabilityMissingError as error:
            pytest.skip(error.brief)
        assert (clean.is_clean, clean.differences) == (True, ())
        await service.start_process(box, CommandRequest(argv=("sleep", "1000"), timeout_s=None))
        dirty = await state.fingerprint(box)
        assert not dirty.is_clean
        assert dirty.differences
        assert dirty.expected == clean.expected

    # -- migration; what two nodes hold to is in `dsec.testing.migration_suite` ---------------------------------

    async def test_a_sandbox_moves_to_no_stranger_and_goes_on(
        self, service: SandboxService, state: StateService, box: str
    ) -> None:
        await self._write(service, box, b"one")
        for bad in (
            MigrationRequest(node="n0b0d"),
            MigrationRequest(node="http://127.0.0.1:1"),
            MigrationRequest(node="n0b0d", maximum_rounds=0),
            MigrationRequest(node="n0b0d", downtime_s=-1),
        ):
            with pytest.raises(InvalidRequestError):
                await state.migrate(box, bad)
        with pytest.raises(SandboxNotFoundError):
            await state.migrate("sbx-nobody", MigrationRequest(node="n0b0d"))
        assert await self._read(service, box) == b"one"

    # -- jobs ---------------------------------------------------------------------------------------------------

    async def test_a_job_is_paused_and_resumed_whole(self, service: SandboxService, state: StateService) -> None:
        spec = SandboxSpec(image=self.image, metadata={"job": "train/1"})
        mine = tuple(sorted([(await service.create(spec)).sandbox_id for _ in range(3)]))
        assert [info.job for info in await state.list_jobs()] == ["train/1"]
        for action, state_after in ((JobAction.PAUSE, SandboxState.PAUSED), (JobAction.RESUME, SandboxState.READY)):
            for changed, unchanged in ((mine, ()), ((), mine)):
                report = await self._change_job(state, "train/1", action)
                assert (report.changed, report.unchanged, report.failed) == (changed, unchanged, ())
                assert {info.state for info in await service.list()} == {state_after}
        assert (await service.run(mine[0], CommandRequest(argv=("true",)))).status.exit_code == 0
        with pytest.raises(NotFoundError):
            await self._change_job(state, "train/2", JobAction.PAUSE)

    async def _change_job(self, state: StateService, job: str, action: JobAction) -> JobReport:
        async with state.change_job(job, action) as events:
            heard = [event async for event in events]
        assert isinstance(heard[-1], JobReport)
        assert [event.done for event in heard[:-1] if isinstance(event, JobProgress)] == [0, 1, 2, 3]
        return heard[-1]
