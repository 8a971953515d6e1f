"""Waiting for what the kernel does with the processes of a group."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from dsec.linux.cgroups import CgroupMode, CgroupMounts, Cgroups
from dsec.runtimes.container import waiting

pytestmark = pytest.mark.anyio


async def test_killed_processes_are_waited_for_until_they_leave_room_for_others(tmp_path: Path) -> None:
    group = tmp_path / "dsec/n/g"
    (group / "a").mkdir(parents=True)
    (group / "cgroup.threads").write_text("1\n")
    (group / "a/cgroup.threads").write_text("2\n3\n")
    (group / "pids.current").write_text("100\n")
    cgroups = Cgroups(CgroupMounts(CgroupMode.UNIFIED, tmp_path, {}), "dsec/n")
    reaped: list[bool] = []

    async def wait() -> None:
        await waiting.wait_reaped(cgroups, "g")
        reaped.append(cgroups.unreaped("g") == 0)

    async with anyio.create_task_group() as group_of_tasks:
        group_of_tasks.start_soon(wait)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        assert not reaped
        (group / "pids.current").write_text("3\n")
    assert reaped == [True]


async def test_who_keeps_the_dead_keeps_nobody_waiting_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_REAPED_S", 0.01)
    group = tmp_path / "dsec/n/g"
    group.mkdir(parents=True)
    (group / "pids.current").write_text("100\n")
    await waiting.wait_reaped(Cgroups(CgroupMounts(CgroupMode.UNIFIED, tmp_path, {}), "dsec/n"), "g")
    assert (group / "pids.current").read_text() == "100\n"
