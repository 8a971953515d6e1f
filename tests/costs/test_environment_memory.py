"""Memory of environments: images, page caches, pauses, rebuilding, predictions."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs import image_loading, page_cache, pause, prediction, rebuild

sizes = st.floats(0.01, 100)
times = st.just(0.0) | st.floats(0.001, 1000)
prices = st.floats(1e-7, 1e-3)
chances = st.floats(0, 1)


@given(parts=st.lists(sizes, min_size=4, max_size=4), overhead_gib=sizes)
def test_less_is_kept_the_less_is_loaded(parts: list[float], overhead_gib: float) -> None:
    dirty, clean_hot, other_touched, untouched = parts
    hot = image_loading.shared_read_only_gib(dirty_gib=dirty, hot_gib=clean_hot, overhead_gib=overhead_gib)
    touched_gib = dirty + clean_hot + other_touched
    touched = image_loading.touched_only_gib(touched_gib=touched_gib, overhead_gib=overhead_gib)
    full = image_loading.full_copy_gib(template_gib=touched_gib + untouched, overhead_gib=overhead_gib)
    assert image_loading.shared_read_only_gib(dirty_gib=dirty, overhead_gib=overhead_gib) <= hot <= touched <= full


@given(template_gib=sizes, install_gib=sizes, link=sizes, count=st.integers(1, 1000))
def test_a_wider_link_and_a_cached_template_never_take_longer(
    template_gib: float, install_gib: float, link: float, count: int
) -> None:
    def bound_s(fetch_gib: float, link_gib_per_s: float, environments: int = 1) -> float:
        return image_loading.load_bound_s(
            fetch_gib=fetch_gib, install_gib=install_gib, link_gib_per_s=link_gib_per_s, environments=environments
        )

    assert bound_s(0, link) <= bound_s(template_gib, link)
    assert bound_s(template_gib, 2 * link) == pytest.approx(bound_s(template_gib, link) / 2)
    assert bound_s(template_gib, link, count) == pytest.approx(count * bound_s(template_gib, link))


@given(early_gib=sizes, late_gib=sizes, link=sizes, tool_s=times)
def test_loading_later_moves_work_and_removes_none(
    early_gib: float, late_gib: float, link: float, tool_s: float
) -> None:
    def load_s(size_gib: float) -> float:
        return image_loading.load_bound_s(fetch_gib=0, install_gib=size_gib, link_gib_per_s=link)

    lazily_s = image_loading.first_tool_end_s(
        start_s=load_s(early_gib), missing_gib=late_gib, link_gib_per_s=link, tool_s=tool_s
    )
    assert lazily_s == pytest.approx(load_s(early_gib + late_gib) + tool_s)


def test_reading_more_than_there_is_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="touched_gib / template_gib"):
        image_loading.read_share(touched_gib=3, template_gib=2)


@given(machines=st.integers(1, 1000), device_gib=sizes, read=chances)
def test_mapping_saves_memory_exactly_where_more_than_a_64th_is_read(
    machines: int, device_gib: float, read: float
) -> None:
    read_gib = read * device_gib
    once_gib = page_cache.cached_once_gib(machines=machines, read_gib=read_gib, device_gib=device_gib)
    saved_gib = page_cache.cached_in_each_gib(machines=machines, read_gib=read_gib) - once_gib
    assert saved_gib == pytest.approx(machines * device_gib * (read - 1 / 64), abs=1e-9 * machines * device_gib)


def test_more_is_not_read_than_a_device_holds() -> None:
    with pytest.raises(InvalidRequestError, match="device_gib less read_gib"):
        page_cache.cached_once_gib(machines=1, read_gib=3, device_gib=2)


@given(memory_gib=sizes, gap_s=times, rate=times, resume_s=times)
def test_a_pause_either_frees_memory_or_delays_the_tool(
    memory_gib: float, gap_s: float, rate: float, resume_s: float
) -> None:
    seen = pause.pause(memory_gib=memory_gib, gap_s=gap_s, save_s_per_gib=rate, resume_s=resume_s)
    assert min(seen.released_s, seen.delay_s) == pytest.approx(0, abs=1e-9)
    assert seen.released_s - seen.delay_s == pytest.approx(gap_s - seen.save_s - resume_s, abs=1e-6)
    assert seen.saved_gib_s == pytest.approx(memory_gib * (seen.released_s - seen.delay_s), abs=1e-6)
    assert seen.tool_start_s >= seen.save_s


@given(memory_gib=sizes, price=prices, transition_usd=st.floats(0, 1), factor=st.floats(1.01, 10))
def test_a_pause_pays_beyond_its_break_even_and_not_before(
    memory_gib: float, price: float, transition_usd: float, factor: float
) -> None:
    money = {"memory_gib": memory_gib, "memory_price_usd_per_gib_s": price, "transition_usd": transition_usd}
    even_s = pause.break_even_released_s(**money)
    assert pause.pause_saves_usd(released_s=even_s, **money) == pytest.approx(0, abs=1e-9)
    assert pause.pause_saves_usd(released_s=even_s * factor, **money) >= 0
    assert pause.pause_saves_usd(released_s=even_s / factor, **money) <= 0


@given(memory_gib=sizes, prepare_s=times, work_cpu_s=times, memory_price=prices, cpu_price=prices)
def test_keeping_and_rebuilding_cost_the_same_at_the_break_even_gap(
    memory_gib: float, prepare_s: float, work_cpu_s: float, memory_price: float, cpu_price: float
) -> None:
    inputs = {
        "memory_gib": memory_gib,
        "prepare_s": prepare_s,
        "work_cpu_s": work_cpu_s,
        "memory_price_usd_per_gib_s": memory_price,
        "cpu_price_usd_per_cpu_s": cpu_price,
    }
    gap_s = rebuild.break_even_gap_s(**inputs)
    kept_usd = rebuild.keep_usd(memory_gib=memory_gib, gap_s=gap_s, memory_price_usd_per_gib_s=memory_price)
    assert kept_usd == pytest.approx(rebuild.rebuild_usd(**inputs))
    assert gap_s >= prepare_s - 1e-9


def test_the_chapters_break_even_wait() -> None:
    gap_s = rebuild.break_even_gap_s(
        memory_gib=2,
        prepare_s=2,
        work_cpu_s=0.1,
        memory_price_usd_per_gib_s=0.0000045,
        cpu_price_usd_per_cpu_s=0.000014,
    )
    assert round(gap_s, 2) == 2.16


def walked_residency_s(*, held_until_s: float, restore_s: float, model_s: float, tool_s: float) -> tuple[float, float]:
    """Walk through one gap in steps of 10 ms: an environment is there while it is saved, restored and used.

    The latest moment to begin the restoration is found by trying all of them from the model's end backwards.
    """
    step_s = 0.01
    begin_s = held_until_s
    while begin_s + step_s + restore_s <= model_s + 1e-9:
        begin_s += step_s
    end_s = begin_s + restore_s + tool_s
    moments = [index * step_s + step_s / 2 for index in range(round(end_s / step_s))]
    return sum(step_s for moment in moments if moment < held_until_s or moment >= begin_s), end_s


def test_exercise_11_2_by_walking_through_the_gap() -> None:
    anew = rebuild.by_rebuilding(model_s=9, tool_s=1, prepare_s=2.7, memory_gib=2)
    snapshot = rebuild.by_snapshot(model_s=9, tool_s=1, save_s=8, restore_s=1, memory_gib=2)
    walked = walked_residency_s(held_until_s=0, restore_s=2.7, model_s=9, tool_s=1)
    assert walked == pytest.approx((anew.resident_s, anew.tool_end_s), abs=0.02)
    walked = walked_residency_s(held_until_s=8, restore_s=1, model_s=9, tool_s=1)
    assert walked == pytest.approx((snapshot.resident_s, snapshot.tool_end_s), abs=0.02)


@given(model_s=times, tool_s=times, save_s=times, restore_s=times)
def test_an_environment_is_either_resident_or_released(
    model_s: float, tool_s: float, save_s: float, restore_s: float
) -> None:
    seen = rebuild.by_snapshot(model_s=model_s, tool_s=tool_s, save_s=save_s, restore_s=restore_s, memory_gib=1)
    assert seen.resident_s + seen.released_s == pytest.approx(seen.tool_end_s)
    assert seen.delay_s == pytest.approx(max(save_s + restore_s - model_s, 0), abs=1e-9)


@given(prepare_s=times, lead_s=times, chance=chances)
def test_the_expected_wait_is_the_mean_of_right_and_wrong_courses(
    prepare_s: float, lead_s: float, chance: float
) -> None:
    call = {"call_s": lead_s + 1, "prepare_s": prepare_s, "lead_s": lead_s}
    right, wrong = prediction.course(**call, right=True), prediction.course(**call, right=False)
    seen = prediction.prediction(prepare_s=prepare_s, lead_s=lead_s, hit_probability=chance, memory_gib=2)
    assert seen.expected_wait_s == pytest.approx(chance * right.wait_s + (1 - chance) * wrong.wait_s, abs=1e-6)
    assert seen.expected_idle_gib_s == pytest.approx(2 * chance * right.idle_s, abs=1e-6)
    wasted_s = wrong.wasted_until_s - wrong.wasted_from_s
    assert seen.expected_wasted_gib_s == pytest.approx(2 * (1 - chance) * wasted_s, abs=1e-6)


@given(prepare_s=times, lead_s=times, chance=chances, more=times)
def test_a_longer_lead_and_a_better_prediction_never_wait_longer(
    prepare_s: float, lead_s: float, chance: float, more: float
) -> None:
    def wait_s(lead: float, hit: float) -> float:
        return prediction.expected_wait_s(prepare_s=prepare_s, lead_s=lead, hit_probability=hit)

    assert wait_s(lead_s + more, chance) <= wait_s(lead_s, chance)
    assert wait_s(lead_s, (1 + chance) / 2) <= wait_s(lead_s, chance)
    assert wait_s(prepare_s + more, chance) == pytest.approx(wait_s(prepare_s, chance))


@pytest.mark.parametrize(("lead_s", "chance"), [(1, 0.6), (2, 0.6), (4, 0.6), (1, 0.9), (2, 0.9), (4, 0.9)])
def test_exercise_11_3_by_playing_calls(lead_s: float, chance: float) -> None:
    source = random.Random(3)
    calls = 20_000
    wait_s = wasted_gib_s = 0.0
    for _ in range(calls):
        ready_s = 2 - lead_s if source.random() < chance else None
        wait_s += 2 if ready_s is None else max(ready_s, 0)
        wasted_gib_s += 2 * lead_s if ready_s is None else 0
    seen = prediction.prediction(prepare_s=2, lead_s=lead_s, hit_probability=chance, memory_gib=2)
    assert wait_s / calls == pytest.approx(seen.expected_wait_s, abs=0.03)
    assert wasted_gib_s / calls == pytest.approx(seen.expected_wasted_gib_s, abs=0.08)


def test_a_preparation_does_not_begin_before_time_0() -> None:
    with pytest.raises(InvalidRequestError, match="call_s less lead_s"):
        prediction.course(call_s=1, prepare_s=2, lead_s=2, right=True)
