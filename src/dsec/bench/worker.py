"""`worker`: what 800 episodes take that one worker drives at once, and how many rounds it brings through.

The worker is a process of its own, looked at from outside: its resident memory with all episodes under way, less that
of the same worker with none, for each episode. All have rounds behind them and wait for a chat model most of the time,
over real connections; sandboxes do nothing, since it is the worker that is measured. The reference is what a loop takes
that only asks the model and keeps what it heard: no log, no recovery, nothing that could go on after a death.
A round's way to the disk is put beside a bare write and fsync of as many bytes at the same time on the same disk.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread
import msgspec

from dsec.base.errors import RuntimeFailedError
from dsec.base.units import KIB
from dsec.bench.context import PureContext
from dsec.bench.distribution import distribution, ratio
from dsec.bench.processes import descriptors, resident_bytes
from dsec.bench.report import Report, make_report
from dsec.bench.worker_child import Job

_EPISODES, _HISTORY, _RESULT_BYTES = 800, 20, 4 * KIB
_THINK_S, _LOOK_S = 8.0, 0.5
_BARE = "bare loops: the same calls, what they heard in lists, no log"
_LIMIT_KB = 200


@dataclass(slots=True)
class _Seen:
    """What was seen of one process."""

    idle_bytes: int = 0
    taken_up_s: float = 0.0
    loaded_bytes: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    commits_s: list[float] = field(default_factory=list)
    syncs_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    seconds: float = 0.0
    descriptors: int = 0

    def each_kb(self, episodes: int) -> list[float]:
        return [(loaded - self.idle_bytes) / episodes / 1e3 for loaded in self.loaded_bytes]


async def bench_worker(context: PureContext) -> Report:
    """Measure a worker with many episodes, beside bare loops."""
    episodes, looks = context.options.count or _EPISODES, context.options.samples
    with _model() as url:
        context.progress.say(f"{episodes} episodes with {_HISTORY} rounds each are laid out, taken up and gone on with")
        ours = await anyio.to_thread.run_sync(_measure, "worker", url, episodes, looks)
        context.progress.say(f"{episodes} bare loops")
        bare = await anyio.to_thread.run_sync(_measure, "bare", url, episodes, looks)
    context.note(
        f"{_HISTORY} rounds behind each, results of {_RESULT_BYTES} bytes of program text, {_THINK_S:g} s mean thinking"
    )
    each = distribution(ours.each_kb(episodes))
    if episodes >= _EPISODES:
        context.note(
            f"the promise is {_LIMIT_KB} kB for each of {_EPISODES}: {'held' if each.p99 <= 200 else 'MISSED'}"
        )
    return make_report(
        "worker",
        "kB",
        "lower",
        ours=each,
        references={_BARE: distribution(bare.each_kb(episodes))},
        series=_series(ours, bare, episodes),
        host=context.host,
    )


def _series(ours: _Seen, bare: _Seen, episodes: int) -> list[dict[str, Any]]:
    commits, syncs = distribution(ours.commits_s, scale=1e3), distribution(ours.syncs_s, scale=1e3)
    return [
        {
            "what": f"{episodes} episodes",
            "rounds_per_s": round(sum(ours.rates) / len(ours.rates), 1),
            "bare_rounds_per_s": round(sum(bare.rates) / len(bare.rates), 1),
            "cpu_ms_each_round": round(1e3 * ours.cpu_s / max(1, len(ours.commits_s)), 2),
            "idle_mib": round(ours.idle_bytes / 2**20, 1),
            "loaded_mib": round(max(ours.loaded_bytes) / 2**20, 1),
            "descriptors": ours.descriptors,
        },
        {
            "what": "commit of a round",
            "p50_ms": commits.p50,
            "p99_ms": commits.p99,
            "bare_fsync_p50_ms": syncs.p50,
            "bare_fsync_p99_ms": syncs.p99,
            "to_bare_p50": ratio(commits.p50, syncs.p50),
        },
        {"what": "taking all up after a death", "s": round(ours.taken_up_s, 2)},
    ]


@contextmanager
def _model() -> Iterator[str]:
    command = [sys.executable, "-m", "dsec.bench.worker_model", str(_THINK_S)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


def _measure(kind: Literal["worker", "bare"], url: str, episodes: int, looks: int) -> _Seen:
    directory = Path(tempfile.mkdtemp(prefix="dsec-bench-", dir="/var/tmp"))
    job = Job(
        kind=kind,
        directory=str(directory),
        url=url,
        episodes=episodes,
        history=_HISTORY,
        result_bytes=_RESULT_BYTES,
    )
    command = [sys.executable, "-m", "dsec.bench.worker_child", msgspec.json.encode(job).decode()]
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                return _look(process, looks)
            finally:
                process.kill()
    finally:
        shutil.rmtree(directory)


def _look(process: subprocess.Popen[str], looks: int) -> _Seen:
    seen = _Seen()
    _hear(process)
    seen.idle_bytes = resident_bytes(process.pid)
    seen.taken_up_s = float(_ask(process)["taken_up_s"])
    time.sleep(_THINK_S)  # Until they no longer move in step.
    _ask(process)
    began_s, cpu_s = time.perf_counter(), _cpu_s(process.pid)
    for _ in range(looks):
        time.sleep(_LOOK_S)
        seen.loaded_bytes.append(resident_bytes(process.pid))
        said = _ask(process)
        seen.rates.append(said["rounds"] / said["seconds"])
        seen.commits_s += said["commits_s"]
        seen.syncs_s += said["syncs_s"]
    seen.seconds, seen.cpu_s = time.perf_counter() - began_s, _cpu_s(process.pid) - cpu_s
    seen.descriptors = descriptors(process.pid)
    return seen


def _ask(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return _hear(process)


def _hear(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeFailedError("the measured process ended", detail=f"exit code {process.wait()}")
    heard: dict[str, Any] = json.loads(line)
    return heard


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process (proc(5), fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
