"""Nodes that many share: fragmentation, moves, density, interference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError, NotFoundError
from dsec.costs import density, interference
from dsec.costs.fragmentation import fit, free_after_move
from dsec.costs.relocation import Start, delay_by_moving_s, longest_move_for_both_s, start_options

amounts = st.dictionaries(st.sampled_from(["cores", "h100", "memory"]), st.integers(0, 20), min_size=1)
nodes = st.dictionaries(st.sampled_from(["one", "two", "three"]), amounts, min_size=1)
times = st.just(0.0) | st.floats(0.001, 1000)


@given(free=nodes, asked=amounts)
def test_a_node_fits_exactly_when_it_misses_nothing(free: dict[str, dict[str, int]], asked: dict[str, int]) -> None:
    seen = fit(free=free, asked=asked)
    by_hand = [node for node, has in free.items() if all(has.get(name, 0) >= n for name, n in asked.items())]
    assert list(seen.nodes) == by_hand
    assert seen.fits == bool(by_hand)
    assert {node for node, lacking in seen.missing.items() if not lacking} == set(by_hand)


@given(free=nodes, asked=amounts)
def test_what_fits_on_a_node_fits_into_the_pool(free: dict[str, dict[str, int]], asked: dict[str, int]) -> None:
    seen = fit(free=free, asked=asked)
    assert seen.pool_suffices or not seen.fits
    assert seen.fragmented == (seen.pool_suffices and not seen.fits)


@given(free=nodes, task=amounts, data=st.data())
def test_a_move_leaves_the_pool_as_it_is(
    free: dict[str, dict[str, int]], task: dict[str, int], data: st.DataObject
) -> None:
    source, target = (data.draw(st.sampled_from(sorted(free))) for _ in range(2))
    if any(free[target].get(name, 0) < amount for name, amount in task.items()):
        with pytest.raises(InvalidRequestError, match=f"does not fit on {target}"):
            free_after_move(free=free, task=task, source=source, target=target)
        return
    after = free_after_move(free=free, task=task, source=source, target=target)
    for name in ("cores", "h100", "memory"):
        assert sum(has.get(name, 0) for has in after.values()) == sum(has.get(name, 0) for has in free.values())


def test_a_move_to_an_unknown_node_names_the_nodes_there_are() -> None:
    with pytest.raises(NotFoundError, match="'three'"):
        free_after_move(free={"one": {}, "two": {}}, task={}, source="one", target="three")


def test_a_negative_amount_is_named_with_its_node() -> None:
    with pytest.raises(InvalidRequestError, match="cores of free on one"):
        fit(free={"one": {"cores": -1}}, asked={"cores": 1})


@given(wait_s=times, move_s=times, run_s=times, ready_s=times, spread_s=times)
def test_the_best_start_is_the_earliest_end(
    wait_s: float, move_s: float, run_s: float, ready_s: float, spread_s: float
) -> None:
    seen = start_options(wait_s=wait_s, move_s=move_s, run_local_s=run_s, spread_ready_s=ready_s, spread_run_s=spread_s)
    assert seen.best_end_s == min(seen.wait_s, seen.move_s, seen.spread_s)
    assert seen.best is not Start.MOVE or move_s < wait_s


def test_the_same_end_is_reached_by_disturbing_less() -> None:
    even = start_options(wait_s=5, move_s=5, run_local_s=10, spread_ready_s=1, spread_run_s=14)
    assert even.best is Start.WAIT
    later = start_options(wait_s=6, move_s=5, run_local_s=10, spread_ready_s=1, spread_run_s=14)
    assert later.best is Start.SPREAD


def test_exercise_11_4_by_trying_every_move() -> None:
    moves_s = [step / 100 for step in range(1500)]
    for_new_job = [move_s for move_s in moves_s if move_s + 20 < 12 + 20]
    for_both = [move_s for move_s in moves_s if delay_by_moving_s(move_s=move_s, extra_s=2) < 12]
    assert max(for_new_job) == pytest.approx(12, abs=0.02)
    assert max(for_both) == pytest.approx(longest_move_for_both_s(wait_s=12, extra_s=2), abs=0.02)


@given(wait_s=times, extra_s=times)
def test_no_move_helps_both_where_the_old_job_loses_more_than_the_wait(wait_s: float, extra_s: float) -> None:
    bound_s = longest_move_for_both_s(wait_s=wait_s, extra_s=extra_s)
    assert (bound_s == 0) == (extra_s >= wait_s)
    if bound_s > 0:
        assert delay_by_moving_s(move_s=bound_s, extra_s=extra_s) == pytest.approx(wait_s)


@given(
    cores=st.floats(1, 512),
    memory_gib=st.floats(1, 4096),
    asked_cores=st.floats(0.1, 8),
    asked_gib=st.floats(0.1, 32),
    share=st.floats(0.01, 1),
)
def test_a_node_never_holds_more_than_memory_or_cores_allow(
    cores: float, memory_gib: float, asked_cores: float, asked_gib: float, share: float
) -> None:
    seen = density.density(
        node_cores=cores,
        node_memory_gib=memory_gib,
        asked_cores=asked_cores,
        asked_memory_gib=asked_gib,
        busy_share=share,
    )
    assert seen.sandboxes * asked_gib <= memory_gib * (1 + 1e-8)
    assert seen.mean_busy_cores <= cores * (1 + 1e-8)
    assert seen.by_cores_asked <= seen.by_cores_used
    more = density.density(
        node_cores=2 * cores,
        node_memory_gib=2 * memory_gib,
        asked_cores=asked_cores,
        asked_memory_gib=asked_gib,
        busy_share=share,
    )
    assert more.sandboxes >= 2 * seen.sandboxes


def test_a_host_is_not_asked_for_more_creations_than_it_can_do() -> None:
    with pytest.raises(InvalidRequestError, match="exceed the 150"):
        density.creation_share(creations_per_s=151, limit_per_s=150)


@given(deadline_s=st.floats(0.01, 100), slowdown=st.floats(0, 3))
def test_the_longest_step_just_meets_its_deadline(deadline_s: float, slowdown: float) -> None:
    step_s = interference.longest_step_s(deadline_s=deadline_s, slowdown=slowdown)
    assert interference.slowed_step_s(step_s=step_s, slowdown=slowdown) == pytest.approx(deadline_s)


def test_isolation_that_slows_down_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="isolated_slowdown is 0"):
        interference.removed_share(slowdown=0.17, isolated_slowdown=0.45)
