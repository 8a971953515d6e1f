"""Price and throughput of added instances."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.price_performance import added_instances


@given(base=st.floats(0.1, 1e4), count=st.integers(0, 100), price=st.floats(0, 1e3), throughput=st.floats(0.1, 20))
def test_the_price_ratio_is_the_throughput_at_which_work_costs_the_same(
    base: float, count: int, price: float, throughput: float
) -> None:
    fleet = added_instances(
        base_price_usd_per_h=base, added_count=count, added_price_usd_per_h=price, throughput_ratio=throughput
    )
    at_border = added_instances(
        base_price_usd_per_h=base, added_count=count, added_price_usd_per_h=price, throughput_ratio=fleet.price_ratio
    )
    assert at_border.unit_cost_ratio == pytest.approx(1)
    assert fleet.is_cheaper == (fleet.unit_cost_ratio < 1) or fleet.unit_cost_ratio == pytest.approx(1)


def test_a_fleet_without_a_price_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"base_price_usd_per_h.*") as caught:
        added_instances(base_price_usd_per_h=0, added_count=1, added_price_usd_per_h=1, throughput_ratio=1)
    assert "USD/h" in caught.value.detail
