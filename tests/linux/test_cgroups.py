"""Control groups: the settings of both versions, and what groups of a real v2 tree do."""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsec.linux import cgroups as cgroups_module
from dsec.linux.cgroups import CgroupLimits, CgroupMode, CgroupMounts, Cgroups
from dsec.linux.kernel_write import KernelWrites
from dsec.linux.mounts import mount_table

ALL = CgroupLimits(memory_bytes=1 << 30, swap_bytes=1 << 20, pids=77, cpu_millis=1500, idle=True)
V2_FILES = ("memory.max", "memory.swap.max", "pids.max", "cpu.max", "cpu.idle", "memory.current", "memory.peak",
            "pids.current", "pids.events", "memory.events", "cpu.stat", "cpu.pressure")  # fmt: skip
V1_FILES = {
    "memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.usage_in_bytes",
               "memory.max_usage_in_bytes", "memory.oom_control"),
    "pids": ("pids.max", "pids.current", "pids.events"),
    "cpu": ("cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.idle"),
}  # fmt: skip


def made(directory: Path, names: tuple[str, ...]) -> Path:
    """Make a directory that looks like a group's."""
    directory.mkdir(parents=True)
    for name in names:
        (directory / name).touch()
    return directory


@pytest.fixture
def unified(tmp_path: Path) -> Cgroups:
    """A tree of plain files with one group, as a unified host has it."""
    made(tmp_path / "dsec/n/g", V2_FILES)
    return Cgroups(CgroupMounts(CgroupMode.UNIFIED, tmp_path, {}), "dsec/n")


@pytest.fixture
def hybrid(tmp_path: Path) -> Cgroups:
    made(tmp_path / "v2/dsec/n/g", ("cpu.stat",))
    for controller, names in V1_FILES.items():
        made(tmp_path / controller / "dsec/n/g", names)
    v1 = {name: tmp_path / name for name in V1_FILES}
    # The controller that the whole hierarchy accounts swap with is asked of our own parent group.
    (tmp_path / "memory/dsec/n/memory.memsw.limit_in_bytes").touch()
    return Cgroups(CgroupMounts(CgroupMode.HYBRID, tmp_path / "v2", v1), "dsec/n")


def contents(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir() if path.is_file() and path.read_text()}


def test_unified_limits_are_written_in_the_terms_of_version_2(unified: Cgroups) -> None:
    unified.limit("g", ALL)
    assert contents(unified.path("g")) == {
        "memory.max": "1073741824",
        "memory.swap.max": "1048576",
        "pids.max": "77",
        "cpu.max": "150000 100000",
        "cpu.idle": "1",
    }


def test_hybrid_limits_are_written_in_the_terms_of_version_1(hybrid: Cgroups, tmp_path: Path) -> None:
    hybrid.limit("g", ALL)
    assert contents(tmp_path / "memory/dsec/n/g") == {
        "memory.limit_in_bytes": "1073741824",
        "memory.memsw.limit_in_bytes": str((1 << 30) + (1 << 20)),
    }
    assert contents(tmp_path / "pids/dsec/n/g") == {"pids.max": "77"}
    assert contents(tmp_path / "cpu/dsec/n/g") == {
        "cpu.cfs_quota_us": "150000",
        "cpu.idle": "1",
    }
    assert contents(tmp_path / "v2/dsec/n/g") == {}


@pytest.mark.parametrize("kind", ["unified", "hybrid"])
def test_no_limit_writes_nothing(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    cgroups: Cgroups = request.getfixturevalue(kind)
    cgroups.limit("g", CgroupLimits())
    assert all(contents(directory) == {} for directory in tmp_path.rglob("g"))


def test_unified_usage_is_read_from_version_2(unified: Cgroups) -> None:
    group = unified.path("g")
    (group / "memory.current").write_text("4096\n")
    (group / "memory.peak").write_text("8192\n")
    (group / "pids.current").write_text("3\n")
    (group / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (group / "memory.events").write_text("low 0\noom 4\noom_kill 2\n")
    (group / "pids.events").write_text("max 5\n")
    (group / "cpu.pressure").write_text("some avg10=12.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=1.00\n")
    usage = unified.usage("g")
    assert (usage.memory_bytes, usage.memory_peak_bytes, usage.pids, usage.cpu_s) == (4096, 8192, 3, 2.5)
    assert (usage.oom_kills, unified.oom_kills("g"), unified.process_limit_hits("g")) == (2, 2, 5)
    assert usage.pressure == {"cpu": 0.125}


@pytest.mark.parametrize(("limit", "full"), [("3", True), ("2", True), ("4", False), ("max", False)])
def test_group_is_full_at_its_process_limit(unified: Cgroups, limit: str, full: bool) -> None:
    (unified.path("g") / "pids.current").write_text("3\n")
    (unified.path("g") / "pids.max").write_text(f"{limit}\n")
    assert unified.is_full("g") is full
    assert not unified.is_full("nobody")


def test_hybrid_usage_is_read_from_version_1(hybrid: Cgroups, tmp_path: Path) -> None:
    (tmp_path / "memory/dsec/n/g/memory.usage_in_bytes").write_text("4096\n")
    (tmp_path / "memory/dsec/n/g/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    (tmp_path / "pids/dsec/n/g/pids.events").write_text("max 7\n")
    usage = hybrid.usage("g")
    assert (usage.memory_bytes, usage.oom_kills, usage.pids) == (4096, 1, None)
    assert (hybrid.oom_kills("g"), hybrid.process_limit_hits("g")) == (1, 7)


def test_what_the_host_does_not_account_is_none(tmp_path: Path) -> None:
    (tmp_path / "dsec/n/g").mkdir(parents=True)
    cgroups = Cgroups(CgroupMounts(CgroupMode.UNIFIED, tmp_path, {}), "dsec/n")
    usage = cgroups.usage("g")
    assert (usage.cpu_s, usage.memory_bytes, usage.memory_peak_bytes, usage.pids, usage.oom_kills) == (None,) * 5
    assert (usage.pressure, cgroups.oom_kills("g"), cgroups.process_limit_hits("g")) == ({}, 0, 0)


def test_unified_memory_is_reclaimed_with_room_in_swap_that_is_taken_back(unified: Cgroups) -> None:
    group = unified.path("g")
    (group / "memory.current").write_text("4096\n")
    (group / "memory.swap.current").write_text("100\n")
    (group / "memory.reclaim").touch()
    (group / "memory.swap.max").write_text("0\n")
    unified.release_memory("g", KernelWrites())
    assert (group / "memory.reclaim").read_text() == "4096"
    # A plain file keeps the end of the longer number, 4196, that stood there meanwhile.
    assert (group / "memory.swap.max").read_text() == "0\n96"
    assert unified.swapped_bytes("g") == 100


@pytest.mark.parametrize("limit", ["max\n", "8192\n"])
def test_unified_swap_limit_that_is_wide_enough_is_left_alone(unified: Cgroups, limit: str) -> None:
    group = unified.path("g")
    (group / "memory.current").write_text("4096\n")
    (group / "memory.reclaim").touch()
    (group / "memory.swap.max").write_text(limit)
    unified.release_memory("g", KernelWrites())
    assert (group / "memory.swap.max").read_text() == limit


def test_hybrid_memory_is_forced_out(hybrid: Cgroups, tmp_path: Path) -> None:
    group = tmp_path / "memory/dsec/n/g"
    (group / "memory.usage_in_bytes").write_text("4096\n")
    (group / "memory.stat").write_text("cache 0\nswap 12288\n")
    (group / "memory.force_empty").touch()
    assert hybrid.release_memory("g", KernelWrites()) == 0
    assert (group / "memory.force_empty").read_text() == "0"
    assert hybrid.swapped_bytes("g") == 12288


def test_host_that_does_not_like_to_swap_is_told_to(
    unified: Cgroups, hybrid: Cgroups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "swappiness").write_text("0\n")
    monkeypatch.setattr(cgroups_module, "HOST_SWAPPINESS", str(tmp_path / "swappiness"))
    (unified.path("g") / "memory.current").write_text("4096\n")
    (unified.path("g") / "memory.reclaim").touch()
    unified.release_memory("g", KernelWrites())
    assert (unified.path("g") / "memory.reclaim").read_text() == "4096 swappiness=60"
    group = tmp_path / "memory/dsec/n/g"
    (group / "memory.usage_in_bytes").write_text("4096\n")
    (group / "memory.force_empty").touch()
    (group / "memory.swappiness").write_text("0\n")
    hybrid.release_memory("g", KernelWrites())
    # A plain file keeps the end of the longer number, 60, that stood there meanwhile.
    assert (group / "memory.swappiness").read_text() == "00"


def test_memory_that_only_swap_can_take_is_what_is_no_copy_of_a_file(
    unified: Cgroups, hybrid: Cgroups, tmp_path: Path
) -> None:
    (unified.path("g") / "memory.stat").write_text("anon 130\nfile 5000\nshmem 20\nswapcached 30\n")
    assert unified.swappable_bytes("g") is None  # No way to ask for it: an older kernel.
    (unified.path("g") / "memory.reclaim").touch()
    assert unified.swappable_bytes("g") == 120
    group = tmp_path / "memory/dsec/n/g"
    (group / "memory.stat").write_text("cache 5020\nrss 100\nshmem 20\ntotal_rss 7\n")
    (group / "memory.force_empty").touch()
    assert hybrid.swappable_bytes("g") == 120


def test_memory_that_is_not_accounted_is_not_given_back(tmp_path: Path) -> None:
    (tmp_path / "dsec/n/g").mkdir(parents=True)
    for mounts in (CgroupMounts(CgroupMode.UNIFIED, tmp_path, {}), CgroupMounts(CgroupMode.HYBRID, tmp_path, {})):
        cgroups = Cgroups(mounts, "dsec/n")
        assert (cgroups.release_memory("g", KernelWrites()), cgroups.swapped_bytes("g")) == (0, None)
        assert cgroups.swappable_bytes("g") is None


def test_processes_of_a_group_and_its_children_are_read_up_to_a_bound(unified: Cgroups) -> None:
    (unified.path("g") / "cgroup.procs").write_text("1\n2\n")
    (unified.path("g") / "a").mkdir()
    (unified.path("g") / "a/cgroup.procs").write_text("3\n4\n")
    assert unified.process_ids("g", 100) == (1, 2, 3, 4)
    assert unified.process_ids("g", 3) == (1, 2, 3)


def test_unified_open_hands_down_what_is_available_at_every_level(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "dsec", tmp_path / "dsec/n"):
        directory.mkdir(exist_ok=True)
        (directory / "cgroup.controllers").write_text("cpu io\n")
        (directory / "cgroup.subtree_control").touch()
    cgroups = Cgroups(CgroupMounts(CgroupMode.UNIFIED, tmp_path, {}), "dsec/n")
    cgroups.open()
    for directory in (tmp_path, tmp_path / "dsec", tmp_path / "dsec/n"):
        assert (directory / "cgroup.subtree_control").read_text() == "+cpu"


# -- a real tree ------------------------------------------------------------------------------------------------------


def v2_mount() -> Path:
    return next((Path(entry.target) for entry in mount_table() if entry.kind == "cgroup2"), Path("/nonexistent"))


needs_v2 = [
    pytest.mark.root,
    pytest.mark.skipif(not v2_mount().is_dir(), reason="this host has no cgroup v2 mounted"),
]


def real(test: Callable[..., None]) -> Callable[..., None]:
    for marker in needs_v2:
        test = marker(test)
    return test


@pytest.fixture
def groups() -> Iterator[Cgroups]:
    """Groups of a real tree that is taken as a unified host's, whatever controllers it has."""
    name = f"t{os.getpid()}u"
    cgroups = Cgroups(CgroupMounts(CgroupMode.UNIFIED, v2_mount(), {}), f"dsec/{name}")
    cgroups.open()
    yield cgroups
    for group in cgroups.names():
        cgroups.kill(group)
        wait(cgroups, lambda group=group: not cgroups.is_populated(group), group)
        assert cgroups.remove(group)
    os.rmdir(v2_mount() / "dsec" / name)


def wait(cgroups: Cgroups, condition: Callable[[], bool], group: str, child: str | None = None) -> None:
    """Wait for a change that the kernel announces; looks at least every second."""
    for _ in range(30):
        watch = cgroups.watch_events(group, child)
        if watch is None or condition():
            if watch is not None:
                watch.close()
            break
        select.select([watch.fileno()], [], [], 1.0)
        watch.close()
    assert condition()


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            yield process
        finally:
            process.kill()


@real
def test_child_is_killed_alone_and_told_to_be_empty(groups: Cgroups) -> None:
    groups.create("g", CgroupLimits())
    for child in ("a", "b"):
        groups.create_child("g", child)
    assert sorted(groups.children("g")) == ["a", "b"]
    with sleeper() as first, sleeper() as second:
        groups.attach(first.pid, "g", "a")
        groups.attach(second.pid, "g", "b")
        assert groups.contains(first.pid, "g")
        assert not groups.contains(os.getpid(), "g")
        groups.kill("g", "a")
        wait(groups, lambda: not groups.is_populated("g", "a"), "g", "a")
        assert first.wait(timeout=30) == -signal.SIGKILL
        assert second.poll() is None
        assert groups.is_populated("g")
        assert groups.remove_child("g", "a")
        assert not groups.remove_child("g", "b")
        assert not groups.remove("g")
    wait(groups, lambda: not groups.is_populated("g"), "g")
    assert groups.remove("g")
    assert groups.names() == frozenset()


@real
def test_killing_a_group_ends_its_own_and_its_childrens_processes(groups: Cgroups) -> None:
    groups.create("g", CgroupLimits())
    groups.create_child("g", "a")
    with sleeper() as own, sleeper() as childs:
        groups.attach(own.pid, "g")
        groups.attach(childs.pid, "g", "a")
        groups.kill("g")
        assert {own.wait(timeout=30), childs.wait(timeout=30)} == {-signal.SIGKILL}


@real
def test_who_ended_counts_until_its_parent_asks_for_it() -> None:
    mounts = CgroupMounts.find()
    assert mounts is not None
    parent = f"dsec/t{secrets.token_hex(4)}"
    cgroups = Cgroups(mounts, parent)
    cgroups.open()
    try:
        cgroups.create("g", CgroupLimits(pids=10))
        if cgroups.processes("g") is None:
            pytest.skip("this host does not count processes")
        cgroups.create_child("g", "a")
        with sleeper() as ended, sleeper() as living:
            cgroups.attach(ended.pid, "g", "a")
            cgroups.attach(living.pid, "g")
            assert cgroups.unreaped("g") == 0
            ended.kill()
            os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
            assert (cgroups.processes("g"), cgroups.unreaped("g")) == (2, 1)
            ended.wait()
            assert (cgroups.processes("g"), cgroups.unreaped("g")) == (1, 0)
    finally:
        assert cgroups.remove("g")
        for tree in {mounts.unified, *mounts.v1.values()}:
            os.rmdir(tree / parent)


@real
def test_frozen_processes_can_be_killed(groups: Cgroups) -> None:
    groups.create("g", CgroupLimits())
    with sleeper() as process:
        groups.attach(process.pid, "g")
        groups.freeze("g", frozen=True)
        wait(groups, lambda: groups.is_frozen("g"), "g")
        assert groups.is_populated("g")
        groups.kill("g")
        assert process.wait(timeout=30) == -signal.SIGKILL


@real
def test_thawed_processes_go_on(groups: Cgroups) -> None:
    groups.create("g", CgroupLimits())
    with sleeper() as process:
        groups.attach(process.pid, "g")
        groups.freeze("g", frozen=True)
        wait(groups, lambda: groups.is_frozen("g"), "g")
        groups.freeze("g", frozen=False)
        wait(groups, lambda: not groups.is_frozen("g"), "g")
        process.terminate()
        assert process.wait(timeout=30) == -signal.SIGTERM


@real
def test_groups_that_are_gone_are_no_error(groups: Cgroups) -> None:
    groups.kill("nobody")
    assert not groups.is_populated("nobody")
    assert groups.watch_events("nobody") is None
    assert groups.children("nobody") == ()
    assert groups.remove("nobody")
    assert groups.remove_child("nobody", "child")


@real
def test_capabilities_follow_what_the_tree_hands_down(groups: Cgroups) -> None:
    """Where the v2 tree has no controllers, none is claimed."""
    handed_down = (groups.path(".") / "cgroup.subtree_control").read_text().split()
    assert groups.controllers() == {"memory", "pids", "cpu"} & set(handed_down)
