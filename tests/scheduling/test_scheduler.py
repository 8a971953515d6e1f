"""Traces of the scheduler's decisions, and its safety under random work."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.scheduling.job import Job, Member, Node, Running
from dsec.scheduling.projects import Project
from dsec.scheduling.scheduler import ClusterState, Hold, Preempt, Rules, Start, Wait, decide


def kinds(decisions):
    return [(type(decision).__name__, decision.job_id) for decision in decisions]


def test_higher_priority_starts_first_whoever_came_first(cluster, job):
    one = cluster(4)
    one.submit(job("early", 4), job("late", 4, arrived_s=5.0, priority=1))
    assert kinds(one.step(10.0)) == [("Start", "late"), ("Wait", "early")]


def test_a_job_that_does_not_fit_is_passed_over(cluster, job):
    one = cluster(4)
    one.submit(job("running", 2))
    one.step(0.0)
    one.submit(job("large", 4), job("small", 2, arrived_s=1.0))
    large, small = one.step(2.0)
    assert isinstance(small, Start)
    assert isinstance(large, Wait)
    assert "lacks 2 cpu" in large.reason


def test_a_wait_says_that_fragments_are_not_enough(cluster, job):
    one = cluster(4, 4)
    one.submit(job("small", 3, members=2))
    one.step(0.0)
    one.submit(job("wide", 2))
    (wait,) = one.step(1.0)
    assert isinstance(wait, Wait)
    assert "not together on nodes" in wait.reason


def test_members_go_only_to_nodes_with_their_labels():
    nodes = (
        Node(node_id="a100", capacity={"gpu": 4, "cpu": 32}, labels=frozenset({"a100"})),
        Node(node_id="h100", capacity={"gpu": 4, "cpu": 8}, labels=frozenset({"h100"})),
    )
    member = Member(amounts={"gpu": 4, "cpu": 16}, labels=frozenset({"h100"}))
    job = Job(job_id="train", project="team", members=(member,), arrived_s=0.0)
    state = ClusterState(nodes=nodes, running=(), waiting=(job,), projects=_tree(Project(name="team")))
    (wait,) = decide(state, Rules(), now_s=1.0)
    assert isinstance(wait, Wait)
    assert "never will" in wait.reason


def test_the_least_served_project_goes_first(cluster, job):
    one = cluster(8, projects=[Project(name="red"), Project(name="blue")])
    one.submit(*(job(f"red-{n}", 2, project="red", arrived_s=n) for n in range(4)))
    one.step(4.0)
    one.submit(job("red-4", 1, project="red", arrived_s=5.0), job("blue-0", 1, project="blue", arrived_s=6.0))
    first, _ = one.step(7.0)
    assert first.job_id == "blue-0"


def test_headroom_is_lent_to_nobody_but_urgent_jobs(cluster, job):
    one = cluster(8, headroom={"cpu": 4}, urgent_priority=10)
    one.submit(job("batch", 5))
    (wait,) = one.step(1.0)
    assert "kept free for urgent work" in wait.reason
    one.submit(job("online", 8, priority=10, arrived_s=2.0))
    assert kinds(one.step(2.0)) == [("Start", "online"), ("Wait", "batch")]


def test_preemption_that_costs_more_than_it_gains_is_left(cluster, job):
    one = cluster(4)
    one.submit(job("old", 4, maximum_s=1000.0))
    one.step(0.0)
    one.submit(job("new", 4, priority=1, arrived_s=990.0))
    assert kinds(one.step(999.0)) == [("Wait", "new")], "one second is gained and 999 would be lost"


def test_preemption_that_pays_is_done_and_said(cluster, job):
    one = cluster(4)
    one.submit(job("old", 4, maximum_s=1000.0))
    one.step(0.0)
    one.submit(job("new", 4, priority=1, arrived_s=1.0))
    (decision,) = one.step(2.0)
    assert isinstance(decision, Preempt)
    assert "old (kill) give way to new" in decision.reason
    assert one.waiting.keys() == {"old"}


def test_urgent_jobs_preempt_whatever_it_costs(cluster, job):
    one = cluster(4, urgent_priority=10)
    one.submit(job("old", 4, maximum_s=1000.0))
    one.step(0.0)
    one.submit(job("online", 4, priority=10, arrived_s=998.0))
    assert kinds(one.step(999.0)) == [("Preempt", "online")]


def test_preemption_leaves_the_headroom_free(cluster, job):
    one = cluster(8, headroom={"cpu": 4}, urgent_priority=10)
    one.submit(job("old", 4, maximum_s=1000.0))
    one.step(0.0)
    one.submit(job("new", 5, priority=1, arrived_s=1.0))
    assert kinds(one.step(2.0)) == [("Wait", "new")]


def test_an_overdue_job_is_kept_room_that_later_jobs_leave_alone(cluster, job):
    one = cluster(4, maximum_wait_s=10.0)
    one.submit(job("running", 3, maximum_s=100.0))
    one.step(0.0)
    one.submit(job("large", 4, arrived_s=1.0, maximum_s=10.0))
    one.submit(job("long", 1, arrived_s=15.0, maximum_s=1000.0), job("short", 1, arrived_s=16.0, maximum_s=50.0))
    hold, long, short = one.step(20.0)
    assert isinstance(hold, Hold)
    assert hold.at_s == 100.0
    assert isinstance(long, Wait)
    assert "waited longer" in long.reason
    assert isinstance(short, Start), "it ends before the time for which the room is kept"
    assert kinds(one.step(100.0))[0] == ("Start", "large")


def test_a_job_that_started_overdue_is_not_preempted(cluster, job):
    one = cluster(4, maximum_wait_s=10.0, urgent_priority=10)
    one.submit(job("old", 4, maximum_s=1000.0))
    (start,) = one.step(20.0)
    assert start.protected
    one.submit(job("online", 4, priority=10, arrived_s=21.0))
    assert kinds(one.step(22.0)) == [("Wait", "online")]


def test_a_job_too_large_for_the_empty_cluster_is_told_so_and_holds_nothing_up(cluster, job):
    one = cluster(4, maximum_wait_s=10.0)
    one.submit(job("huge", 9), job("small", 1, arrived_s=15.0))
    huge, small = one.step(20.0)
    assert isinstance(huge, Wait)
    assert "never will" in huge.reason
    assert isinstance(small, Start)


def test_a_job_over_its_quota_names_the_level(cluster, job):
    projects = [Project(name="lab", quota={"cpu": 3}), Project(name="team", parent="lab")]
    one = cluster(8, projects=projects, maximum_wait_s=10.0)
    one.submit(job("over", 4), job("within", 3, arrived_s=15.0))
    over, within = one.step(20.0)
    assert over.reason.endswith("never will")
    assert isinstance(within, Start)
    one.submit(job("again", 1, arrived_s=16.0))
    _, again = one.step(21.0)
    assert again.reason == "project 'lab' is at its quota: 1 cpu too much"


def test_an_overdue_job_over_its_quota_holds_up_its_own_project_only(cluster, job):
    projects = [Project(name="lab", quota={"cpu": 4}), Project(name="other")]
    one = cluster(8, projects=projects, maximum_wait_s=10.0)
    one.submit(job("running", 3, project="lab", maximum_s=100.0))
    one.step(0.0)
    one.submit(job("large", 4, project="lab", arrived_s=1.0))
    one.submit(job("small", 1, project="lab", arrived_s=15.0, maximum_s=500.0))
    one.submit(job("elsewhere", 5, project="other", arrived_s=16.0, maximum_s=500.0))
    hold, small, elsewhere = sorted(one.step(20.0), key=lambda each: ["large", "small", "elsewhere"].index(each.job_id))
    assert isinstance(hold, Hold)
    assert (hold.nodes, hold.at_s) == ((), 100.0)
    assert isinstance(small, Wait)
    assert isinstance(elsewhere, Start)


def test_work_in_a_project_with_projects_below_it_is_refused(cluster, job):
    one = cluster(8, projects=[Project(name="lab"), Project(name="team", parent="lab")])
    one.submit(job("inner", 1, project="lab"))
    with pytest.raises(InvalidRequestError, match="projects below it"):
        one.step(0.0)


@pytest.mark.parametrize("amounts", [{"cpu": -1}, {"cpu": 1.5}, {"cpu": True}])
def test_amounts_that_are_no_amounts_are_refused(cluster, amounts):
    one = cluster(8)
    one.submit(Job(job_id="bad", project="team", members=(Member(amounts=amounts),), arrived_s=0.0))
    with pytest.raises(InvalidRequestError, match="cpu is"):
        one.step(0.0)


JOB = st.fixed_dictionaries(
    {
        "cpus": st.integers(1, 6),
        "members": st.integers(1, 3),
        "project": st.sampled_from(["red", "green", "blue"]),
        "priority": st.sampled_from([0, 0, 1, 10]),
        "maximum_s": st.sampled_from([5.0, 20.0, 40.0]),
        "gap_s": st.integers(0, 12),
    }
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plans=st.lists(JOB, min_size=1, max_size=25))
def test_random_work_never_overfills_never_exceeds_a_quota_and_never_starves(cluster, job, plans):
    """The bound is the module's: the wait of one that fits is at most W + 2 n x R, plus the steps between decisions."""
    bound_s, longest_s, step_s = 30.0, 40.0, 1.0
    projects = [
        Project(name="warm", quota={"cpu": 14}),
        Project(name="red", parent="warm", weight=2.0),
        Project(name="green", parent="warm"),
        Project(name="blue", quota={"cpu": 12}),
    ]
    one = cluster(6, 6, 4, projects=projects, maximum_wait_s=bound_s, urgent_priority=10, headroom={"cpu": 2})
    arrivals, at = [], 0.0
    for index, plan in enumerate(plans):
        at += plan["gap_s"]
        arrivals.append(
            job(
                f"job-{index:02}",
                plan["cpus"],
                arrived_s=at,
                **{k: plan[k] for k in plan if k not in ("cpus", "gap_s")},
            )
        )
    possible = [each for each in arrivals if _fits_alone(each)]
    now_s = 0.0
    for _ in range(4000):
        one.submit(*(each for each in arrivals if now_s - step_s < each.arrived_s <= now_s))
        one.step(now_s)
        if now_s > at and not (set(one.waiting) & {each.job_id for each in possible}):
            break
        now_s += step_s
    for rank, each in enumerate(sorted(possible, key=lambda each: each.arrived_s), start=1):
        waited_s = one.started_s[each.job_id] - each.arrived_s
        assert waited_s <= bound_s + 2 * rank * (longest_s + step_s), each


def _fits_alone(job: Job) -> bool:
    members, cpus = len(job.members), job.members[0].amounts["cpu"]
    places = sum(capacity // cpus for capacity in (6, 6, 4))
    return members <= places and members * cpus <= {"red": 14, "green": 14, "blue": 12}[job.project]


def test_the_same_state_leads_to_the_same_decisions(cluster, job):
    def run(seed: int) -> list[object]:
        rng = random.Random(seed)
        one = cluster(6, 6, maximum_wait_s=20.0)
        log: list[object] = []
        for now in range(60):
            one.submit(job(f"j{now}", rng.randint(1, 6), arrived_s=float(now), maximum_s=float(rng.randint(2, 30))))
            log.extend(one.step(float(now)))
        return log

    assert run(3) == run(3)


def _tree(*projects: Project):
    from dsec.scheduling.projects import ProjectTree

    return ProjectTree(projects)


def test_running_work_is_known_by_node():
    job = Job(job_id="a", project="p", members=(Member(amounts={"cpu": 1}), Member(amounts={"cpu": 2})), arrived_s=0.0)
    running = Running(job=job, nodes=("x", "x"), started_s=0.0)
    assert running.amounts_on("x") == {"cpu": 3}
    assert running.amounts_on("y") == {}


def test_a_gang_that_needs_the_whole_cluster_is_not_starved_by_a_stream_of_small_jobs(cluster, job):
    """Without holds, the stream would never let three nodes be empty at once."""
    one = cluster(4, 4, 4, maximum_wait_s=10.0)
    one.submit(job("gang", 4, members=3, arrived_s=0.5, maximum_s=10.0))
    for now in range(45):
        one.submit(*(job(f"small-{now}-{n}", 1, arrived_s=float(now), maximum_s=20.0, priority=1) for n in range(2)))
        one.step(float(now))
    assert one.started_s["gang"] <= 0.5 + 10.0 + 20.0 + 1.0
