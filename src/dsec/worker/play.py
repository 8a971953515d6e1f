"""Let a policy play its rounds in a sandbox."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Protocol

import anyio

from dsec.base.errors import CallerError, DsecError
from dsec.episode.round import Decision, Done, History, Round
from dsec.episode.tools import CommandOutput, ToolResult
from dsec.episode.trajectory import RoundCommitted, encode_event
from dsec.verification.stages import Stage
from dsec.worker.framed_log import FramedLog
from dsec.worker.policies.port import Policy
from dsec.worker.stages import Stopwatch
from dsec.worker.tasks.task import Task
from dsec.worker.toolbox import Toolbox

GRACE_S = 5.0
"""Seconds after the policy's time in which a command that was cut off by it is still reported, with its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEnd:
    """How the policy's part ended."""

    reason: str
    timed_out: bool = False


class Played(Protocol):
    """What is known of a try's rounds, whoever played them."""

    @property
    def round_count(self) -> int:
        """How many are committed."""

    def guest_s(self) -> float:
        """Seconds in which the policy's commands ran."""

    def last_output(self) -> str:
        """Return what the last command printed."""


class Play:
    """One try's rounds. Implements `Played`."""

    def __init__(self, policy: Policy, toolbox: Toolbox, task: Task, log: FramedLog, watch: Stopwatch) -> None:
        self._policy = policy
        self._toolbox = toolbox
        self._task = task
        self._log = log
        self._watch = watch
        self._deadline = anyio.current_time() + task.agent_timeout_s
        self._decide_s = 0.0
        self.rounds: tuple[Round, ...] = ()

    async def run(self, *, maximum_rounds: int) -> PolicyEnd:
        """Play until the policy is done, its time is over, or it has had all its rounds.

        Each round is on the disk before the next begins. A round that the time limit cuts off is not committed.

        Raises:
            DsecError: one that ends the attempt.
        """
        with anyio.move_on_at(self._deadline + GRACE_S):
            while len(self.rounds) < maximum_rounds:
                decision = await self._decide()
                if decision is None:
                    break
                if isinstance(decision, Done):
                    return PolicyEnd(reason=decision.reason)
                await self._carry_out(decision)
            else:
                return PolicyEnd(reason=f"stopped after {maximum_rounds} rounds")
        return PolicyEnd(reason=f"out of time after {self._task.agent_timeout_s:g} s", timed_out=True)

    def _remaining_s(self) -> float:
        return self._deadline - anyio.current_time()

    async def _decide(self) -> Decision | Done | None:
        """Return what the policy wants, None when its time was over first."""
        remaining_s = self._remaining_s()
        if remaining_s <= 0:
            return None
        history = History(instruction=self._task.instruction, rounds=self.rounds, remaining_s=remaining_s)
        decision: Decision | Done | None = None
        began = self._watch.elapsed_s()
        with self._watch.stage(Stage.DECIDE), anyio.move_on_at(self._deadline):
            try:
                decision = await self._policy.next_round(history)
            except DsecError:
                raise
            except Exception as error:  # Policies are foreign code: what they raise ends their attempt, not the run.
                raise CallerError(
                    f"the policy raised {type(error).__name__}: {error}",
                    detail="".join(traceback.format_exception(error)[-3:]),
                    resolution="mend the policy; the attempt says nothing about the task",
                ) from error
        self._decide_s = round(self._watch.elapsed_s() - began, 6)
        return decision

    async def _carry_out(self, decision: Decision) -> None:
        began = self._watch.elapsed_s()
        results: list[ToolResult] = []
        with self._watch.stage(Stage.TOOLS):
            for call in decision.calls:
                results.append(await self._toolbox.call(call, remaining_s=max(0.001, self._remaining_s())))
        played = Round(
            index=len(self.rounds),
            decision=decision,
            results=tuple(results),
            decide_s=self._decide_s,
            tools_s=round(self._watch.elapsed_s() - began, 6),
        )
        with self._watch.stage(Stage.RECORD):
            await self._log.append(encode_event(RoundCommitted(round=played)))
        self.rounds = (*self.rounds, played)

    @property
    def round_count(self) -> int:
        """How many rounds are committed."""
        return len(self.rounds)

    def guest_s(self) -> float:
        """Seconds in which the policy's commands ran."""
        outputs = (result for played in self.rounds for result in played.results)
        return sum(output.duration_s for output in outputs if isinstance(output, CommandOutput))

    def last_output(self) -> str:
        """Return what the last command printed."""
        for played in reversed(self.rounds):
            for result in reversed(played.results):
                if isinstance(result, CommandOutput):
                    return result.stdout.shown() + result.stderr.shown()
        return ""
