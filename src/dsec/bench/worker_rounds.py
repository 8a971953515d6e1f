"""Rounds with text like that of real work: what a program reads is programs, here the standard library's own."""

from __future__ import annotations

import functools
import inspect
import json.decoder
import random
import textwrap
import typing

from dsec.episode.content import Content
from dsec.episode.identity import ModelIdentity, operation_id
from dsec.episode.operations import Effect, ModelDecision, Operation, RoundRecord, TokenUsage
from dsec.episode.tools import CommandOutput, Run

_COMMAND = "sed -n 1,80p program.py"


@functools.cache
def _sources() -> str:
    modules = (typing, inspect, json.decoder, textwrap, random)
    return "".join(inspect.getsource(module) for module in modules)


def result_text(seed: int, size: int) -> str:
    """Return so many characters from somewhere in the sources."""
    text = _sources()
    start = random.Random(seed).randrange(len(text) - size)
    return text[start : start + size]


def worker_round(episode_id: str, number: int, size: int) -> RoundRecord:
    """Return a round of one command, as an agent's loop records it."""
    operation = Operation(
        operation_id=operation_id(episode_id, number=number, decision=1, call=0),
        call=Run(script=_COMMAND),
        effect=Effect.WORKSPACE,
    )
    answer = json.dumps([{"name": "shell", "arguments": json.dumps({"command": _COMMAND})}])
    return RoundRecord(
        number=number,
        decision=ModelDecision(
            operations=(operation,),
            message="I look at the next part.",
            answer=Content(text=answer),
            model=ModelIdentity(name="bench", version="bench-1"),
            usage=TokenUsage(input_tokens=19_000, cached_tokens=18_000, output_tokens=60),
        ),
        results=(CommandOutput(exit_code=0, stdout=Content(text=result_text(number * 7919, size))),),
        attempts=(1,),
        workspace_before=f"{episode_id}.r{number - 1}",
        workspace_after=f"{episode_id}.r{number}",
        decide_s=9.0,
        tools_s=1.0,
    )
