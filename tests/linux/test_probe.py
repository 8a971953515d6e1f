"""Probes tell the truth about this host, are bounded in time and leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dsec.linux import probe, probe_cgroups, probe_kernel, probe_mounts, probe_tools, probe_trials
from dsec.linux.mounts import mount_table
from dsec.linux.probe import Finding, found, missing, refused, trial

NOBODY = 65_534


def test_a_trial_in_its_own_process_reports_what_it_saw() -> None:
    assert trial("user_namespace") == found()


def test_an_unknown_trial_is_missing_with_the_reason() -> None:
    finding = trial("no_such_trial")
    assert not finding.present
    assert "no_such_trial" in finding.seen


def test_a_trial_that_hangs_is_killed_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    finding = trial("overlay", timeout_s=0.05)
    assert finding == missing("the probe did not end within 0.05 s")


def test_a_trial_that_dies_is_missing_with_its_last_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho first >&2; echo last >&2; exit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    assert trial("overlay").seen == "the probe ended with status 3: last"


def test_a_refusal_is_told_in_the_kernels_words(tmp_path: Path) -> None:
    def refuse(_: Path) -> Finding:
        raise PermissionError(1, "Operation not permitted", str(tmp_path / "x"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(probe_trials.TRIALS, "refused", refuse)
        assert probe_trials.run("refused", tmp_path).seen == "Operation not permitted"
        assert probe_trials.run("refused", tmp_path / "elsewhere").seen.startswith(str(tmp_path))


def test_a_failing_tool_is_told_with_its_first_words(tmp_path: Path) -> None:
    def fail(_: Path) -> Finding:
        subprocess.run(["sh", "-c", "echo why >&2; echo more >&2; exit 4"], check=True, capture_output=True)
        return found()

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(probe_trials.TRIALS, "failing", fail)
        assert probe_trials.run("failing", tmp_path).seen == "sh ended with status 4: why"


@pytest.mark.root
@pytest.mark.slow
def test_trials_leave_no_mount_no_loop_device_no_cgroup_and_no_file() -> None:
    def traces() -> tuple[set[str], set[str], set[str], set[str]]:
        loops = {path.parent.parent.name for path in Path("/sys/block").glob("loop*/loop/backing_file")}
        cgroups = {str(path) for parent in probe_cgroups.own_directories() for path in parent.glob("dsec-probe-*")}
        files = {str(path) for path in Path(tempfile.gettempdir()).glob("dsec-probe-*")}
        mounts = {entry.target for entry in mount_table() if "dsec-probe" in entry.target}
        return mounts, {name for name in loops if "dsec-probe" in _backing(name)}, cgroups, files

    before = traces()
    for name in [*probe_trials.TRIALS, *probe_trials.MOUNT_TRIALS]:
        trial(name)
    assert traces() == before


def _backing(name: str) -> str:
    try:
        return Path(f"/sys/block/{name}/loop/backing_file").read_text()
    except OSError:
        return ""


@pytest.mark.root
@pytest.mark.slow
def test_an_ordinary_user_gets_findings_and_not_failures(tmp_path: Path) -> None:
    names = [*probe_trials.TRIALS, *probe_trials.MOUNT_TRIALS]
    for name in names:
        finding = _trial_as_nobody(name, tmp_path)
        assert finding.seen, name
        assert "Traceback" not in finding.seen, name
    assert not _trial_as_nobody("loop", tmp_path).present
    assert not _trial_as_nobody("idmap_btrfs", tmp_path).present


def _trial_as_nobody(name: str, scratch: Path) -> Finding:
    """Run a trial in a child that has given up root; the interpreter and the code stay readable to it."""
    place = Path(tempfile.mkdtemp(dir=scratch))
    place.chmod(0o777)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        os.dup2(write, 1)
        sys.stdout = os.fdopen(1, "w")
        probe_trials.main(name, str(place))
        sys.stdout.flush()
        os._exit(0)
    os.close(write)
    with open(read) as output:
        answer = output.read()
    os.waitpid(pid, 0)
    return probe._verdict(answer.encode(), b"", 0)


@pytest.mark.root
def test_a_killed_trials_cgroup_is_removed() -> None:
    parents = probe_cgroups.own_directories()
    assert parents
    directory = parents[0] / probe.trial_cgroup_name(os.getpid())
    directory.mkdir()
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        (directory / "cgroup.procs").write_text(str(sleeper.pid))
        probe._remove_cgroups(os.getpid())
        assert not directory.exists()
        assert sleeper.wait() == -9


def test_the_hand_made_erofs_image_is_one_block_and_a_directory() -> None:
    image = probe_mounts.erofs_image()
    assert len(image) == 8192
    assert image[1024:1028] == b"\xe2\xe1\xf5\xe0"


@pytest.mark.root
def test_the_hand_made_erofs_image_passes_the_file_systems_own_check(tmp_path: Path) -> None:
    fsck = probe_tools.find("fsck.erofs")
    if fsck is None:
        pytest.skip("fsck.erofs is not installed")
    image = tmp_path / "image"
    image.write_bytes(probe_mounts.erofs_image())
    assert subprocess.run([fsck, str(image)], capture_output=True, check=False).returncode == 0


def test_a_tool_is_told_by_version_and_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path / "gadget", "echo gadget version 1.2.3, built today")
    monkeypatch.setattr(probe_tools, "_PATHS", str(tmp_path))
    assert probe_tools.tool("gadget") == found(f"1.2.3, {tmp_path / 'gadget'}")


def test_a_tool_that_is_not_there_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_tools, "_PATHS", str(tmp_path))
    assert probe_tools.tool("gadget") == missing("not found")


def test_a_tool_that_does_not_start_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path / "gadget", "exit 127")
    monkeypatch.setattr(probe_tools, "_PATHS", str(tmp_path))
    assert not probe_tools.tool("gadget").present


def test_one_of_several_runtimes_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_tools, "_PATHS", str(tmp_path))
    assert not probe_tools.oci_runtimes(("crun", "runc")).present
    _program(tmp_path / "runc", "echo runc version 1.1.5")
    assert probe_tools.oci_runtimes(("crun", "runc")) == found("runc 1.1.5")


def test_an_init_that_needs_a_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "catatonit").symlink_to("/bin/true")
    monkeypatch.setattr(probe_tools, "_PATHS", str(tmp_path))
    assert "dynamically" in probe_tools.catatonit().seen


@pytest.mark.parametrize(("content", "present"), [('{"syscalls": [1, 2]}', True), ("{}", False), ("not json", False)])
def test_only_a_seccomp_profile_passes_for_one(
    content: str, present: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = tmp_path / "seccomp.json"
    profile.write_text(content)
    monkeypatch.setattr(probe_tools, "SECCOMP_PROFILE", profile)
    assert probe_tools.seccomp_profile().present is present


def test_a_range_of_ids_must_hold_all_ids_of_a_sandbox(tmp_path: Path) -> None:
    ranges = tmp_path / "subuid"
    ranges.write_text("ann:100000:65536\nbob:200000:1000\n\nbroken\n")
    assert probe_tools._largest_range(str(ranges), "ann") == 65_536
    assert probe_tools._largest_range(str(ranges), "bob") == 1000
    assert probe_tools._largest_range(str(ranges), "cid") == 0
    assert probe_tools._largest_range(str(tmp_path / "absent"), "ann") == 0


def test_inotify_names_the_limits_that_are_low() -> None:
    assert probe_kernel.inotify(1, 1).present
    finding = probe_kernel.inotify(1 << 40, 1)
    assert not finding.present
    assert "max_user_instances" in finding.resolution
    assert "max_user_watches" not in finding.resolution


def test_root_is_a_user_id_and_the_right_to_mount() -> None:
    assert probe_kernel.root().present is (os.geteuid() == 0 and probe_kernel._has_capability(21))


def test_open_files_compares_with_the_hard_limit() -> None:
    assert probe_kernel.open_files(1).present
    assert not probe_kernel.open_files(1 << 40).present


def test_disk_space_looks_at_the_nearest_directory_that_exists(tmp_path: Path) -> None:
    assert str(tmp_path) in probe_kernel.disk_space(tmp_path / "not" / "yet").seen


def test_stray_controllers_on_a_hybrid_host_are_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_cgroups, "version_1_mount", lambda name: Path("/sys/fs/cgroup") / name)
    monkeypatch.setattr(probe_cgroups, "controllers", lambda: frozenset({"hugetlb"}))
    finding = probe_cgroups.stray_controllers()
    assert not finding.present
    assert "mount -t cgroup -o hugetlb" in finding.resolution


def test_controllers_of_a_unified_host_are_not_stray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_cgroups, "version_1_mount", lambda name: None)
    monkeypatch.setattr(probe_cgroups, "controllers", lambda: frozenset({"memory", "pids"}))
    assert probe_cgroups.stray_controllers().present


def test_a_refusal_names_what_was_refused() -> None:
    assert refused(OSError(13, "Permission denied"), "/dev/kvm").seen == "/dev/kvm: Permission denied"


def _program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
