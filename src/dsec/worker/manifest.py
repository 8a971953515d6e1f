"""The manifest of a rollout: what was asked for, so that it is gone on with and not mixed with something else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dsec.base.errors import AlreadyExistsError, StateCorruptedError
from dsec.model.value import Value
from dsec.worker.framed_log import sync_directory
from dsec.worker.layout import MANIFEST_NAME
from dsec.worker.policies.port import PolicySource
from dsec.worker.settings import RolloutSettings
from dsec.worker.tasks.archive import content_digest
from dsec.worker.tasks.task import Task

MANIFEST_VERSION = 1


class Manifest(Value, frozen=True, kw_only=True):
    """What a rollout is. Concurrency and time-outs of ours are not in it: they may change between two runs.

    Attributes:
        rollout_id: in the metadata of every sandbox of it.
        created_at_s: wall-clock seconds since the epoch.
        policy: as named.
        policy_fingerprint: changes when what the policy does changes.
        attempts: attempts at each task.
        verify_in: where the tests run.
        without_network: whether tasks were denied the network they ask for.
        left_out_limits: limits that tasks ask for and were run without.
        tasks: a digest of each task's folder, by name.
    """

    version: int = MANIFEST_VERSION
    rollout_id: str
    created_at_s: float
    policy: str
    policy_fingerprint: str
    attempts: int
    verify_in: str
    without_network: bool
    tasks: dict[str, str]
    left_out_limits: tuple[str, ...] = ()


def make_manifest(
    tasks: Sequence[Task], policy: PolicySource, settings: RolloutSettings, *, rollout_id: str, created_at_s: float
) -> Manifest:
    """Return the manifest of a new rollout."""
    return Manifest(
        rollout_id=rollout_id,
        created_at_s=created_at_s,
        policy=policy.name,
        policy_fingerprint=policy.fingerprint,
        attempts=settings.attempts,
        verify_in=settings.verify_in.value,
        without_network=settings.without_network,
        left_out_limits=tuple(sorted(settings.left_out_limits)),
        tasks={task.name: content_digest(task.folder)[:16] for task in tasks},
    )


def _task_differences(before: dict[str, str], now: dict[str, str]) -> list[str]:
    words = (
        ("tasks that were not in it", sorted(now.keys() - before.keys())),
        ("tasks that are missing now", sorted(before.keys() - now.keys())),
        ("tasks whose files changed", sorted(name for name in now.keys() & before.keys() if now[name] != before[name])),
    )
    return [
        f"{what}: {', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
        for what, names in words
        if names
    ]


def differences(before: Manifest, now: Manifest) -> list[str]:
    """Return what makes two manifests different rollouts, one line each; empty when they are the same."""
    lines = [
        f"{name}: {getattr(before, name)!r} before, {getattr(now, name)!r} now"
        for name in ("policy", "policy_fingerprint", "attempts", "verify_in", "without_network", "left_out_limits")
        if getattr(before, name) != getattr(now, name)
    ]
    return lines + _task_differences(before.tasks, now.tasks)


def read_manifest(out: Path) -> Manifest | None:
    """Return the manifest in `out`, None when there is none.

    Raises:
        StateCorruptedError: it cannot be understood.
    """
    path = out / MANIFEST_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise StateCorruptedError(
            f"{path} is not a manifest of version {MANIFEST_VERSION}", detail=str(error), resolution="use another --out"
        ) from error


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file so that either the old or the new one is there, whatever happens."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def settle_manifest(out: Path, now: Manifest) -> Manifest:
    """Return the manifest that counts: the one in `out` if the rollout is the same, else `now`, written there.

    Raises:
        AlreadyExistsError: `out` holds another rollout; the detail says what differs.
    """
    before = read_manifest(out)
    if before is None:
        write_durably(out / MANIFEST_NAME, msgspec.json.format(msgspec.json.encode(now), indent=2))
        return now
    if lines := differences(before, now):
        raise AlreadyExistsError(
            f"{out} holds a rollout with other settings",
            detail="\n".join(lines),
            resolution="use another --out, or the settings of before",
        )
    return before
