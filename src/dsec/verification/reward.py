"""Reading a reward file whose bytes a hostile guest may have chosen.

A task's tests write ``reward.txt`` (one number) or ``reward.json`` (a number, or an object of numbers by name).
Anything else is refused with a reason and never raises past `RewardError`: what is not a finite number of sensible size
is no reward.
"""

from __future__ import annotations

import json
import math
import re

from dsec.base.units import KIB

MAXIMUM_REWARD_BYTES = 64 * KIB
MAXIMUM_REWARDS = 64
MAXIMUM_MAGNITUDE = 1e9
"""No sane reward is larger; a sum over attempts stays exact and finite."""

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_MAXIMUM_NUMBER_LENGTH = 64


class RewardError(ValueError):
    """The file holds no reward; the message says why in a few words."""


def _checked(value: float, name: str) -> float:
    if not math.isfinite(value):
        raise RewardError(f"{name} is not a finite number")
    if value < 0:
        raise RewardError(f"{name} is negative ({value:g})")
    if value > MAXIMUM_MAGNITUDE:
        raise RewardError(f"{name} is larger than {MAXIMUM_MAGNITUDE:g}")
    return value


def _text(data: bytes) -> str:
    if len(data) > MAXIMUM_REWARD_BYTES:
        raise RewardError(f"the reward file is longer than {MAXIMUM_REWARD_BYTES} bytes")
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        raise RewardError("the reward file is not text") from None
    if not text:
        raise RewardError("the reward file is empty")
    return text


def parse_reward_text(data: bytes) -> dict[str, float]:
    """Return ``{"reward": number}`` from the bytes of ``reward.txt``.

    Raises:
        RewardError: it is not one finite number of at least 0.
    """
    text = _text(data)
    if len(text) > _MAXIMUM_NUMBER_LENGTH or not _NUMBER.fullmatch(text):
        raise RewardError(f"the reward file does not hold one number: {text[:40]!r}")
    return {"reward": _checked(float(text), "the reward")}


def _json_number(value: object, name: str) -> float:
    # A number of a thousand digits is an int in Python and overflows only when it becomes a float.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RewardError(f"{name} is not a number")
    try:
        return _checked(float(value), name)
    except OverflowError:
        raise RewardError(f"{name} is not a finite number") from None


def parse_reward_json(data: bytes) -> dict[str, float]:
    """Return the rewards by name from the bytes of ``reward.json``; a bare number is named ``reward``.

    Raises:
        RewardError: it is not a number or an object of 1 to 64 numbers, each finite and at least 0.
    """
    text = _text(data)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise RewardError("the reward file is not JSON") from None
    if not isinstance(document, dict):
        return {"reward": _json_number(document, "the reward")}
    if not 1 <= len(document) <= MAXIMUM_REWARDS:
        raise RewardError(f"the reward file holds {len(document)} rewards, not 1 to {MAXIMUM_REWARDS}")
    return {str(name)[:80]: _json_number(value, f"reward {str(name)[:80]!r}") for name, value in document.items()}


def deciding_reward(rewards: dict[str, float]) -> float:
    """Return the number that decides: the one named ``reward``; without it the lowest, so that all must pass."""
    return rewards.get("reward", min(rewards.values()))
