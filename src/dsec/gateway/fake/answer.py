"""What a simulated backend says to a call: how much of what, in which words. Pure, and determined by seed and call.

A word is three letters and a space: one token of four bytes, which is what everything here counts in.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsec.gateway.fake.asked import FakeCall
from dsec.gateway.fake.prefix_store import TOKEN_BYTES, Found
from dsec.gateway.fake.settings import FakeSettings, Trouble

_WORDS = [f"{first}{vowel}{last} " for first in "bdfgklmnprst" for vowel in "aeiou" for last in "dgklmnprst"]
_LIE_TOKENS = -7
_OTHER_MODEL = "some-other-model"


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeAnswer:
    """One answer.

    Attributes:
        answer_id: unique to seed, call and how often it came.
        model: what it says it is from.
        created_s: since the epoch.
        thinking, visible: pieces, one for each event.
        tool: name and arguments of a tool that is called instead of an answer in words.
        by_length: whether a limit of length ended it.
        input_tokens: all of them.
        found: of those, what the cache had and got.
        thinking_tokens, visible_tokens: how many.
        reports: whether it says what it used.
        lies: whether what it says cannot be.
        wants_usage: whether a stream is to end with the usage.
    """

    answer_id: str
    model: str
    created_s: int
    thinking: tuple[str, ...]
    visible: tuple[str, ...]
    tool: tuple[str, str] | None
    by_length: bool
    input_tokens: int
    found: Found
    thinking_tokens: int
    visible_tokens: int
    reports: bool
    lies: bool
    wants_usage: bool

    @property
    def output_tokens(self) -> int:
        """All output; a lie where it lies."""
        return _LIE_TOKENS if self.lies else self.thinking_tokens + self.visible_tokens

    @property
    def text(self) -> str:
        """The visible words."""
        return "".join(self.visible)


def make_answer(
    settings: FakeSettings, call: FakeCall, found: Found, trouble: Trouble | None, *, repeat: int, now_wall_s: float
) -> FakeAnswer:
    """Return the answer.

    Args:
        settings: of the backend.
        call: what was asked.
        found: what the cache had.
        trouble: what goes wrong; None: nothing.
        repeat: how often the same call came before.
        now_wall_s: the present.
    """
    source = random.Random(b"%d %d " % (settings.seed, repeat) + call.fingerprint)
    thinking, visible = _lengths(settings, call)
    tool = None
    if call.tool is not None:
        tool = (call.tool[0], json.dumps(_arguments(call.tool[1], source)))
        visible = -(-(len(tool[0]) + len(tool[1])) // TOKEN_BYTES)
    allowed = max(0, call.limit_tokens - thinking) if call.limit_tokens is not None else visible
    # A tool's arguments are never cut in the middle: half of them would be no JSON.
    by_length = allowed < visible and tool is None
    visible = min(visible, allowed) if by_length else visible
    return FakeAnswer(
        answer_id=f"{source.getrandbits(64):016x}",
        model=_OTHER_MODEL if trouble is Trouble.OTHER_MODEL else call.model,
        created_s=int(now_wall_s),
        thinking=_pieces(source, thinking, settings.event_tokens),
        visible=() if tool is not None else _pieces(source, visible, settings.event_tokens),
        tool=tool,
        by_length=by_length,
        input_tokens=sum(part.tokens for part in call.parts),
        found=found,
        thinking_tokens=thinking,
        visible_tokens=visible,
        reports=trouble is not Trouble.NO_USAGE,
        lies=trouble is Trouble.LYING_USAGE,
        wants_usage=call.wants_usage,
    )


def _lengths(settings: FakeSettings, call: FakeCall) -> tuple[int, int]:
    thinking, visible = call.wish.thinking_tokens, call.wish.visible_tokens
    thinking = settings.thinking_tokens if thinking is None else thinking
    if call.thinking_limit_tokens is not None:
        thinking = min(thinking, call.thinking_limit_tokens)
    if call.limit_tokens is not None:
        thinking = min(thinking, call.limit_tokens)
    return thinking, settings.visible_tokens if visible is None else visible


def _pieces(source: random.Random, tokens: int, event_tokens: int) -> tuple[str, ...]:
    words = source.choices(_WORDS, k=tokens)
    return tuple("".join(words[at : at + event_tokens]) for at in range(0, tokens, event_tokens))


def _arguments(schema: Mapping[str, Any], source: random.Random) -> Any:
    """Return arguments that fit a schema's required members."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object" if "properties" in schema else None)
    if kind == "object" or kind is None:
        members = schema.get("properties") or {}
        return {name: _arguments(members.get(name) or {}, source) for name in schema.get("required") or ()}
    values = {"string": source.choice(_WORDS).strip(), "integer": 1, "number": 1.5, "boolean": True, "array": []}
    return values.get(kind)
