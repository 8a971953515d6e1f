"""Owners in a fingerprint are the same in every instance."""

from __future__ import annotations

from dsec.runtimes.container.fingerprint import _inside


def test_an_id_of_the_host_is_told_alike_in_instances_of_different_ranges() -> None:
    assert _inside(0, 1_048_576) == _inside(0, 1_114_112)
    assert _inside(1_048_576 + 1000, 1_048_576) == _inside(1_114_112 + 1000, 1_114_112) == "1000"
