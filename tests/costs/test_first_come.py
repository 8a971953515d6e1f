"""A queue in front of several servers."""

from __future__ import annotations

from dsec.costs.first_come import serve


def test_pieces_that_arrive_together_are_taken_as_they_are_listed_and_the_rest_by_arrival() -> None:
    seen = serve(arrivals_s=[5, 0, 0, 1], works_s=[1, 3, 4, 2], servers=2)
    assert seen.servers == (1, 0, 1, 0)
    assert seen.starts_s == (5, 0, 0, 3)
    assert seen.ends_s == (6, 3, 4, 5)


def test_servers_beyond_the_number_of_pieces_cost_nothing_and_change_nothing() -> None:
    few = serve(arrivals_s=[0, 0, 1], works_s=[2, 2, 2], servers=3)
    assert few == serve(arrivals_s=[0, 0, 1], works_s=[2, 2, 2], servers=10**12)
