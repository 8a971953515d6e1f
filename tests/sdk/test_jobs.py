"""Jobs through the SDK: progress is heard, the report is returned."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from dsec import Client, JobInfo, JobReport, NodeUnavailableError
from dsec.model.state import JobAction, JobEvent, JobProgress
from dsec.node.state.service import State

REPORT = JobReport(job="rl", action=JobAction.PAUSE, changed=("sbx-a", "sbx-b"), released_bytes=1 << 30)


def answering(events: Sequence[JobEvent], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, JobAction]]:
    """Let every node answer with these events; return what it is asked."""
    asked: list[tuple[str, JobAction]] = []

    @asynccontextmanager
    async def change_job(_: State, job: str, action: JobAction, **__: object) -> AsyncIterator[AsyncIterator[JobEvent]]:
        async def told() -> AsyncIterator[JobEvent]:
            for event in events:
                yield event

        asked.append((job, action))
        yield told()

    monkeypatch.setattr(State, "change_job", change_job)
    return asked


def test_an_action_on_a_job_tells_how_far_it_is_and_how_it_ended(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = [JobProgress(done=done, total=2) for done in range(3)]
    asked = answering([*progress, REPORT], monkeypatch)
    heard: list[JobProgress] = []
    with Client(server_url) as client:
        assert client.pause_job("rl", on_progress=heard.append) == REPORT
        assert client.resume_job("rl") == REPORT
    assert heard == progress
    assert asked == [("rl", JobAction.PAUSE), ("rl", JobAction.RESUME)]


def test_a_job_whose_outcome_was_not_told_is_no_success(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answering([JobProgress(done=0, total=1)], monkeypatch)
    with Client(server_url) as client, pytest.raises(NodeUnavailableError, match="rl"):
        client.pause_job("rl")


def test_jobs_are_listed(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [JobInfo(job="rl", sandboxes={"ready": ("sbx-a",)}, memory_bytes=5)]

    async def list_jobs(_: State) -> Sequence[JobInfo]:
        return jobs

    monkeypatch.setattr(State, "list_jobs", list_jobs)
    with Client(server_url) as client:
        assert client.jobs() == jobs
