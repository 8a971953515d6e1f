"""The loop that the planner is measured against computes the same."""

from __future__ import annotations

import pytest

from dsec.bench import plan
from dsec.planner.document import parse_document
from dsec.planner.workload_plan import decide
from dsec.planner.workload_reading import read_workload


@pytest.mark.parametrize("goal", ["90 %", "80 %", "60 %"])
def test_a_plain_loop_finds_what_the_table_finds(goal: str) -> None:
    text = plan._WORKLOAD.replace('"90 %"', f'"{goal}"').replace('"1..42"', '"8..20"').replace('"1..10"', '"1..3"')
    workload = read_workload(parse_document(text, name="bench").root())
    cheapest, chosen = plan.plain_loop(workload), decide(workload, brief=True).chosen
    assert cheapest is not None
    assert chosen is not None
    assert cheapest.name == chosen.best.name
    assert 1000 * cheapest.usd == pytest.approx(chosen.best.usd_per_thousand)
