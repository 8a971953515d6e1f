"""Mount the root of an instance: an overlay of ID-mapped layers.

See docs/container-backend.md. Two ways, the second only where the first is refused: layers as detached mounts that
nobody sees, and, for kernels that do not take those as layers, layers attached below the bundle for the moment of
mounting.

An image may hold device nodes, of real numbers. Here they are names and nothing more: the overlay is mounted `nodev`
(that its layers are does not help, since overlayfs opens a device under the flags of its own mount), and no guest can
take that flag away, since its mount namespace belongs to a lesser user namespace (mount_namespaces(7)). Nor can it have
overlayfs copy one into the writable layer, by a chmod for example, since that is done with the capabilities of whoever
mounted, and CAP_MKNOD is none of them: what snapshots and migrations carry holds no devices, whatever images hold.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsec.base.errors import HostDiskFullError, RuntimeFailedError
from dsec.linux import mounts
from dsec.linux.identity import ALL_BUT_DEVICES, file_identity


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayRequest:
    """What to mount.

    Attributes:
        target: existing empty directory.
        layer_paths: from the lowest up.
        upper, work: directories of one writable layer; they have one parent.
        user_namespace_fd: namespace whose map the layers get; None: they are taken as they are, by an ordinary user.
        first_host_id: host id of the root inside.
    """

    target: Path
    layer_paths: Sequence[Path]
    upper: Path
    work: Path
    user_namespace_fd: int | None
    first_host_id: int


LayerPaths = Callable[[OverlayRequest], AbstractContextManager[tuple[list[str], str]]]
"""Makes the layers reachable while the overlay is mounted: their paths from the top down, and the writable one."""


class OverlayMounter:
    """Mounts overlays, and remembers which way works on this kernel."""

    def __init__(self, *, detached: bool = True) -> None:
        self._detached = detached

    def mount(self, request: OverlayRequest) -> None:
        """Mount the overlay at the target.

        Raises:
            HostDiskFullError: no room for overlayfs's work directory.
            RuntimeFailedError: the kernel refused, with its words.
        """
        try:
            if request.user_namespace_fd is None:
                _mount_as_user(request)
                return
            if self._detached:
                try:
                    _mount(request, _detached_layers)
                    return
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    self._detached = False  # Before Linux 6.15 overlayfs takes only layers that are mounted somewhere.
            _mount(request, _attached_layers)
        except OSError as error:
            kind = HostDiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else RuntimeFailedError
            raise kind(f"cannot mount the root at {request.target}", detail=str(error)) from error


def _mount(request: OverlayRequest, layers: LayerPaths) -> None:
    with layers(request) as (lowers, writable):
        options: list[tuple[str, str | None]] = [("lowerdir+", path) for path in lowers]
        options += [
            ("upperdir", f"{writable}/{request.upper.name}"),
            ("workdir", f"{writable}/{request.work.name}"),
            ("xino", "off"),
            # Layers come from strangers, with attributes by which one could say that a directory, or a file's content,
            # is elsewhere. A kernel may be set to follow them.
            ("redirect_dir", "nofollow"),
            ("metacopy", "off"),
            # Without it the end of an instance waits until all that the guest wrote is on the disk (0.7 s for 512 MiB):
            # the kernel syncs an overlay when it is unmounted. Nobody needs that: no instance outlives the kernel.
            ("volatile", None),
        ]
        # Overlayfs works with the identity of whoever mounts it, and host root has no id in these layers.
        root = request.first_host_id
        with file_identity(root, root, privileged=True, capabilities=ALL_BUT_DEVICES):
            overlay = mounts.new_mount("overlay", options, mounts.MOUNT_ATTR_NODEV)
        try:
            mounts.move_mount(overlay, request.target)
        finally:
            os.close(overlay)


def _mount_as_user(request: OverlayRequest) -> None:
    """Mount in a user namespace: overlayfs keeps its own attributes in ``user.``, since ``trusted.`` is the host's."""
    options: list[tuple[str, str | None]] = [("lowerdir+", str(path)) for path in reversed(request.layer_paths)]
    options += [("upperdir", str(request.upper)), ("workdir", str(request.work)), ("xino", "off"), ("userxattr", None)]
    overlay = mounts.new_mount("overlay", options, mounts.MOUNT_ATTR_NODEV)
    try:
        mounts.move_mount(overlay, request.target)
    finally:
        os.close(overlay)


@contextmanager
def _mapped(paths: Sequence[Path], user_namespace_fd: int) -> Iterator[list[int]]:
    descriptors: list[int] = []
    try:
        for path in paths:
            descriptors.append(mounts.open_tree(path))
            mounts.map_ids(descriptors[-1], user_namespace_fd)
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _sources(request: OverlayRequest) -> list[Path]:
    """All trees to map: layers from the top down, as overlayfs counts, then the writable layer."""
    return [*reversed(request.layer_paths), request.upper.parent]


@contextmanager
def _detached_layers(request: OverlayRequest) -> Iterator[tuple[list[str], str]]:
    assert request.user_namespace_fd is not None
    with _mapped(_sources(request), request.user_namespace_fd) as descriptors:
        paths = [f"/proc/self/fd/{descriptor}" for descriptor in descriptors]
        yield paths[:-1], paths[-1]


@contextmanager
def _attached_layers(request: OverlayRequest) -> Iterator[tuple[list[str], str]]:
    assert request.user_namespace_fd is not None
    staging = request.target.parent / "layers"
    with ExitStack() as stack, _mapped(_sources(request), request.user_namespace_fd) as descriptors:
        paths = [staging / str(index) for index in range(len(descriptors))]
        for path, descriptor in zip(paths, descriptors, strict=True):
            path.mkdir(parents=True, exist_ok=True)
            mounts.move_mount(descriptor, path)
            stack.callback(mounts.unmount, path, detach=True)
        yield [str(path) for path in paths[:-1]], str(paths[-1])
