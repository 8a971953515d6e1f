"""`dsec job`, against a node that is told what to say: data to stdout, progress and failures to stderr."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from dsec.base.errors import NodeUnavailableError, PlatformError
from dsec.model.state import JobAction, JobEvent, JobFailure, JobInfo, JobProgress, JobReport
from dsec.testing.command_line import Dsec


def answer(dsec: Dsec, monkeypatch: pytest.MonkeyPatch, events: Sequence[JobEvent]) -> None:
    @asynccontextmanager
    async def change_job(job: str, action: JobAction, **_: object) -> AsyncIterator[AsyncIterator[JobEvent]]:
        async def told() -> AsyncIterator[JobEvent]:
            for event in events:
                yield event

        yield told()

    monkeypatch.setattr(dsec.node.state, "change_job", change_job)


def test_a_pause_says_how_far_it_is_in_few_lines(dsec: Dsec, monkeypatch: pytest.MonkeyPatch) -> None:
    report = JobReport(job="rl", action=JobAction.PAUSE, changed=("sbx-a",) * 40, released_bytes=1 << 30)
    answer(dsec, monkeypatch, [*(JobProgress(done=done, total=40) for done in range(41)), report])
    result = dsec("job", "pause", "rl")
    assert (result.exit_code, result.stdout) == (0, "40 changed, 0 already so, 0 failed\n")
    assert result.stderr.splitlines()[9] == "40 of 40"
    assert "1.0 GiB of memory given back" in result.stderr
    assert dsec.json("job", "pause", "rl", "--json")["released_bytes"] == 1 << 30


def test_what_failed_is_named_and_is_no_success(dsec: Dsec, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = JobFailure(sandbox_id="sbx-a", code="swap_full", brief="no room in swap")
    answer(dsec, monkeypatch, [JobReport(job="rl", action=JobAction.PAUSE, changed=(), failed=(failure,))])
    result = dsec("job", "pause", "rl")
    assert result.exit_code == PlatformError.exit_code
    assert "sbx-a: swap_full: no room in swap" in result.stderr
    assert "--keep-memory" in result.stderr


def test_a_job_whose_outcome_was_not_told_is_no_success(dsec: Dsec, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(dsec, monkeypatch, [JobProgress(done=0, total=0)])
    assert dsec("job", "resume", "rl").exit_code == NodeUnavailableError.exit_code


def test_jobs_are_listed(dsec: Dsec, monkeypatch: pytest.MonkeyPatch) -> None:
    async def list_jobs() -> Sequence[JobInfo]:
        return [JobInfo(job="rl", sandboxes={"ready": ("sbx-a", "sbx-b"), "paused": ("sbx-c",)}, memory_bytes=1 << 20)]

    monkeypatch.setattr(dsec.node.state, "list_jobs", list_jobs)
    assert "1 paused, 2 ready" in dsec.ok("job", "ls")
    assert dsec.json("job", "ls", "--json")[0]["job"] == "rl"
