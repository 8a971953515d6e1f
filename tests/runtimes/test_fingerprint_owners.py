"""Owners in a fingerprint are the same in every instance, and so is the number of processes."""

from __future__ import annotations

from typing import cast

import pytest

from dsec.runtimes.container.fingerprint import _inside, count_processes
from dsec.runtimes.container.groups import Groups


def test_an_id_of_the_host_is_told_alike_in_instances_of_different_ranges() -> None:
    assert _inside(0, 1_048_576) == _inside(0, 1_114_112)
    assert _inside(1_048_576 + 1000, 1_048_576) == _inside(1_114_112 + 1000, 1_114_112) == "1000"


class Counted:
    """Groups that count so many, of whom so many live."""

    def __init__(self, counted: int | None, living: int) -> None:
        self._counted, self._living = counted, living

    def processes(self, group: str) -> int | None:
        return self._counted

    def process_ids(self, group: str, maximum: int) -> tuple[int, ...]:
        return tuple(range(self._living))


@pytest.mark.parametrize(("counted", "living", "told"), [(1, 1, 1), (2, 1, 1), (5, 3, 3), (None, 0, None)])
def test_processes_that_have_ended_and_that_nobody_waited_for_are_not_told(
    counted: int | None, living: int, told: int | None
) -> None:
    assert count_processes(cast(Groups, Counted(counted, living)), "i") == told
