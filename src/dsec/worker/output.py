"""The output directory of a rollout, held by one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType

import msgspec

from dsec.base.errors import DsecError, NotFoundError, StateLockedError
from dsec.episode.frames import scan_frames
from dsec.episode.operations import RoundRecord
from dsec.episode.tools import CommandOutput
from dsec.stores.episode_log_reading import read_episode_log
from dsec.verification.attempt_result import AttemptResult, decode_results, encode_result
from dsec.verification.outcome import Outcome
from dsec.worker.framed_log import FramedLog
from dsec.worker.layout import (
    LOCK_NAME,
    RESULTS_NAME,
    SUMMARY_NAME,
    TESTS_OUTPUT_NAME,
    TRAJECTORY_NAME,
    WORKER_NAME,
    attempt_folder,
)
from dsec.worker.manifest import Manifest, read_manifest, settle_manifest, write_durably
from dsec.worker.summary import Summary, summarise


class OutputDirectory:
    """Results, trajectories and outputs of one rollout.

    Use as a context manager: it takes the directory's lock, cuts torn tails and reads what earlier runs finished.
    """

    def __init__(self, out: Path, manifest: Manifest) -> None:
        """Prepare; `manifest` is what this run is asked to do."""
        self._out = out
        self.manifest = manifest
        self.results: dict[tuple[str, int], AttemptResult] = {}

    def __enter__(self) -> OutputDirectory:
        self._out.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._out / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._take_lock()
            self.manifest = settle_manifest(self._out, self.manifest)
            self._log = FramedLog(self._out / RESULTS_NAME)
            self.results = decode_results(self._log.documents, name=str(self._out / RESULTS_NAME))
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateLockedError(
                f"another process is running the rollout in {self._out}", resolution="wait for it, or use another --out"
            ) from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.__exit__(kind, error, trace)
        os.close(self._lock)

    def is_finished(self, task: str, attempt: int) -> bool:
        """Whether an attempt is never to be run again: it has a verdict, or nobody knows what it did.

        An infrastructure error says nothing about the attempt, so that going on with a rollout tries it again.
        """
        result = self.results.get((task, attempt))
        return result is not None and result.outcome is not Outcome.INFRASTRUCTURE_ERROR

    def is_verified(self, task: str, attempt: int) -> bool:
        """Whether an attempt has a verdict, so that nothing of it is needed any more."""
        result = self.results.get((task, attempt))
        return result is not None and result.outcome.is_verdict

    def open_trajectory(self, task: str, attempt: int) -> FramedLog:
        """Open the log of an attempt's trajectory; tries of earlier runs stay in it."""
        return FramedLog(attempt_folder(self._out, task, attempt) / TRAJECTORY_NAME)

    async def finish(self, result: AttemptResult, tests: CommandOutput | None) -> None:
        """Record a finished attempt; once this returns it is never run again."""
        if tests is not None:
            path = attempt_folder(self._out, result.task, result.attempt) / TESTS_OUTPUT_NAME
            path.write_bytes(tests.stdout.data + tests.stderr.data)
        await self._log.append(encode_result(result))
        self.results[result.key] = result

    def write_summary(self, summary: Summary) -> None:
        """Write ``summary.json``."""
        write_durably(self._out / SUMMARY_NAME, msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")


def read_results(out: Path) -> tuple[Manifest, list[AttemptResult]]:
    """Return what a rollout has recorded so far, without taking its lock; a torn tail is left out.

    Raises:
        NotFoundError: there is no rollout in `out`.
        StateCorruptedError: what is there does not verify.
    """
    manifest = read_manifest(out)
    if manifest is None:
        raise NotFoundError(f"there is no rollout in {out}", resolution="name the --out of `dsec rollout run`")
    path = out / RESULTS_NAME
    data = path.read_bytes() if path.exists() else b""
    documents = scan_frames(data, name=str(path)).documents
    return manifest, list(decode_results(documents, name=str(path)).values())


def recorded_summary(out: Path) -> tuple[Summary, list[AttemptResult]]:
    """Return the sums over what is recorded now, and the results themselves.

    Raises:
        NotFoundError: there is no rollout in `out`.
        StateCorruptedError: what is there does not verify.
    """
    manifest, results = read_results(out)
    summary = summarise(
        results,
        rollout_id=manifest.rollout_id,
        policy=manifest.policy,
        planned=len(manifest.tasks) * manifest.attempts,
        skipped=_recorded_skips(out / SUMMARY_NAME),
    )
    return summary, results


def read_rounds(
    out: Path, result: AttemptResult, *, elsewhere: Mapping[str, Sequence[RoundRecord]] = MappingProxyType({})
) -> Sequence[RoundRecord]:
    """Return the rounds of an attempt that was an episode; what cannot be read is not shown, and nothing else fails.

    Args:
        out: of the rollout.
        result: of the attempt.
        elsewhere: rounds of episodes whose logs are not in `out`, by their ids.
    """
    if result.episode is None:
        return ()
    if result.episode.episode_id in elsewhere:
        return elsewhere[result.episode.episode_id]
    try:
        return read_episode_log(out / WORKER_NAME / "episodes" / result.episode.episode_id).rounds
    except DsecError:
        return ()


def _recorded_skips(path: Path) -> dict[str, str]:
    """Return the tasks that the last finished run left out; they are only in its summary."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Summary).skipped
    except (FileNotFoundError, msgspec.DecodeError):
        return {}
