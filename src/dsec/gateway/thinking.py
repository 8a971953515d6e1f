"""How much a call may think: the least of what the model, the project, the key, the caller and its episode allow.

An episode's budget is what its calls share. A call that comes when nothing is left may not think at all. An answer
that was cut for its thinking is remembered, so that the same call made again is known as what the cut has caused.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from dsec.gateway.attempt import Attempt
from dsec.gateway.call import Call
from dsec.gateway.config import Project, Thinking
from dsec.gateway.ledger_record import Cut

_EPISODES = 65_536
_CUT_CALLS = 65_536


class ThinkingAllowance:
    """What is allowed, and what episodes have used. The oldest episodes are forgotten."""

    def __init__(self) -> None:
        self._used: dict[tuple[str, str], int] = {}
        self._cut: dict[tuple[str, str, bytes], str] = {}

    def prepare(self, call: Call, project: Project | None) -> None:
        """Set what a call may think, and whether it repeats one that was cut."""
        budgets = (call.model.thinking, call.key.thinking, project.thinking if project is not None else Thinking())
        per_call = _least(call.wishes.thinking_tokens, *(budget.tokens_per_call for budget in budgets))
        per_episode = _least(*(budget.tokens_per_episode for budget in budgets))
        left = None
        if per_episode is not None and call.wishes.episode:
            left = max(0, per_episode - self._used.get(_episode(call), 0))
        call.thinking_allowed = _least(per_call, left)
        if call.thinking_allowed is not None or self._cut:
            call.fingerprint = fingerprint(call.asked.prompt)
            call.repeats = self._cut.get((*_episode(call), call.fingerprint), "")

    def learn(self, call: Call, attempt: Attempt, *, cut: Cut | None = None) -> None:
        """Take in what an attempt has thought, and how it ended."""
        if attempt.ended is None:
            return
        if call.wishes.episode:
            self.book(call.key.project, call.wishes.episode, attempt.ended.usage.thinking.tokens)
        limited = cut is Cut.THINKING or (call.thinking_allowed is not None and attempt.watcher.seen.stopped_by_length)
        if limited:
            if len(self._cut) >= _CUT_CALLS:
                del self._cut[next(iter(self._cut))]
            self._cut[(*_episode(call), call.fingerprint)] = call.call_id

    def book(self, project: str, episode: str, tokens: int) -> None:
        """Add what an episode has thought."""
        place = (project, episode)
        used = self._used.pop(place, 0)
        if len(self._used) >= _EPISODES:
            del self._used[next(iter(self._used))]
        self._used[place] = used + tokens


def _episode(call: Call) -> tuple[str, str]:
    return call.key.project, call.wishes.episode


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def fingerprint(prompt: Iterable[bytes]) -> bytes:
    """Return what tells one prompt from another."""
    digest = blake2b(digest_size=16)
    for part in prompt:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()
