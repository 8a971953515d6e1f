"""The affinity block is read as it is printed, and what is wrong with it is named."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.placement.affinity import AffinityMode, AffinityPolicy, GroupBy
from dsec.placement.affinity_config import affinity_from, parse_affinity

EXPECTED = AffinityPolicy(
    mode=AffinityMode.SOFT,
    group_by=GroupBy.TASK_ID,
    max_load_threshold=0.85,
    spillover_enabled=True,
    spillover_ratio=0.2,
)

BLOCK = """# affinity of sandboxes
affinity:
  mode: soft
  group_by: task_id
  max_load_threshold: 0.85   # share
  spillover_enabled: true
  spillover_ratio: 0.2
"""
FLOW = (
    "affinity: {mode: soft, group_by: task_id, max_load_threshold: 0.85, spillover_enabled: true, spillover_ratio: 0.2}"
)
TOML = """
[affinity]
mode = "soft"
group_by = "task_id"
max_load_threshold = 0.85
spillover_enabled = true
spillover_ratio = 0.2
"""


@pytest.mark.parametrize("text", [BLOCK, FLOW, TOML, "---\n" + BLOCK, BLOCK.replace("soft", "'soft'")])
def test_the_printed_block_is_read(text: str) -> None:
    assert parse_affinity(text) == EXPECTED


def test_missing_fields_keep_their_defaults() -> None:
    assert parse_affinity("affinity:\n  mode: off") == AffinityPolicy(mode=AffinityMode.OFF)
    assert parse_affinity("affinity: {}") == AffinityPolicy()
    assert parse_affinity("[affinity]\nspillover_ratio = 0\n") == AffinityPolicy(spillover_ratio=0.0)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("affinity: {mode: hard}", "affinity.mode is 'hard'"),
        ("affinity: {mode: Soft}", "affinity.mode is 'Soft'"),
        ("affinity: {group_by: image}", "affinity.group_by"),
        ("affinity: {max_load_threshold: 85}", "affinity.max_load_threshold is 85"),
        ("affinity: {max_load_threshold: 85%}", "affinity.max_load_threshold is '85%'"),
        ("affinity: {spillover_ratio: -0.1}", "affinity.spillover_ratio is -0.1"),
        ("affinity: {spillover_ratio: true}", "affinity.spillover_ratio is True"),
        ("affinity: {spillover_enabled: yes}", "affinity.spillover_enabled is 'yes'"),
        ("affinity: {spillover: 0.2}", "affinity.spillover is not known"),
        ("affinity:\n  mode: soft\n  mode: off", "line 3"),
        ("affinity:\n  mode: soft\n   group_by: task_id", "line 3"),
        ("affinity:\n  - soft", "line 2"),
        ("affinity:\n  mode: soft\nother: 1", "line 3"),
        ("afinity:\n  mode: soft", "line 1"),
        ("affinity: soft", "line 1"),
        ("[affinity\nmode = 1", ":1: not TOML"),
        ("[other]\nmode = 'soft'", "no table [affinity]"),
        ("affinity = 3", "no table [affinity]"),
        ("", "nothing in it"),
        ("# only words", "nothing in it"),
        ("affinity: {" + "x" * 70_000 + "}", "characters"),
    ],
)
def test_what_is_wrong_is_named_with_a_remedy(text: str, named: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_affinity(text, source="placement.yaml")
    assert caught.value.brief.startswith("placement.yaml")
    assert named in caught.value.brief
    assert caught.value.resolution


@pytest.mark.parametrize("text", [BLOCK.replace("0.2", "half"), TOML.replace("0.2", "'half'")])
def test_a_wrong_value_is_named_with_its_line(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_affinity(text, source="placement.yaml")
    assert caught.value.brief == "placement.yaml:7: affinity.spillover_ratio is 'half'"


def test_a_misspelt_field_is_shown_the_right_one() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        affinity_from({"spillover_ration": 0.2})
    assert "did you mean `spillover_ratio`?" in caught.value.resolution


@given(st.text(max_size=200) | st.text(max_size=80).map(lambda text: "affinity:\n  " + text))
def test_any_text_is_read_or_refused_by_a_typed_error(text: str) -> None:
    with suppress(InvalidRequestError):
        assert isinstance(parse_affinity(text), AffinityPolicy)
