"""What a front reads of a call: the little that routing, limits and accounts need. The rest stays as it came."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dsec.gateway.config import Api

BYTES_PER_TOKEN = 4
"""Of text, on average; the gateway has no tokeniser, and corrects itself by what backends report."""
_ATTACHMENT_TOKENS = 1_500
_ATTACHMENT = re.compile(rb"[A-Za-z0-9+/=_-]{2048,}")
_Text = bytes
Members = dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One call as its caller sent it.

    Attributes:
        api: in which protocol.
        members: of the body, as JSON texts.
        model: what was asked for.
        streaming: whether the answer is wanted event by event.
        prompt: its parts in the order in which the model sees them.
        input_tokens: estimate of the whole prompt.
        input_bytes: length of the prompt.
        maximum_output_tokens: the caller's limit; None: none.
        thinking_asked: thinking tokens asked for; None: no number.
        wants_usage: whether a stream is to end with the usage.
        cacheable: whether the caller asks for its prefix to be kept.
        continues: id of an answer that a backend keeps and this call goes on from; empty: none.
    """

    api: Api
    members: Members
    model: str
    streaming: bool = False
    prompt: tuple[_Text, ...] = ()
    input_tokens: int = 0
    input_bytes: int = 0
    maximum_output_tokens: int | None = None
    thinking_asked: int | None = None
    wants_usage: bool = False
    cacheable: bool = False
    continues: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is different about the body that a backend gets.

    Attributes:
        model: its name there.
        maximum_output_tokens: a lower limit than the caller's; None: as it came.
        thinking_tokens: what is allowed; None: as it came.
        by_tokens: whether the backend is told a number of thinking tokens.
        by_effort: whether it is told a word.
    """

    model: str
    maximum_output_tokens: int | None = None
    thinking_tokens: int | None = None
    by_tokens: bool = False
    by_effort: bool = False


def estimate_tokens(parts: Iterable[_Text]) -> int:
    """Return about how many tokens a prompt has.

    Long runs without any space, such as pictures in base64, count as attachments and not by their length.
    """
    total = 0
    for part in parts:
        size = len(part)
        if size > 4096 and b"base64" in (text := bytes(part)):
            for match in _ATTACHMENT.finditer(text):
                size += _ATTACHMENT_TOKENS * BYTES_PER_TOKEN - (match.end() - match.start())
        total += size
    return -(-total // BYTES_PER_TOKEN)
