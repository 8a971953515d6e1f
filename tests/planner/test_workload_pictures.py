"""What is drawn of a decision."""

from __future__ import annotations

from collections.abc import Callable

from dsec.planner.picture import Dots
from dsec.planner.workload import Workload
from dsec.planner.workload_pictures import workload_pictures
from dsec.planner.workload_plan import MOST_SHOWN, decide


def test_the_chosen_combination_and_every_policy_are_in_the_cloud_however_many_there_are(
    make_workload: Callable[..., Workload],
) -> None:
    kept = '[policy.akept]\nkind = "kept"\n[policy.rebuilt]'
    workload = make_workload(
        ('pattern = "uniform"', 'pattern = "poisson"'), ('share_in_time = "95 %"', 'share_in_time = "80 %"'),
        ("[policy.rebuilt]", kept), ("count = 1", 'count = "1..120"'), ("replicas = 12", 'replicas = "1..100"'),
    )  # fmt: skip
    decision = decide(workload, brief=True)
    assert decision.size.combinations > 2 * MOST_SHOWN
    assert decision.chosen is not None
    cloud = next(picture for picture in workload_pictures(decision) if isinstance(picture, Dots))
    roles = {label: role for _, _, label, role in cloud.points}
    assert roles[decision.chosen.best.name] == "chosen"
    assert all(roles[item.name] in ("front", "chosen") for item in decision.front)
    assert {label.split(".")[1] for label in roles} == {"akept", "rebuilt"}
