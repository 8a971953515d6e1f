"""From evidence and errors to outcomes."""

from __future__ import annotations

import pytest

from dsec.base.errors import (
    CapabilityMissingError,
    CommandNotFoundError,
    DeadlineExceededError,
    DsecError,
    ImageNotFoundError,
    NodeUnavailableError,
    PathNotFoundError,
    SandboxDiskFullError,
    SandboxExitedError,
    SandboxNotFoundError,
    SandboxOutOfMemoryError,
    StateCorruptedError,
    UnknownOutcomeError,
)
from dsec.model.process import ExitStatus
from dsec.verification.faults import Phase, judge_error
from dsec.verification.judge import Evidence, judge
from dsec.verification.outcome import Outcome

ENDED = ExitStatus(exit_code=0)


def test_a_full_reward_passes() -> None:
    verdict = judge(Evidence(status=ENDED, reward_text=b"1"))
    assert (verdict.outcome, verdict.reward) == (Outcome.PASSED, 1.0)


def test_a_partial_reward_fails_and_is_kept() -> None:
    verdict = judge(Evidence(status=ENDED, reward_text=b"0.5"))
    assert (verdict.outcome, verdict.reward) == (Outcome.FAILED, 0.5)


def test_the_reward_decides_and_not_the_exit_code() -> None:
    verdict = judge(Evidence(status=ExitStatus(exit_code=3), reward_text=b"1"))
    assert verdict.outcome is Outcome.PASSED
    assert "exited with 3" in verdict.reason


def test_json_counts_before_text() -> None:
    assert judge(Evidence(status=ENDED, reward_json=b"0", reward_text=b"1")).outcome is Outcome.FAILED


def test_a_missing_reward_fails_and_says_how_the_tests_ended() -> None:
    verdict = judge(Evidence(status=ExitStatus(exit_code=137, signal=9, oom_killed=True)))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason == "the tests ran out of memory and wrote no reward"


def test_tests_that_do_not_end_time_out_whatever_they_wrote() -> None:
    status = ExitStatus(exit_code=137, signal=9, timed_out=True, duration_s=20.0)
    assert judge(Evidence(status=status, reward_text=b"1")).outcome is Outcome.TIMED_OUT


def test_a_policy_out_of_time_passes_when_its_work_was_enough() -> None:
    assert judge(Evidence(status=ENDED, reward_text=b"1", policy_timed_out=True)).outcome is Outcome.PASSED
    assert judge(Evidence(status=ENDED, reward_text=b"0", policy_timed_out=True)).outcome is Outcome.TIMED_OUT


INFRASTRUCTURE, FAILED, UNKNOWN = Outcome.INFRASTRUCTURE_ERROR, Outcome.FAILED, Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("error", "phase", "outcome", "retry"),
    [
        (NodeUnavailableError("x"), Phase.CREATE, INFRASTRUCTURE, True),
        (NodeUnavailableError("x"), Phase.POLICY, INFRASTRUCTURE, True),
        (NodeUnavailableError("x"), Phase.VERIFY, INFRASTRUCTURE, True),
        (StateCorruptedError("x"), Phase.POLICY, INFRASTRUCTURE, False),
        (ImageNotFoundError("x"), Phase.CREATE, INFRASTRUCTURE, False),
        (CapabilityMissingError("x"), Phase.CREATE, INFRASTRUCTURE, False),
        (SandboxOutOfMemoryError("x"), Phase.CREATE, INFRASTRUCTURE, False),
        (DeadlineExceededError("x"), Phase.CREATE, INFRASTRUCTURE, True),
        (DeadlineExceededError("x"), Phase.VERIFY, INFRASTRUCTURE, True),
        (DeadlineExceededError("x"), Phase.CLEAR, FAILED, False),
        (SandboxExitedError("x"), Phase.POLICY, FAILED, False),
        (SandboxNotFoundError("x"), Phase.POLICY, INFRASTRUCTURE, True),
        (SandboxDiskFullError("x"), Phase.VERIFY, FAILED, False),
        (PathNotFoundError("x"), Phase.VERIFY, FAILED, False),
        (CommandNotFoundError("x"), Phase.VERIFY, FAILED, False),
        (UnknownOutcomeError("x"), Phase.CREATE, INFRASTRUCTURE, True),
        (UnknownOutcomeError("x"), Phase.POLICY, UNKNOWN, False),
        (UnknownOutcomeError("x"), Phase.CLEAR, UNKNOWN, False),
        (UnknownOutcomeError("x"), Phase.VERIFY, UNKNOWN, False),
    ],
)
def test_whose_fault_an_error_is_depends_on_the_phase(
    error: DsecError, phase: Phase, outcome: Outcome, retry: bool
) -> None:
    judgement = judge_error(error, phase)
    assert (judgement.verdict.outcome, judgement.retry) == (outcome, retry)
    assert judgement.verdict.error_code == error.code
