"""The policy that does again what a recorded attempt did."""

from __future__ import annotations

from pathlib import Path

from dsec.base.errors import NotFoundError
from dsec.episode.frames import scan_frames
from dsec.episode.round import Decision
from dsec.episode.trajectory import decode_events, last_try
from dsec.worker.layout import TRAJECTORY_NAME, attempt_folder
from dsec.worker.policies.port import PolicyContext
from dsec.worker.policies.script import RecordedPolicy


def _recorded(out: Path, task: str, attempt: int) -> Path:
    """Return the trajectory to replay; a run with fewer attempts is gone through again and again."""
    folder = attempt_folder(out, task, 1).parent
    numbers = sorted(int(entry.name) for entry in folder.glob("*") if entry.name.isdigit())
    if not numbers:
        raise NotFoundError(f"{out} has no trajectory of task {task}", resolution="name the --out of a run that has")
    return attempt_folder(out, task, numbers[(attempt - 1) % len(numbers)]) / TRAJECTORY_NAME


def read_decisions(path: Path) -> tuple[Decision, ...]:
    """Return what the last try of a trajectory asked for; a torn tail is left out.

    Raises:
        NotFoundError: it cannot be read.
        StateCorruptedError: it does not verify.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotFoundError(f"the trajectory {path} cannot be read", detail=str(error)) from error
    documents = scan_frames(data, name=str(path)).documents
    return tuple(item.decision for item in last_try(decode_events(documents, name=str(path))))


def replay_policy(out: Path, context: PolicyContext) -> RecordedPolicy:
    """Return the policy that repeats what `out` recorded for this task and attempt."""
    rounds = read_decisions(_recorded(out, context.task.name, context.attempt))
    return RecordedPolicy(rounds, reason="the recording is over")
