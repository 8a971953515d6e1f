"""Admission is decided on what is measured: nobody is admitted beyond a bound, and every refusal names both numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.units import GIB, MIB
from dsec.pools.admission import Admission, AdmissionPolicy, Pressure

ROOM = Pressure(sandboxes=1, memory_available_bytes=8 * GIB, disk_free_bytes=80 * GIB, memory_full=0.0, pids=0.1)


def test_a_host_with_room_admits_whatever_was_promised_to_others() -> None:
    assert Admission(AdmissionPolicy()).judge(ROOM).admitted
    assert Admission(AdmissionPolicy()).judge(Pressure()).admitted


@pytest.mark.parametrize(
    ("gauge", "pressure", "said"),
    [
        ("sandboxes", Pressure(sandboxes=4096), "holds 4096 sandboxes, as many as it may (4096)"),
        ("memory_available_bytes", Pressure(memory_available_bytes=255 * MIB), "255.0 MiB of memory left, the node"),
        ("disk_free_bytes", Pressure(disk_free_bytes=1), "1 B of disk left, the node keeps 1.0 GiB"),
        ("memory_full", Pressure(memory_full=0.31), "waited for memory 31.0% of the last 10 s, at most 30.0%"),
        ("memory_some", Pressure(memory_some=0.7), "some task of the host waited for memory 70.0%"),
        ("io_full", Pressure(io_full=0.95), "all tasks of the host waited for I/O 95.0%"),
        ("pids", Pressure(pids=0.91), "91.0% of the processes"),
    ],
)  # fmt: skip
def test_each_refusal_names_measure_threshold_and_when_to_ask_again(gauge: str, pressure: Pressure, said: str) -> None:
    (refusal,) = Admission(AdmissionPolicy()).judge(pressure).refusals
    assert refusal.gauge == gauge
    assert said in refusal.brief
    assert refusal.measured == getattr(pressure, gauge)
    assert refusal.retry_after_s > 0
    assert f"ask again in {refusal.retry_after_s:g} s" in refusal.resolution


def test_waiting_for_processors_and_some_wait_for_disk_refuse_nobody_by_default() -> None:
    assert Admission(AdmissionPolicy()).judge(Pressure(cpu_some=1.0, io_some=1.0)).admitted
    assert not Admission(AdmissionPolicy(maximum_cpu_some=0.8)).judge(Pressure(cpu_some=0.9)).admitted


def test_at_its_bound_a_node_does_not_flap() -> None:
    admission = Admission(AdmissionPolicy(maximum_memory_full=0.3, hysteresis=0.1))
    verdicts = [admission.judge(Pressure(memory_full=share)).admitted for share in (0.3, 0.31, 0.29, 0.275, 0.26, 0.29)]
    assert verdicts == [True, False, False, False, True, True]
    memory = Admission(AdmissionPolicy(minimum_free_memory_bytes=100))
    assert [memory.judge(Pressure(memory_available_bytes=free)).admitted for free in (100, 99, 105, 111, 100)] == [
        True, False, False, True, True,
    ]  # fmt: skip


_SHARE = st.none() | st.floats(0, 1)


@given(
    st.lists(
        st.builds(
            Pressure,
            sandboxes=st.integers(0, 8000),
            memory_available_bytes=st.none() | st.integers(0, 1 * GIB),
            disk_free_bytes=st.none() | st.integers(0, 4 * GIB),
            memory_some=_SHARE,
            memory_full=_SHARE,
            io_full=_SHARE,
            pids=_SHARE,
        ),
        max_size=20,
    )
)
def test_nobody_is_admitted_beyond_a_bound_and_nobody_refused_well_within_all(history: list[Pressure]) -> None:
    policy = AdmissionPolicy()
    admission = Admission(policy)
    for pressure in history:
        admitted = admission.judge(pressure).admitted
        free_memory = math.inf if pressure.memory_available_bytes is None else pressure.memory_available_bytes
        free_disk = math.inf if pressure.disk_free_bytes is None else pressure.disk_free_bytes
        shares = [
            (pressure.memory_some or 0.0, policy.maximum_memory_some),
            (pressure.memory_full or 0.0, policy.maximum_memory_full),
            (pressure.io_full or 0.0, policy.maximum_io_full),
            (pressure.pids or 0.0, policy.maximum_pids),
        ]
        beyond = (
            pressure.sandboxes >= policy.maximum_sandboxes
            or free_memory < policy.minimum_free_memory_bytes
            or free_disk < policy.minimum_free_disk_bytes
            or any(share > most for share, most in shares)
        )
        well = (
            pressure.sandboxes < policy.maximum_sandboxes
            and free_memory >= 1.1001 * policy.minimum_free_memory_bytes
            and free_disk >= 1.1001 * policy.minimum_free_disk_bytes
            and all(share <= 0.8999 * most for share, most in shares)
        )
        assert not (admitted and beyond)
        assert admitted or not well
