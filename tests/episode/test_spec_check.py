"""A spec that a worker keeps is what was asked for, and lets others be listed beside it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from dsec.base.errors import InvalidRequestError
from dsec.episode.spec import (
    AgentPolicy,
    EpisodeGrade,
    EpisodeLimits,
    EpisodeSpec,
    ModelEndpoint,
    PluginPolicy,
    ScriptPolicy,
    ScriptRound,
)
from dsec.episode.spec_check import (
    MAXIMUM_METADATA_BYTES,
    MAXIMUM_NAME_BYTES,
    MAXIMUM_SPEC_BYTES,
    check_spec_values,
)
from dsec.episode.tools import Run

SPEC = EpisodeSpec(task="t", policy=ScriptPolicy(rounds=(ScriptRound(calls=(Run(script="make"),)),)))


def test_what_can_be_kept_is_taken() -> None:
    check_spec_values(SPEC)
    check_spec_values(replace(SPEC, task="x" * MAXIMUM_NAME_BYTES, seed=-(1 << 63), limits=EpisodeLimits(deadline_s=1)))
    check_spec_values(replace(SPEC, policy=PluginPolicy(name="p", options={"a": [1, {"b": None}], "c": 0.5})))
    check_spec_values(replace(SPEC, policy=ScriptPolicy(rounds=[ScriptRound()])))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"task": ""},
        {"task": "\ud800"},
        {"task": "é" * MAXIMUM_NAME_BYTES},
        {"job": "x" * (MAXIMUM_NAME_BYTES + 1)},
        {"attempt": 1 << 64},
        {"seed": -(1 << 70)},
        {"limits": EpisodeLimits(deadline_s=math.nan)},
        {"limits": EpisodeLimits(cost_usd=math.inf)},
        {"metadata": {"a": "x" * MAXIMUM_METADATA_BYTES}},
        {"instruction": "x" * MAXIMUM_SPEC_BYTES},
        {"policy": AgentPolicy(model=ModelEndpoint(url="u", answer_s=math.inf))},
        {"policy": PluginPolicy(name="p", options={"a": object()})},
    ],
)
def test_what_would_be_another_one_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        check_spec_values(replace(SPEC, **fields))


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_is_a_number(reward: float) -> None:
    with pytest.raises(InvalidRequestError, match="reward"):
        EpisodeGrade(passed=True, reward=reward)
