"""The verdict on an attempt, from what was seen of its tests.

::

    tests ran out of time                          → timed out
    no readable reward                             → failed, the reason says why
    reward ≥ threshold                             → passed (also after the policy ran out of time: what it had done
                                                     by then was enough; Harbor scores it the same way)
    reward < threshold, policy ran out of time     → timed out
    reward < threshold                             → failed

The tests' exit code alone decides nothing, because the format says that the reward file does; it is in the reason where
the two disagree.
"""

from __future__ import annotations

from dsec.model.process import ExitStatus
from dsec.model.value import Value
from dsec.verification.outcome import Outcome, Verdict
from dsec.verification.reward import RewardError, deciding_reward, parse_reward_json, parse_reward_text

PASS_THRESHOLD = 1.0


class Evidence(Value, frozen=True):
    """What was seen.

    Attributes:
        status: how the tests ended.
        reward_text: bytes of ``reward.txt``; None: there is none.
        reward_json: bytes of ``reward.json``; it counts before the text; None: there is none.
        reward_problem: why a reward file that exists was not read (a link, a FIFO); then nothing was.
        policy_timed_out: the policy was stopped by its time limit.
    """

    status: ExitStatus
    reward_text: bytes | None = None
    reward_json: bytes | None = None
    reward_problem: str = ""
    policy_timed_out: bool = False


def _how_it_ended(status: ExitStatus) -> str:
    if status.oom_killed:
        return "the tests ran out of memory"
    if status.signal is not None:
        return f"the tests were killed by signal {status.signal}"
    return f"the tests exited with {status.exit_code}"


def _rewards(evidence: Evidence) -> dict[str, float]:
    if evidence.reward_problem:
        raise RewardError(evidence.reward_problem)
    if evidence.reward_json is not None:
        return parse_reward_json(evidence.reward_json)
    if evidence.reward_text is not None:
        return parse_reward_text(evidence.reward_text)
    raise RewardError(f"{_how_it_ended(evidence.status)} and wrote no reward")


def judge(evidence: Evidence, *, threshold: float = PASS_THRESHOLD) -> Verdict:
    """Return the verdict; never raises, whatever the reward file holds."""
    if evidence.status.timed_out:
        return Verdict(
            outcome=Outcome.TIMED_OUT, reason=f"the tests did not end within {evidence.status.duration_s:.0f} s"
        )
    try:
        rewards = _rewards(evidence)
    except RewardError as error:
        return Verdict(outcome=Outcome.FAILED, reason=str(error))
    reward = deciding_reward(rewards)
    reason = f"reward {reward:g}"
    if reward >= threshold:
        outcome = Outcome.PASSED
        if evidence.status.exit_code != 0:
            reason += f", although {_how_it_ended(evidence.status)}"
        if evidence.policy_timed_out:
            reason += ", although the policy ran out of time"
    elif evidence.policy_timed_out:
        outcome, reason = Outcome.TIMED_OUT, f"the policy ran out of time; {reason}"
    else:
        outcome, reason = Outcome.FAILED, f"{reason}, below {threshold:g}"
    return Verdict(outcome=outcome, reason=reason, reward=reward, rewards=rewards)
