"""The shipped scenarios can be read, and every number that they speak of exists."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dsec.base.errors import NotFoundError
from dsec.sim.numbers import number_of
from dsec.sim.pages import columns_of
from dsec.sim.result import Result
from dsec.sim.scenario_file import ScenarioFile
from dsec.sim.shipped import find_scenario, shipped_names

SMALLEST = {
    "rounds": 'model = "rounds"\nduration = "5 s"\narrivals = { kind = "uniform", rate = "1 /s" }\ntool = "1 s"\n',
    "levels": 'model = "levels"\nduration = "5 s"\narrivals = { kind = "uniform", rate = "1 /s" }\n',
    "distribution": 'model = "distribution"\nnodes = 4\nimage = "16 MiB"\n',
}


@pytest.mark.parametrize("name", shipped_names())
def test_numbers_and_series_of_a_shipped_scenario_exist(
    name: str, small_fleet: str, run_text: Callable[[str], Result]
) -> None:
    file = find_scenario(name)
    model = str(file.base.__struct_config__.tag)
    result = run_text({**SMALLEST, "fleet": small_fleet}[model])
    for number in [*columns_of(file), *(claim.value.of for claim in file.claims), *_drawn(file)]:
        number_of(result, number)
    for picture in file.pictures:
        if picture.kind == "lines":
            assert set(picture.values) <= set(result.series)
        assert set(picture.cases) <= {case.name for case, _ in file.cases}


def _drawn(file: ScenarioFile) -> list[str]:
    return [number for picture in file.pictures if picture.kind != "lines" for number in picture.values]


def test_every_scenario_that_was_promised_is_there() -> None:
    assert {
        "affinity", "bursting", "classes", "collapse", "herd", "job-32k", "losses", "million", "ready-level",
        "unit-day", "image-peers",
    } <= set(shipped_names())  # fmt: skip


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(NotFoundError) as caught:
        find_scenario("unit-week")
    assert "unit-day" in str(caught.value)
