"""Who is served least."""

from __future__ import annotations

import pytest

from dsec.base.errors import InvalidRequestError, NotFoundError
from dsec.scheduling.fairness import DominantResource, Progress, next_project
from dsec.scheduling.projects import Project, ProjectLedger, ProjectTree

CAPACITY = {"cpu": 9, "memory": 18}


def ledger(*projects: Project) -> ProjectLedger:
    return ProjectLedger(ProjectTree(projects))


def fill(
    book: ProjectLedger, demands: dict[str, dict[str, int]], measure: object, capacity: dict[str, int]
) -> dict[str, int]:
    """Serve the least served until nothing fits, as a scheduler with endless queues would."""
    served = dict.fromkeys(demands, 0)
    waiting = set(demands)
    free = dict(capacity)
    while waiting:
        project, _ = next_project(measure, book, capacity, waiting)  # type: ignore[arg-type, misc]
        if any(amount > free[name] for name, amount in demands[project].items()):
            waiting.discard(project)
            continue
        free = {name: free[name] - demands[project].get(name, 0) for name in free}
        book.charge(project, demands[project])
        served[project] += 1
    return served


def test_dominant_shares_are_made_equal_as_in_the_paper():
    """The example of Ghodsi et al.: 9 CPUs and 18 GB; tasks of <1 CPU, 4 GB> and <3 CPU, 1 GB> end as 3 and 2."""
    book = ledger(Project(name="a"), Project(name="b"))
    assert fill(book, {"a": {"cpu": 1, "memory": 4}, "b": {"cpu": 3, "memory": 1}}, DominantResource(), CAPACITY) == {
        "a": 3,
        "b": 2,
    }


def test_weights_scale_the_share_that_is_due():
    book = ledger(Project(name="a", weight=2.0), Project(name="b"))
    served = fill(book, {"a": {"cpu": 1}, "b": {"cpu": 1}}, DominantResource(), {"cpu": 30})
    assert served == {"a": 20, "b": 10}


def test_a_leaf_does_not_starve_because_its_sibling_uses_another_resource():
    """Bhattacharya et al.: without scaling, n2's CPU makes its parent look served, and n2.2 gets nothing."""
    book = ledger(
        Project(name="n1"), Project(name="n2"), Project(name="n2.1", parent="n2"), Project(name="n2.2", parent="n2")
    )
    demands = {"n1": {"cpu": 1, "gpu": 1}, "n2.1": {"cpu": 1}, "n2.2": {"gpu": 1}}
    served = fill(book, demands, DominantResource(), {"cpu": 10, "gpu": 10})
    assert served["n2.2"] >= 4
    assert served["n1"] >= 4


def test_progress_counts_what_an_accelerator_does_not_how_many_there_are():
    """A slow card does half the work: two projects end with equal work, not with equal counts."""
    book = ledger(Project(name="fast"), Project(name="slow"))
    speeds = {"fast": {"h100": 2.0}, "slow": {"a100": 1.0}}
    capacity = {"h100": 30, "a100": 30}
    book.charge("fast", {"h100": 10})
    book.charge("slow", {"a100": 10})
    shares = Progress(speeds).shares(book, capacity, {"fast", "slow"})
    assert shares == {"fast": 10 / 30, "slow": 10 / 30}
    mixed = Progress({"": {"h100": 2.0, "a100": 1.0}}).shares(book, capacity, {"fast", "slow"})
    assert mixed["fast"] == 2 * mixed["slow"]
    assert next_project(Progress({"": {"h100": 2.0, "a100": 1.0}}), book, capacity, {"fast", "slow"})[0] == "slow"  # type: ignore[index]


def test_progress_on_nothing_there_is_is_refused():
    book = ledger(Project(name="a"))
    with pytest.raises(InvalidRequestError, match="gets no work done"):
        Progress({"a": {"tpu": 1.0}}).shares(book, {"h100": 1}, {"a"})


def test_nobody_waits_means_nobody_is_next():
    assert next_project(DominantResource(), ledger(Project(name="a")), CAPACITY, set()) is None


@pytest.mark.parametrize(
    ("projects", "message"),
    [
        ([Project(name="a"), Project(name="a")], "named twice"),
        ([Project(name="a", parent="b")], "which is not there"),
        ([Project(name="a", parent="b"), Project(name="b", parent="a")], "each other's parents"),
        ([Project(name="a", parent="a")], "each other's parents"),
        ([Project(name="a", weight=0.0)], "above 0"),
        ([Project(name="a", weight=float("nan"))], "above 0"),
        ([Project(name="a", quota={"cpu": -1})], "cpu is -1"),
    ],
)
def test_a_tree_that_is_none_is_refused(projects, message):
    with pytest.raises(InvalidRequestError, match=message):
        ProjectTree(projects)


def test_an_unknown_project_is_named_with_those_that_are_known():
    with pytest.raises(NotFoundError, match="'c'") as caught:
        ProjectTree([Project(name="a")])["c"]
    assert "known: a" in caught.value.detail


def test_quotas_are_checked_from_the_top_down():
    book = ledger(Project(name="lab", quota={"cpu": 4}), Project(name="team", parent="lab", quota={"cpu": 3, "gpu": 1}))
    book.charge("team", {"cpu": 2, "gpu": 1})
    assert book.refusal("team", {"cpu": 1}) is None
    assert book.refusal("team", {"cpu": 3}).project == "lab"  # type: ignore[union-attr]
    assert book.refusal("team", {"cpu": 2}).project == "team"  # type: ignore[union-attr]
    assert book.refusal("team", {"gpu": 1}).missing == {"gpu": 1}  # type: ignore[union-attr]
    book.release("team", {"cpu": 2, "gpu": 1})
    assert book.refusal("team", {"cpu": 3, "gpu": 1}) is None
