"""Thinking budgets for services that are told a word instead of a number.

The words are ordered; a budget lowers the word that was asked for and never raises it. How many tokens a word stands
for differs by service: the bounds here are what a budget has to allow for a word to be let through.
"""

from __future__ import annotations

_ORDER = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_USUAL = "medium"
_NEEDS = ((16_384, "max"), (8_192, "high"), (4_096, "medium"), (1_024, "low"), (1, "minimal"))


def allowed_effort(asked: str | None, tokens: int) -> str:
    """Return the word for a call that may think so many tokens.

    Args:
        asked: the caller's word; None: what the service usually does.
        tokens: what is allowed.
    """
    most = next((word for needed, word in _NEEDS if tokens >= needed), "none")
    word = asked or _USUAL
    if word not in _ORDER:
        return most
    return min(word, most, key=_ORDER.index)
