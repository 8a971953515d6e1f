"""The pool's own policy under simulated tasks: its cap holds, and everyone is served in the end."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.model.pool import PoolPolicy
from dsec.sim import Arrivals, LevelsScenario, constant, exponential, run
from dsec.sim.shipped import find_scenario


def pool(**changes: object) -> LevelsScenario:
    values = {
        "arrivals": Arrivals(kind="poisson", rate_per_s=4),
        "duration_s": 120.0,
        "hold_s": exponential(5.0),
        "create_s": constant(1.0),
        **changes,
    }
    return LevelsScenario(**values)  # type: ignore[arg-type]


@settings(max_examples=15, deadline=None)
@given(
    maximum=st.integers(1, 40),
    seed=st.integers(0, 100),
    fails=st.sampled_from([0.0, 0.3, 1.0]),
    unclean=st.sampled_from([0.0, 0.2, 1.0]),
)
def test_the_cap_is_never_overshot_whatever_fails(maximum: int, seed: int, fails: float, unclean: float) -> None:
    result = run(pool(pool=PoolPolicy(maximum=maximum), creation_failure_share=fails, unclean_share=unclean), seed=seed)
    assert result.levels["sandboxes"].maximum <= maximum
    assert result.levels["in_use"].maximum <= maximum


def test_tasks_are_handed_out_refused_or_still_wait() -> None:
    result = run(pool(arrivals=Arrivals(kind="uniform", rate_per_s=4)))
    counts = result.counts
    assert counts["handed_out"] + counts["refused"] + counts["waiting_at_end"] == 480


def test_a_pool_whose_every_check_fails_still_serves_by_creating() -> None:
    result = run(pool(unclean_share=1.0, arrivals=Arrivals(kind="poisson", rate_per_s=2)))
    assert result.counts["waiting_at_end"] < 5
    assert result.counts["handed_out"] > 200


@pytest.mark.slow
def test_a_followed_level_waits_less_than_a_fixed_one_of_equal_memory() -> None:
    base = find_scenario("ready-level").base
    assert isinstance(base, LevelsScenario)
    rarer = msgspec.structs.replace(base.arrivals, rate_per_s=1.0)
    base = msgspec.structs.replace(base, arrivals=rarer, duration_s=3600.0)
    following = run(base)
    level = round(following.levels["idle"].mean)
    fixed = run(msgspec.structs.replace(base, pool=msgspec.structs.replace(base.pool, fixed_level=level)))
    assert fixed.levels["sandboxes"].mean > 0.95 * following.levels["sandboxes"].mean
    assert following.figures["wait_s"].mean < 0.6 * fixed.figures["wait_s"].mean
