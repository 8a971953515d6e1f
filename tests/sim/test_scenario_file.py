"""A scenario file is read strictly: what is wrong is said with its line, its unit and what was expected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import DsecError, InvalidRequestError, NotFoundError
from dsec.sim.fleet.scenario import FleetScenario
from dsec.sim.rounds import RoundsScenario
from dsec.sim.scenario_file import parse_scenario, read_scenario

FLEET = """model = "fleet"
duration = "10 s"

[[nodes]]
count = 4
memory = "16 GiB"

[[workloads]]
lifetime = { kind = "lognormal", median = "17.4 min", p99 = "3 h" }
arrivals = { kind = "poisson", rate = "5000 /s" }
"""


def refusal(text: str) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        parse_scenario("x", text, where="x.toml")
    return str(caught.value)


def test_units_become_seconds_bytes_and_rates() -> None:
    base = parse_scenario("x", FLEET).base
    assert isinstance(base, FleetScenario)
    assert base.nodes[0].memory_bytes == 16 << 30
    assert base.workloads[0].arrivals.rate_per_s == 5000
    assert base.workloads[0].lifetime_s.p99 == 3 * 3600


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"10 s"', "10", r"x\.toml:2: duration is 10\n.*a number and a unit, such as \"10 s\""),
        ('"10 s"', '"10 GiB"', r"x\.toml:2: duration is '10 GiB'\n.*units: us, ms, s, min, h, d"),
        ('"10 s"', '"-10 s"', r"x\.toml:2: duration is '-10 s'"),
        ('"10 s"', '"0 s"', r"x\.toml:2: duration is wrong: Expected `float` > 0"),
        ('"16 GiB"', '"16 s"', r"x\.toml:6: nodes\[0\]\.memory is '16 s'\n.*GiB"),
        ("count = 4", "count = 0", r"x\.toml:5: nodes\[0\]\.count is wrong: Expected `int` >= 1"),
        ("count = 4", 'count = "four"', r"x\.toml:5: nodes\[0\]\.count is wrong: Expected `int`, got `str`"),
        ("count = 4", "count = 4\ncuont = 5", r"x\.toml:6: nodes\[0\]\.cuont is not known\n.*did you mean `count`"),
        ('"5000 /s"', '"5000"', r"x\.toml:10: workloads\[0\]\.arrivals\.rate is '5000'\n.*\"5000 /s\""),
        ('"poisson"', '"poison"', r"x\.toml:10: workloads\[0\]\.arrivals\.kind is wrong: Invalid enum value 'poison'"),
        ('"3 h"', '"3 min"', r"x\.toml:9: workloads\[0\]\.lifetime is wrong: lognormal needs 0 < `median` < `p99`"),
        ('"fleet"', '"flea"', r"x\.toml:1: model is 'flea'\n.*\"rounds\", \"fleet\", \"levels\""),
        ('model = "fleet"', "", r"x\.toml: model is missing"),
        ("[[nodes]]", "[[nodes]", r"x\.toml:4: not TOML"),
        ("count = 4", "count = 4\ncount = 5", r"x\.toml:6: not TOML"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_with_its_line(old: str, new: str, said: str) -> None:
    assert re.search(said, refusal(FLEET.replace(old, new)), re.DOTALL)


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ('[[failures]]\nat = "1 s"\nkind = "node"\nwhich = 4\n', "there is no node 4: they are numbered 0 to 3"),
        ('[bursting]\nabove_share = "80 %"\n', "`bursting` needs a group of nodes with `cloud = true`"),
        ("[scheduling.placement]\nchoices = 0\n", "choices is 0"),
        ('[[cases]]\nname = "a"\nset = { "nodes.7.count" = 1 }\n', "nodes.7.count"),
        ('[[cases]]\nname = "a"\nset = { "nodes.0.count" = 0 }\n', "case 'a': x.toml:5: nodes[0].count is wrong"),
        ('[[cases]]\nname = "a"\n[[cases]]\nname = "a"\n', "x.toml:14: cases[1] is the second case named 'a'"),
    ],
)
def test_what_cannot_be_is_refused(added: str, said: str) -> None:
    assert said in refusal(FLEET + "\n" + added)


@pytest.mark.parametrize("model", ["fleet", "rounds", "levels"])
def test_a_warm_up_as_long_as_the_run_is_refused(model: str) -> None:
    arrivals = 'arrivals = { kind = "uniform", rate = "1 /s" }\n'
    text = FLEET if model == "fleet" else f'model = "{model}"\nduration = "10 s"\n{arrivals}'
    said = refusal(text.replace('duration = "10 s"', 'duration = "10 s"\nwarmup = "10 s"'))
    assert "`warmup` must be shorter than `duration`" in said


def test_a_sandbox_larger_than_every_node_is_refused() -> None:
    assert "has more memory than any node" in refusal(FLEET + 'memory = "32 GiB"\n')


def test_a_case_changes_what_it_names_and_nothing_else() -> None:
    file = parse_scenario("x", FLEET + '[[cases]]\nname = "two"\nset = { "nodes.0.count" = 2, "seed" = 9 }\n')
    (case, scenario), base = file.cases[0], file.base
    assert isinstance(scenario, FleetScenario)
    assert isinstance(base, FleetScenario)
    assert case.name == "two"
    assert (scenario.nodes[0].count, scenario.seed) == (2, 9)
    assert scenario.workloads == base.workloads


def test_an_unknown_case_is_named_with_those_there_are() -> None:
    file = parse_scenario("x", FLEET + '[[cases]]\nname = "two"\n')
    with pytest.raises(NotFoundError, match="'three'"):
        file.only(("three",))


def test_a_key_that_would_be_another_fields_name_keeps_its_unit() -> None:
    text = 'model = "rounds"\nenvironment = "per_round"\nenvironment_bytes = "1 GiB"\n'
    text += 'arrivals = { kind = "uniform", rate = "1 /s" }\n'
    base = parse_scenario("x", text).base
    assert isinstance(base, RoundsScenario)
    assert (base.environment, base.environment_bytes) == ("per_round", 1 << 30)


def test_a_missing_file_and_one_that_is_no_text_are_errors(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="cannot be read"):
        read_scenario(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequestError, match="not UTF-8"):
        read_scenario(tmp_path / "binary.toml")


@given(st.text(max_size=200))
def test_any_text_is_a_scenario_or_a_typed_error(text: str) -> None:
    try:
        parse_scenario("x", text)
    except DsecError:
        pass


@given(st.text(alphabet='abcdenotsrmlw[]{}="\n .0123456789/', max_size=60), st.integers(0, len(FLEET)))
def test_a_scenario_with_something_thrown_in_is_one_or_a_typed_error(noise: str, place: int) -> None:
    try:
        parse_scenario("x", FLEET[:place] + noise + FLEET[place:])
    except DsecError:
        pass
