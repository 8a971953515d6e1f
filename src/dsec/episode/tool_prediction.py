"""Which tool comes next: from the tools so far, and from what the model has begun to write.

A model that edits mostly tests next. Transitions are counted between the tools of rounds that follow each other, older
ones of the same episode and, where there are any, of others of its task. A count of one for each tool that was ever
seen keeps the unseen possible (Laplace). A name that the model has written in this answer is no guess any more.

An environment for a tool is the sandbox with what makes it ready for that tool (`EpisodeEnvironment.preparations`). One
that was made ready for another tool than the one that comes is given up; one that was not made ready for any serves
every tool that needs no more than files and a shell.

Source: the chapter, section 11.2.4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dsec.episode.agent_calls import AgentCall, EditFile, OutsideCall, ReadLines, Search, Submit, UnusableCall
from dsec.episode.operations import Effect, ModelDecision, RoundRecord
from dsec.episode.tools import ReadFile, Run

NOTHING = "nothing"
"""Stands for a round whose calls needed no sandbox, such as the last one."""
CHECKED = "submit"
"""A submission whose check runs in the sandbox."""
WITHOUT_SANDBOX = frozenset({"submit", NOTHING})
START = ""
"""What came before the first round."""


def tool_of(call: AgentCall) -> str:
    """Return the tool that makes such a call, by the name that a model writes; `NOTHING` if it needs no sandbox."""
    match call:
        case Submit() | UnusableCall() | OutsideCall():
            return NOTHING
        case Run():
            return "shell"
        case ReadLines() | ReadFile():
            return "read"
        case Search():
            return "search"
        case EditFile():
            return "edit"
        case _:
            return "files"


def tools_of(decision: ModelDecision) -> tuple[str, ...]:
    """Return the tools of a decision that need a sandbox, in the order of their calls, each once.

    A submission needs one where it is checked; then it is an operation on the workspace.
    """
    names = (
        CHECKED
        if isinstance(operation.call, Submit) and operation.effect is Effect.WORKSPACE
        else tool_of(operation.call)
        for operation in decision.operations
    )
    return tuple(dict.fromkeys(name for name in names if name != NOTHING))


@dataclass(frozen=True, slots=True)
class Guess:
    """What is expected of the next call.

    Attributes:
        preparation: the command that makes a sandbox ready for it; empty: none is needed beside the sandbox.
        probability: that the sandbox so prepared is what the call needs.
        tool: the likeliest tool.
        reason: in words.
    """

    preparation: str
    probability: float
    tool: str
    reason: str


class ToolTransitions:
    """Counts which tool follows which.

    Args:
        preparations: command that makes a sandbox ready, by the tool that needs it.
    """

    def __init__(self, preparations: Mapping[str, str]) -> None:
        self._preparations = dict(preparations)
        self._counts: dict[str, Counter[str]] = {}
        self._last = START

    @property
    def last(self) -> str:
        """The last tool of the newest round; `NOTHING` if it used none."""
        return self._last

    def preparations_for(self, tools: Iterable[str]) -> tuple[str, ...]:
        """Return the commands that make a sandbox ready for some tools, each once."""
        found = (self._preparations.get(tool, "") for tool in tools)
        return tuple(dict.fromkeys(command for command in found if command))

    def add(self, decision: ModelDecision) -> None:
        """Take in the next round."""
        tools = tools_of(decision) or (NOTHING,)
        self._counts.setdefault(self._last, Counter())[tools[0]] += 1
        self._last = tools[-1]

    def add_all(self, rounds: Sequence[RoundRecord]) -> None:
        """Take in recorded rounds."""
        for record in rounds:
            self.add(record.decision)

    def probabilities(self) -> dict[str, float]:
        """Return how probable each tool is as the first of the next round."""
        following = self._counts.get(self._last, Counter())
        known = {tool for counts in self._counts.values() for tool in counts} | {"shell", NOTHING}
        total = sum(following.values()) + len(known)
        return {tool: (following[tool] + 1) / total for tool in sorted(known)}

    def guess(self) -> Guess:
        """Return which preparation had best be made now, before anything of the next call is known."""
        by_preparation: dict[str, float] = {"": 0.0}
        tools: dict[str, tuple[float, str]] = {}
        for tool, probability in self.probabilities().items():
            if tool == NOTHING:
                continue
            command = self._preparations.get(tool, "")
            by_preparation[command] = by_preparation.get(command, 0.0) + probability
            tools[command] = max(tools.get(command, (0.0, "")), (probability, tool))
        command, probability = max(by_preparation.items(), key=lambda item: (item[1], item[0]))
        # What needs no preparation is served by a sandbox with one, too.
        served = probability + (by_preparation[""] if command else 0.0)
        tool = tools[command][1]
        after = f"after {self._last}" if self._last else "at the beginning"
        return Guess(command, min(served, 1.0), tool, f"{tool} is the likeliest {after} ({probability:.0%})")

    def heard(self, tool: str) -> Guess | None:
        """Return what a tool needs whose name the model has just written; None: no sandbox.

        A name that no tool bears is answered without a sandbox; but it may be that of a tool that others have added,
        so that a sandbox is expected to be needed.
        """
        if tool in WITHOUT_SANDBOX:
            return None
        return Guess(self._preparations.get(tool, ""), 1.0, tool, f"the model has begun to call {tool}")
