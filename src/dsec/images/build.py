"""Build images from Dockerfiles with buildah.

``FROM`` means an image of this store. It is handed to buildah as an OCI layout, once, under a name made of its image
id; the result comes back the same way, and the layers of its base are recognised by their diff ids, so that a build
stores only what it adds. Nothing is ever pulled.

Builds run in buildah's chroot isolation with the host's network: whoever may build runs programs on this host.
That is why building is an operation of the operator (`dsec image build`, task preparation) and none of a sandbox.

buildah's own storage is `dsec.images.build_storage`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsec.base.errors import (
    BuildFailedError,
    CapabilityMissingError,
    DsecError,
    ExternalCommandError,
    HostDiskFullError,
    PathNotFoundError,
)
from dsec.images.build_clients import BOUND_AT, host_settings
from dsec.images.build_storage import BuildStorage
from dsec.images.command import Progress, silent
from dsec.images.dockerfile import rewrite
from dsec.images.importers.oci_layout import import_oci_layout
from dsec.images.importers.oci_stack import known_diffs
from dsec.images.importers.request import ImportRequest
from dsec.images.layers import hex_of
from dsec.images.merge_plan import DEFAULT_RULE, MergeRule
from dsec.images.names import canonical_name
from dsec.images.staging import WorkDirectory
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageInfo

_FAILED_STEP = re.compile(r'building at STEP "(.*?) ?": (.*?)(?: &imagebuilder|$)', re.MULTILINE | re.DOTALL)
_NOT_PARSED = re.compile(
    r"Error: .*?((?:dockerfile parse error|file with no instructions|no FROM|unknown instr)[^\n]*)"
)
_DISK_FULL = "no space left on device"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """One build.

    Attributes:
        context: directory whose files COPY and ADD may take.
        name: name of the image to make.
        dockerfile: None: ``Dockerfile`` (or ``Containerfile``) in the context.
        arguments: values of the Dockerfile's ARGs.
        cache: keep each step's result for later builds, at the price of a layer a step; otherwise one layer is made.
        merge: which layers become one.
        as_layer: leave out the layers of the image that FROM names: the result is to be stacked on it, or on another.
        progress: takes lines for people.
    """

    context: Path
    name: str
    dockerfile: Path | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    cache: bool = True
    merge: MergeRule = DEFAULT_RULE
    as_layer: bool = False
    progress: Progress = silent


def build(store: LocalImageStore, request: BuildRequest) -> ImageInfo:
    """Build an image and store it. Blocks, so call it from a thread; many builds may run at once.

    Raises:
        PathNotFoundError: the context or Dockerfile is missing.
        ImageNotFoundError: FROM names an image that is not stored here; the detail names close ones.
        BuildFailedError: a step failed; the brief is the step, the detail its last words.
        HostDiskFullError: there was no room for it.
        ExternalCommandError: buildah failed for another reason.
        CapabilityMissingError: buildah is not installed, or this is not root.
    """
    if os.geteuid() != 0:
        raise CapabilityMissingError(
            "building an image from a Dockerfile needs root",
            resolution="run as root, or build elsewhere and import the result (dsec image import ARCHIVE --name NAME)",
        )
    canonical_name(request.name)
    text = _read_dockerfile(request)
    storage = BuildStorage(store)
    settings = host_settings()
    bases: list[ImageInfo] = []

    def resolve(name: str) -> str:
        bases.append(storage.image_of(name, request.progress))
        return storage.base(name, request.progress)

    with storage.in_use(), store.work_directory() as work:
        settings.write(work.path / "client")
        (work.path / "Dockerfile").write_text(
            rewrite(
                text,
                resolve=resolve,
                arguments=request.arguments,
                added=settings.arguments(),
            ),
            encoding="utf8",
        )
        image = _build(storage, request, work)
        try:
            return _import_result(store, storage, image, request, bases, work)
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


def _build(storage: BuildStorage, request: BuildRequest, work: WorkDirectory) -> str:
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


def _explain(error: ExternalCommandError) -> DsecError:
    """Say which step failed, if buildah says so: then it is the Dockerfile's, unless the host's disk is full."""
    if _DISK_FULL in error.detail:
        return HostDiskFullError(
            "the host's disk is full", detail=error.detail, resolution="make room: `dsec image prune`, then build again"
        )
    step = _FAILED_STEP.search(error.detail) or _NOT_PARSED.search(error.detail)
    if step is None:
        return error
    return BuildFailedError(
        f"the build failed at: {': '.join(step.groups())}",
        detail=error.detail,
        resolution="correct the Dockerfile; the lines above are what the step said last",
    )


def _import_result(
    store: LocalImageStore,
    storage: BuildStorage,
    image: str,
    request: BuildRequest,
    bases: Sequence[ImageInfo],
    work: WorkDirectory,
) -> ImageInfo:
    request.progress("storing the image")
    layout = work.path / "layout"
    _leave_out_known_layers(store, storage, image, layout, request, work)
    # zstd takes a quarter of gzip's time, and uncompressed is not offered.
    storage.buildah(["push", "--quiet", "--format=oci", "--compression-format=zstd", image, f"oci:{layout}"], work)
    return import_oci_layout(
        store,
        ImportRequest(
            path=layout,
            name=request.name,
            progress=request.progress,
            merge=request.merge,
            onto=tuple(tuple(layer.digest for layer in base.layers) for base in bases) if request.as_layer else (),
            source=f"built from {request.context}",
            left_out=frozenset({BOUND_AT.strip("/").encode()}),
        ),
    )


def _leave_out_known_layers(
    store: LocalImageStore, storage: BuildStorage, image: str, layout: Path, request: BuildRequest, work: WorkDirectory
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
    for diff_id in known_diffs(store, inspected.read_text().split(), request.merge):
        (blobs / hex_of(diff_id)).touch()
