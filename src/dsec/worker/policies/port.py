"""The port of policies: what decides the rounds of an attempt.

A policy object belongs to one try and is made by a factory, so that it may keep state. `next_round` is called again and
again, each time with the whole history of the try, until it returns `Done` or its time is over; then it is cancelled.
What it raises ends the attempt as an infrastructure error: a broken policy says nothing about the task. It is never
called while its calls are being carried out, and it may not touch the sandbox by other ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from dsec.episode.round import Decision, Done, History
from dsec.episode.spec import PolicySpec
from dsec.worker.tasks.task import Task


class Policy(Protocol):
    """Decides what happens next in one try."""

    async def next_round(self, history: History) -> Decision | Done:
        """Return what to do after `history`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyContext:
    """What a policy is made for.

    Attributes:
        task: the task.
        attempt: number of the attempt, from 1.
        environ: the runner's environment variables.
    """

    task: Task
    attempt: int
    environ: Mapping[str, str]


PolicyFactory = Callable[[PolicyContext], Policy]


def _accept(task: Task) -> None:
    """Accept every task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySource:
    """A policy as named on the command line.

    Attributes:
        name: as named, such as ``script:fix.sh``.
        fingerprint: changes when what it does changes; a run is resumed only with the same.
        make: makes the policy of one try.
        check: raises `TaskFormatError` for a task that the policy cannot be used on.
        episode: says who decides the episode of an attempt; None: `make` is called, and no attempt is an episode.
    """

    name: str
    fingerprint: str
    make: PolicyFactory
    check: Callable[[Task], None] = _accept
    episode: Callable[[PolicyContext], PolicySpec] | None = None
