"""`dsec bench` prints one JSON object of the promised form, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dsec.bench.command import bench
from dsec.bench.registry import BENCHMARKS
from dsec.linux.mounts import mount_table, mounts_under, unmount
from dsec.testing.host_state import HostState

PURE = frozenset(benchmark.name for benchmark in BENCHMARKS if benchmark.pure)
KEYS = {"benchmark", "unit", "better", "ours", "references", "ratios", "series", "host"}
TINY: dict[str, tuple[str, ...]] = {
    "create": ("--samples", "2"),
    "pool": ("--samples", "2"),
    "exec": ("--samples", "2"),
    "files": ("--samples", "2", "--size", "2M"),
    "rollback": ("--samples", "2", "--size", "2M"),
    "lazy-start": ("--samples", "1", "--size", "2M"),
    "lazy-burst": ("--samples", "1", "--size", "2M", "--count", "11"),
    "checkpoint": ("--samples", "2", "--size", "2M"),
    "fork": ("--samples", "2", "--count", "3"),
    "fingerprint": ("--samples", "2", "--count", "200"),
    "snapshot": ("--samples", "2", "--count", "3", "--size", "4M"),
    "density": ("--count", "8"),
    "rollout": ("--count", "2", "--samples", "1"),
    "placement": ("--count", "64", "--samples", "1"),
    "herd": ("--samples", "2"),
    "commit": ("--samples", "2", "--count", "20"),
    "replay": ("--samples", "2", "--count", "20"),
}
NAMES = tuple(TINY)


def test_every_promised_benchmark_is_there_with_a_line_of_help() -> None:
    listed = CliRunner().invoke(bench, ["--list"])
    assert listed.exit_code == 0
    lines = [line.split(maxsplit=1) for line in listed.output.splitlines()]
    assert set(NAMES) <= {name for name, _ in lines}
    assert all(text for _, text in lines)


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.name)
def test_every_benchmark_can_be_loaded(benchmark: Any) -> None:
    assert callable(benchmark.load())


@pytest.mark.parametrize(
    "argv", [["create", "--samples", "0"], ["density", "--count", "-1"], ["create", "--count", "1"]]
)
def test_senseless_options_are_refused(argv: list[str]) -> None:
    assert CliRunner().invoke(bench, argv).exit_code == 2


@pytest.fixture
def work_dir() -> Iterator[Path]:
    """A directory that everybody may pass through, which pytest's own are not."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o711)
        yield Path(name)
        for entry in mounts_under(name):  # Of a benchmark that had to be killed.
            unmount(entry.target, detach=True)


def said_at_the_end(bench: subprocess.Popen[bytes]) -> str:
    """Wait until a benchmark that was asked to end has ended; return what it said."""
    try:
        return bench.communicate(timeout=240)[1].decode()
    finally:
        bench.kill()


def run(name: str, work_dir: Path) -> subprocess.CompletedProcess[bytes]:
    """Run as a user would: only so is stdout the whole of what is printed."""
    argv = [sys.executable, "-m", "dsec", "bench", name, "--json"]
    if name not in PURE:
        argv += ["--without-docker", "--work-dir", str(work_dir)]
    return subprocess.run([*argv, *TINY[name]], capture_output=True, check=False, timeout=280)


def check_distribution(value: dict[str, Any]) -> None:
    assert set(value) == {"p50", "p95", "p99", "n"}
    assert 0 < value["p50"] <= value["p95"] <= value["p99"]
    assert value["n"] >= 1


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("name", NAMES)
def test_it_prints_one_object_of_the_promised_form_and_leaves_nothing(name: str, work_dir: Path) -> None:
    done = run(name, work_dir)
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads(done.stdout)
    assert set(report) == KEYS
    assert report["benchmark"] == name
    assert report["better"] in ("lower", "higher")
    check_distribution(report["ours"])
    assert report["references"]
    for reference in report["references"].values():
        check_distribution(reference)
    assert set(report["ratios"]) == set(report["references"])
    assert all(isinstance(row, dict) and row for row in report["series"])
    assert {"kernel", "cpu", "cores", "load_average_at_start", "notes"} <= set(report["host"])
    assert not list(work_dir.iterdir())
    assert not [entry.target for entry in mount_table() if entry.target.startswith(str(work_dir))]


@pytest.mark.slow
@pytest.mark.root
def test_people_get_a_table(work_dir: Path) -> None:
    argv = [sys.executable, "-m", "dsec", "bench", "pool", "--samples", "1", "--work-dir", str(work_dir)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "OURS/REFERENCE" in done.stdout


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_that_is_asked_to_end_takes_away_what_it_made(work_dir: Path, number: int) -> None:
    argv = [sys.executable, "-m", "dsec", "bench", "pool", "--samples", "10000", "--work-dir", str(work_dir)]
    bench = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while bench.poll() is None and not list(work_dir.glob("*/embedded/volume/layers/sbx-*")):
        time.sleep(0.02)
    (state_dir,) = work_dir.glob("*/embedded")
    node_id = (state_dir / "node.id").read_text().strip()
    bench.send_signal(number)
    said = said_at_the_end(bench)
    assert bench.returncode not in (0, -number), said
    assert not list(work_dir.iterdir())
    assert not [entry.target for entry in mount_table() if entry.target.startswith(str(work_dir))]
    left = HostState.read(node_id, Path("/run/dsec") / node_id)
    assert not left.processes
    assert not left.run_entries


@pytest.mark.slow
@pytest.mark.root
def test_one_with_a_link_and_a_layer_daemon_leaves_neither_when_it_is_asked_to_end(work_dir: Path) -> None:
    argv = [sys.executable, "-m", "dsec", "bench", "lazy-burst", "--count", "1", "--size", "2M", "--samples", "10000"]
    bench = subprocess.Popen([*argv, "--work-dir", str(work_dir)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while bench.poll() is None and not list(work_dir.glob("*/embedded/images/lazy/served/*")):
        time.sleep(0.02)
    bench.send_signal(signal.SIGTERM)
    said = said_at_the_end(bench)
    assert bench.returncode not in (0, -signal.SIGTERM), said
    assert not list(work_dir.iterdir())
    assert not [entry.target for entry in mount_table() if entry.target.startswith(str(work_dir))]
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [line for line in running if str(work_dir).encode() in line]


@pytest.mark.root
def test_a_directory_that_the_references_cannot_reach_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    done = run("pool", tmp_path)
    assert done.returncode == 64
    assert b"--work-dir" in done.stderr
    assert not done.stdout
