"""Build images from Dockerfiles with buildah.

``FROM`` means an image of this store. It is handed to buildah as an OCI layout, once, under a name made of its image
id; the result comes back the same way, and the layers of its base are recognised by their diff ids, so that a build
stores only what it adds. Nothing is ever pulled.

Builds run in buildah's chroot isolation with the host's network: whoever may build runs programs on this host.
That is why building is an operation of the operator (`dsec image build`, task preparation) and none of a sandbox.

buildah keeps its storage below the image store, with the overlay driver where it works: with it a build of three steps
took 0.7 s, with vfs, which copies the whole tree at every step, 4 to 6 s (2 cores, base of 240 MB).
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dsec.base.errors import CapabilityMissingError, ExternalCommandError, ImageNotFoundError, PathNotFoundError
from dsec.images import recipes
from dsec.images.build_clients import BOUND_AT, host_settings
from dsec.images.command import Progress, run, silent
from dsec.images.dockerfile import rewrite
from dsec.images.durable import exclusive
from dsec.images.importers.oci_layout import import_oci_layout
from dsec.images.importers.request import ImportRequest
from dsec.images.layers import hex_of
from dsec.images.names import canonical_name
from dsec.images.oci_export import export_oci_layout
from dsec.images.staging import WorkDirectory
from dsec.images.store import LocalImageStore
from dsec.linux.mounts import mount_table, mounts_under, unmount
from dsec.model.image import ImageInfo

_FAILED_STEP = re.compile(r'building at STEP "(.*)": (.*)', re.DOTALL)
_IMPLIED_PREFIXES = ("docker.io/library/", "docker.io/", "localhost/")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """One build.

    Attributes:
        context: directory whose files COPY and ADD may take.
        name: name of the image to make.
        dockerfile: None: ``Dockerfile`` (or ``Containerfile``) in the context.
        arguments: values of the Dockerfile's ARGs.
        cache: keep each step's result for later builds, at the price of a layer a step; otherwise one layer is made.
        progress: takes lines for people.
    """

    context: Path
    name: str
    dockerfile: Path | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    cache: bool = True
    progress: Progress = silent


def build(store: LocalImageStore, request: BuildRequest) -> ImageInfo:
    """Build an image and store it. Blocks, so call it from a thread; many builds may run at once.

    Raises:
        PathNotFoundError: the context or Dockerfile is missing.
        ImageNotFoundError: FROM names an image that is not stored here; the detail names close ones.
        ExternalCommandError: a step failed; the brief is the step, the detail its last words.
        CapabilityMissingError: buildah is not installed, or this is not root.
    """
    if os.geteuid() != 0:
        raise CapabilityMissingError(
            "building an image from a Dockerfile needs root",
            resolution="run as root, or build elsewhere and import the result (dsec image import ARCHIVE --name NAME)",
        )
    canonical_name(request.name)
    text = _read_dockerfile(request)
    storage = _Storage(store)
    settings = host_settings()
    with storage.in_use(), store.work_directory() as work:
        settings.write(work.path / "client")
        (work.path / "Dockerfile").write_text(
            rewrite(
                text,
                resolve=lambda name: storage.base(name, request.progress),
                arguments=request.arguments,
                added=settings.arguments(),
            ),
            encoding="utf8",
        )
        image = _build(storage, request, work)
        try:
            return _import_result(store, storage, image, request, work)
        finally:
            if not request.cache:
                storage.buildah(["rmi", "--force", image], work)


def _read_dockerfile(request: BuildRequest) -> str:
    if not request.context.is_dir():
        raise PathNotFoundError(f"the build context {request.context} is not a directory")
    usual = [request.context / name for name in ("Dockerfile", "Containerfile")]
    named = [request.dockerfile] if request.dockerfile else usual
    for path in named:
        if path.is_file():
            return path.read_text(encoding="utf8", errors="surrogateescape")
    raise PathNotFoundError(f"there is no {named[0]}", resolution="name the Dockerfile with -f")


def _build(storage: _Storage, request: BuildRequest, work: WorkDirectory) -> str:
    """Run the Dockerfile and return buildah's id of the image."""
    id_file = work.path / "id"
    command = [
        "bud",
        "--pull=never",
        "--isolation=chroot",
        "--network=host",
        f"--layers={'true' if request.cache else 'false'}",
        "--format=oci",
        f"--volume={work.path / 'client'}:{BOUND_AT}:ro",
        f"--iidfile={id_file}",
        f"--file={work.path / 'Dockerfile'}",
        *(f"--build-arg={key}={value}" for key, value in request.arguments.items()),
        str(request.context.absolute()),
    ]
    try:
        storage.buildah(command, work, progress=request.progress)
    except ExternalCommandError as error:
        raise _explain(error) from error
    return id_file.read_text().strip().removeprefix("sha256:")


def _explain(error: ExternalCommandError) -> ExternalCommandError:
    """Say which step failed, if buildah says so."""
    step = _FAILED_STEP.search(error.detail)
    if step is None:
        return error
    return ExternalCommandError(
        f"the build failed at: {step.group(1)}: {step.group(2)}",
        detail=error.detail,
        resolution="correct the Dockerfile; the lines above are what the step said last",
    )


def _import_result(
    store: LocalImageStore, storage: _Storage, image: str, request: BuildRequest, work: WorkDirectory
) -> ImageInfo:
    request.progress("storing the image")
    layout = work.path / "layout"
    _leave_out_known_layers(store, storage, image, layout, work)
    # zstd takes a quarter of gzip's time, and uncompressed is not offered.
    storage.buildah(["push", "--quiet", "--format=oci", "--compression-format=zstd", image, f"oci:{layout}"], work)
    return import_oci_layout(
        store,
        ImportRequest(
            path=layout,
            name=request.name,
            progress=request.progress,
            source=f"built from {request.context}",
            left_out=frozenset({BOUND_AT.strip("/").encode()}),
        ),
    )


def _leave_out_known_layers(
    store: LocalImageStore, storage: _Storage, image: str, layout: Path, work: WorkDirectory
) -> None:
    """Prepare the layout so that buildah does not write the layers that are stored already.

    It passes over blobs whose files exist, whatever is in them; the import does not open those either.
    Writing a base of 240 MB only to ignore it would be most of a cached build's time.
    """
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    inspected = work.path / "inspected"
    template = "{{range .OCIv1.RootFS.DiffIDs}}{{.}} {{end}}"
    storage.buildah(["inspect", "--type=image", f"--format={template}", image], work, output=inspected)
    for diff_id in inspected.read_text().split():
        if store.has_diff(diff_id):
            (blobs / hex_of(diff_id)).touch()


class _Storage:
    """buildah's storage below the image store."""

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
        image = self._find(name, progress)
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

    def _find(self, name: str, progress: Progress) -> ImageInfo:
        """Return the image that FROM means: as written, or without the registry that Docker implies."""
        for prefix in _IMPLIED_PREFIXES:
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
