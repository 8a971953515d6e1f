"""The directory of a worker: who holds it, what its episodes were asked to be, and how those that ended ended.

A spec is on the disk before the log of its episode begins, so that a beginning that was acknowledged is one that can be
gone on with; a spec without a log is an episode that has not begun yet (`dsec.worker.episodes.begun`). What an ended
episode came to is written down beside it, so that a worker with thousands of them starts without reading their logs;
that file is only a short cut. See docs/formats/worker.md.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from dsec.base.errors import CapabilityMissingError, DsecError, StateCorruptedError, StateLockedError
from dsec.episode.identity import check_episode_id
from dsec.episode.spec import EpisodeInfo, EpisodeSpec
from dsec.model.value import Value
from dsec.stores.episode_log_disk import Disk, HostDisk, write_new
from dsec.stores.episode_log_place import disk_failure

SPEC_VERSION = 1
_WORKER_ID = re.compile(r"wrk-[0-9a-f]{10}")


class KeptSpec(Value, frozen=True):
    """What ``<id>.json`` holds.

    Attributes:
        version: of the format.
        created_at_s: wall-clock seconds since the epoch.
        spec: what was asked for.
    """

    version: int
    created_at_s: float
    spec: EpisodeSpec


class _Version(msgspec.Struct):
    version: int


class Shelf:
    """One worker's directory; its calls block.

    Args:
        directory: of the worker.
        disk: the file operations.
    """

    def __init__(self, directory: Path, *, disk: Disk | None = None) -> None:
        self._directory = directory
        self._episodes = directory / "episodes"
        self._disk = disk or HostDisk()

    @property
    def directory(self) -> Path:
        """The worker's."""
        return self._directory

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Make the directory if needed, and hold it.

        Raises:
            StateLockedError: another worker has it.
            HostDiskFullError, PlatformError: it cannot be made.
        """
        try:
            self._disk.make_directory(self._episodes)
            descriptor = os.open(self._directory / "worker.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise disk_failure(self._directory, error) from error
        try:
            self._lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise StateLockedError(
                f"another worker holds {self._directory}",
                detail=f"process id of the holder: {holder}",
                resolution="talk to that worker through its socket, end it, or use another directory",
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def worker_id(self) -> str:
        """Return the worker's id, making it on first use; it stands in leases and logs, and stays with the directory.

        Raises:
            HostDiskFullError, PlatformError: it cannot be written.
            StateCorruptedError: what is there is none. Another's would take the leases of that one from it.
        """
        path = self._directory / "worker.id"
        try:
            name = self._disk.read(path).decode("ascii", "replace").strip()
        except FileNotFoundError:
            name = f"wrk-{secrets.token_hex(5)}"
            self._write(path, f"{name}\n".encode())
        except OSError as error:
            raise disk_failure(self._directory, error) from error
        if _WORKER_ID.fullmatch(name) is None:
            raise StateCorruptedError(f"{path} holds no id of a worker", resolution="remove it: a new one is made")
        return name

    def log_directory(self, episode_id: str) -> Path:
        """Return where the log of an episode is."""
        return self._episodes / check_episode_id(episode_id)

    # -- specs ---------------------------------------------------------------------------------------------------------

    def episode_ids(self) -> list[str]:
        """Return the episodes that were ever asked for here."""
        names = self._disk.names(self._episodes)
        return [name.removesuffix(".json") for name in names if name.endswith(".json") and not name.startswith(".")]

    def add(self, episode_id: str, kept: KeptSpec) -> None:
        """Write a spec down; it is on the disk when this returns.

        Raises:
            HostDiskFullError, PlatformError: it cannot be written; nothing counts.
        """
        self._write(self._episodes / f"{check_episode_id(episode_id)}.json", msgspec.json.encode(kept))

    def forget(self, episode_id: str) -> None:
        """Take back a spec whose episode could not begin; nobody was told that it has. What fails is met again."""
        try:
            if not self._disk.names(self.log_directory(episode_id)):
                self._disk.remove(self._episodes / f"{episode_id}.json")
        except OSError:
            return

    def spec(self, episode_id: str) -> KeptSpec:
        """Return what an episode was asked to be.

        Raises:
            CapabilityMissingError: a newer version wrote it.
            StateCorruptedError: it is no spec, or no file.
        """
        path = self._episodes / f"{episode_id}.json"
        try:
            data = self._disk.read(path)
            version = msgspec.json.decode(data, type=_Version).version
            if version > SPEC_VERSION:
                raise CapabilityMissingError(
                    f"{path} is of version {version}, and this program knows versions up to {SPEC_VERSION}",
                    resolution="use the version of dsec that wrote it, or a newer one",
                )
            return msgspec.json.decode(data, type=KeptSpec)
        except (msgspec.DecodeError, RecursionError, OSError) as error:
            raise StateCorruptedError(
                f"{path} is no spec of an episode", detail=str(error), resolution="restore it from a copy"
            ) from error

    # -- ends ----------------------------------------------------------------------------------------------------------

    def end(self, info: EpisodeInfo) -> None:
        """Write down what an ended episode came to. What fails costs time at the next start, and no more."""
        try:
            self._write(self._end_path(info.episode_id), msgspec.json.encode(info))
        except DsecError:
            return

    def ended(self, episode_id: str) -> EpisodeInfo | None:
        """Return what an episode came to; None: it has not ended, or nobody wrote it down so that it can be read."""
        try:
            return msgspec.json.decode(self._disk.read(self._end_path(episode_id)), type=EpisodeInfo)
        except (OSError, RecursionError, msgspec.DecodeError, DsecError):
            return None

    def _end_path(self, episode_id: str) -> Path:
        return self._episodes / f"{episode_id}.end"

    def _write(self, path: Path, data: bytes) -> None:
        """Write a file that is there whole or not at all."""
        disk, temporary = self._disk, path.with_name(f".{path.name}.tmp")
        try:
            disk.close(write_new(disk, temporary, data))
            disk.rename(temporary, path)
            disk.sync_directory(path.parent)
        except OSError as error:
            raise disk_failure(path.parent, error) from error
