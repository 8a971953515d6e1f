"""buildah's storage, below the image store: its base images, the steps it keeps for later builds, and their removal.

The overlay driver is used where it works: with it a build of three steps took 0.7 s, with vfs, which copies the whole
tree at every step, 4 to 6 s (2 cores, base of 240 MB).

Everything in it can be made again from the image store and the Dockerfiles: it is a cache, and may be removed whenever
no build runs. Two locks say so: builds hold `active.lock` shared, also in the programs that they start, and whoever
clears holds it alone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dsec.base.errors import ConflictError, ImageNotFoundError, RuntimeFailedError
from dsec.images import recipes
from dsec.images.command import Progress, run, silent
from dsec.images.durable import exclusive
from dsec.images.names import IMPLIED_PREFIXES
from dsec.images.oci_export import export_oci_layout
from dsec.images.staging import WorkDirectory
from dsec.images.store import LocalImageStore
from dsec.linux.mounts import mount_table, mounts_under, unmount
from dsec.model.image import ImageInfo

_CONTENT = ("storage", "run")
"""Its directories, beside the locks and the name of the driver."""


class BuildStorage:
    """The storage of one image store."""

    def __init__(self, store: LocalImageStore) -> None:
        self._store = store
        self._root = store.root / "build"
        self._root.mkdir(mode=0o700, exist_ok=True)
        self._lock_fd = -1

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Say that a build runs. Whoever finds that none does clears away what killed ones left.

        A build that is killed takes buildah with it in the middle of a step, whose working container and mount stay.
        Its programs hold the lock too, so that these are cleared only when they are gone.
        """
        with (self._root / "active.lock").open("a") as lock:
            self._lock_fd = lock.fileno()
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._clear()
            except BlockingIOError:
                pass
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield

    def prune(self) -> int:
        """Remove everything, and return how many bytes that were.

        Raises:
            ConflictError: a build runs.
            RuntimeFailedError: something of it could not be removed.
        """
        with (self._root / "active.lock").open("a") as lock:
            self._lock_fd = lock.fileno()
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConflictError("a build runs", resolution="prune when it has ended") from error
            self._clear()
            size_bytes = self.size_bytes()
            for name in _CONTENT:
                try:
                    shutil.rmtree(self._root / name)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise RuntimeFailedError(
                        f"{self._root / name} could not be removed", detail=str(error), resolution="remove it as root"
                    ) from error
            return size_bytes

    def size_bytes(self) -> int:
        """Return what it takes on the disk."""
        return sum(_disk_bytes(self._root / name) for name in _CONTENT)

    def _clear(self) -> None:
        containers = self._root / "storage" / f"{self._driver()}-containers" / "containers.json"
        if containers.exists() and containers.read_text().strip() not in ("", "[]", "null"):
            with self._store.work_directory() as work:
                self.buildah(["rm", "--all"], work)
        for entry in list(mounts_under(self._root)):
            unmount(entry.target, detach=True)

    def buildah(
        self,
        command: Sequence[str],
        work: WorkDirectory,
        *,
        progress: Progress = silent,
        output: Path | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Run a buildah command on this storage."""
        roots = [f"--root={self._root / 'storage'}", f"--runroot={self._root / 'run'}"]
        argv = ["buildah", *roots, f"--storage-driver={self._driver()}", *command]
        environment = os.environ | {"TMPDIR": str(work.path)}
        locks = (work.lock_fd, self._lock_fd)
        if output is None:
            run(argv, package="buildah", progress=progress, env=environment, keep_fds=locks)
            return
        with output.open("wb") as file:
            run(argv, package="buildah", progress=progress, env=environment, keep_fds=locks, stdout=file, cwd=cwd)

    def _driver(self) -> str:
        """Return ``overlay``, or ``vfs`` where the state directory lies on an overlay itself. Once chosen it stays."""
        chosen = self._root / "driver"
        if not chosen.exists():
            chosen.write_text("vfs" if _is_on_overlay(self._root) else "overlay")
        return chosen.read_text().strip()

    def base(self, name: str, progress: Progress) -> str:
        """Hand a stored image to buildah, if it has not got it, and return the name it has there."""
        image = self.image_of(name, progress)
        reference = f"localhost/dsec-base:{image.image_id.removeprefix('sha256:')}"
        with exclusive(self._root / "bases.lock"), self._store.work_directory() as work:
            known = work.path / "known"
            self.buildah(["images", "--format={{.Name}}:{{.Tag}}"], work, output=known)
            if reference not in known.read_text().split():
                progress(f"handing the base image {image.name} to buildah; this happens once")
                export_oci_layout(self._store, image.name, work.path / "base")
                pulled = work.path / "pulled"
                # By a relative path: buildah makes a name of it, in which a path's dots and capitals are not allowed.
                self.buildah(["pull", "--quiet", "oci:base:latest"], work, output=pulled, cwd=work.path)
                self.buildah(["tag", pulled.read_text().split()[-1], reference], work)
        return reference

    def image_of(self, name: str, progress: Progress) -> ImageInfo:
        """Return the image that FROM means: as written, or without the registry that Docker implies."""
        for prefix in IMPLIED_PREFIXES:
            if name.startswith(prefix):
                try:
                    return recipes.ensure(self._store, name.removeprefix(prefix), progress=progress)
                except ImageNotFoundError:
                    break
        return recipes.ensure(self._store, name, progress=progress)


def _is_on_overlay(path: Path) -> bool:
    real = os.path.realpath(path)
    over = [entry for entry in mount_table() if real == entry.target or real.startswith(entry.target.rstrip("/") + "/")]
    return max(over, key=lambda entry: len(entry.target)).kind == "overlay"


def _disk_bytes(directory: Path) -> int:
    """Return the blocks of a tree, a file with several links once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for folder, directories, files in os.walk(directory):
        for name in (*directories, *files):
            status = os.lstat(os.path.join(folder, name))
            inode = (status.st_dev, status.st_ino)
            if inode not in seen:
                seen.add(inode)
                total += status.st_blocks * 512
    return total
