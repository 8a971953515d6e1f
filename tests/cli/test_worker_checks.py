"""`dsec doctor` asks the worker of episodes."""

from __future__ import annotations

import fcntl
from pathlib import Path

from dsec.cli.worker_checks import worker_check
from dsec.sdk.background import WORKER


def test_no_worker_is_nothing_to_worry_about(tmp_path: Path) -> None:
    check = worker_check(tmp_path)
    finding = check.probe()
    assert (finding.present, finding.seen) == (False, "none runs")
    assert "dsec episode" in check.resolution


def test_a_worker_that_does_not_answer_is_told_with_its_log(tmp_path: Path) -> None:
    with (tmp_path / WORKER.lock).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        finding = worker_check(tmp_path).probe()
    assert (finding.present, finding.seen) == (False, "runs, and does not answer")
    assert WORKER.log in finding.resolution
