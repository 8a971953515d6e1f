"""Jobs: every sandbox of one paused and resumed as one operation."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import msgspec
import pytest

from dsec.base.errors import NotFoundError, RuntimeFailedError
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.model.state import JobAction, JobProgress, JobReport
from dsec.node.node import Node
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio
COUNT = 12


def _spec(job: str) -> SandboxSpec:
    return SandboxSpec(metadata={"job": job} if job else {})


async def _fill(node: Node, job: str, count: int = COUNT) -> list[str]:
    return [(await node.create(_spec(job))).sandbox_id for _ in range(count)]


async def _change(node: Node, job: str, action: JobAction) -> tuple[list[JobProgress], JobReport]:
    progress: list[JobProgress] = []
    async with node.state.change_job(job, action) as events:
        async for event in events:
            if isinstance(event, JobReport):
                return progress, event
            progress.append(event)
    raise AssertionError("no report came")


async def _states(node: Node) -> dict[str, SandboxState]:
    return {info.sandbox_id: info.state for info in await node.list()}


async def test_every_sandbox_of_a_job_is_paused_and_resumed_and_no_other() -> None:
    async with MemoryHost().node() as node:
        mine, others = await _fill(node, "train-1"), await _fill(node, "train-2", 2)
        progress, report = await _change(node, "train-1", JobAction.PAUSE)
        assert [each.done for each in progress] == list(range(COUNT + 1))
        assert {each.total for each in progress} == {COUNT}
        assert (report.changed, report.unchanged, report.failed) == (tuple(sorted(mine)), (), ())
        states = await _states(node)
        assert {states[name] for name in mine} == {SandboxState.PAUSED}
        assert {states[name] for name in others} == {SandboxState.READY}
        assert (await _change(node, "train-1", JobAction.RESUME))[1].changed == tuple(sorted(mine))
        assert set((await _states(node)).values()) == {SandboxState.READY}


async def test_asking_again_changes_nothing_and_says_so() -> None:
    async with MemoryHost().node() as node:
        mine = await _fill(node, "j", 3)
        await node.pause(mine[0])
        _, first = await _change(node, "j", JobAction.PAUSE)
        assert (first.changed, first.unchanged) == (tuple(sorted(mine[1:])), (mine[0],))
        _, again = await _change(node, "j", JobAction.PAUSE)
        assert (again.changed, again.unchanged) == ((), tuple(sorted(mine)))


async def test_what_fails_is_named_and_the_rest_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    async with MemoryHost().node() as node:
        mine = await _fill(node, "j", 4)
        instance = node._core.registry.find(mine[1]).running().instance

        async def refuse() -> None:
            raise RuntimeFailedError("the freezer is stuck")

        monkeypatch.setattr(instance, "pause", refuse)
        _, report = await _change(node, "j", JobAction.PAUSE)
        assert [(each.sandbox_id, each.code, each.brief) for each in report.failed] == [
            (mine[1], "runtime_failed", "the freezer is stuck")
        ]
        assert len(report.changed) == 3
        monkeypatch.undo()
        assert (await _change(node, "j", JobAction.PAUSE))[1].changed == (mine[1],)


async def test_an_action_goes_on_when_its_listener_leaves() -> None:
    async with MemoryHost().node() as node:
        mine = await _fill(node, "j")
        async with node.state.change_job("j", JobAction.PAUSE) as events:
            async for _ in events:
                break
        with anyio.fail_after(60):
            while set((await _states(node)).values()) != {SandboxState.PAUSED}:
                await anyio.lowlevel.checkpoint()
        assert len(mine) == COUNT


async def test_two_actions_on_a_job_take_turns() -> None:
    async with MemoryHost().node() as node:
        await _fill(node, "j")
        reports: dict[JobAction, JobReport] = {}

        async def change(action: JobAction) -> None:
            reports[action] = (await _change(node, "j", action))[1]

        async with node.state.change_job("j", JobAction.PAUSE), anyio.create_task_group() as group:
            group.start_soon(change, JobAction.RESUME)
        assert len(reports[JobAction.RESUME].changed) == COUNT
        assert set((await _states(node)).values()) == {SandboxState.READY}


async def test_what_ends_meanwhile_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async with MemoryHost().node() as node:
        mine = await _fill(node, "j", 2)
        sandbox = node._core.registry.find(mine[0])
        instance = sandbox.running().instance

        async def end() -> None:
            # Its owner stops it at this very moment: the pause fails, and that is nobody's fault.
            monkeypatch.setattr(sandbox, "record", msgspec.structs.replace(sandbox.record, state=SandboxState.STOPPED))
            sandbox.forgotten = True
            raise RuntimeFailedError("its init is gone")

        monkeypatch.setattr(instance, "pause", end)
        _, report = await _change(node, "j", JobAction.PAUSE)
        assert (report.ended, report.changed, report.failed) == ((mine[0],), (mine[1],), ())


@pytest.mark.parametrize("job", ["", "nobody"])
async def test_a_job_without_sandboxes_is_not_found(job: str) -> None:
    async with MemoryHost().node() as node:
        await _fill(node, "")
        with pytest.raises(NotFoundError, match="no live sandbox"):
            await _change(node, job, JobAction.PAUSE)


async def test_jobs_are_listed_by_name_with_their_sandboxes_by_state() -> None:
    async with MemoryHost().node() as node:
        first, second = await _fill(node, "b", 2), await _fill(node, "a", 1)
        await _fill(node, "", 1)
        await node.pause(first[0])
        await node.stop((await _fill(node, "b", 1))[0])
        jobs = await node.state.list_jobs()
        assert [job.job for job in jobs] == ["a", "b"]
        assert jobs[0].sandboxes == {"ready": (second[0],)}
        assert jobs[1].sandboxes == {"paused": (first[0],), "ready": (first[1],)}


async def test_a_request_to_a_sandbox_of_a_paused_job_resumes_it_alone() -> None:
    async with MemoryHost().node() as node:
        mine = await _fill(node, "j", 2)
        await _change(node, "j", JobAction.PAUSE)
        assert (await node.run(mine[0], CommandRequest(argv=("true",)))).status.exit_code == 0
        assert await _states(node) == {mine[0]: SandboxState.READY, mine[1]: SandboxState.PAUSED}
