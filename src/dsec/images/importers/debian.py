"""Make an image from Debian packages with `mmdebstrap`.

The host's own Debian sources, where it has any for the release, name the mirror; otherwise mmdebstrap's default does.
Proxies come from the environment, as for apt. mmdebstrap(1) runs apt on the host and no program of the image before
it is unpacked in its chroot.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dsec.images.command import run
from dsec.images.durable import full_disk_reported
from dsec.images.importers.request import ImportRequest
from dsec.images.importers.rootfs_tar import import_rootfs_tar
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageInfo

FALLBACK_RELEASE = "bookworm"
"""Debian 12: built where the host is no Debian."""

_SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))

_DEVICES = frozenset(
    f"dev/{name}".encode() for name in ("console", "full", "null", "ptmx", "random", "tty", "urandom", "zero")
)
"""Sandboxes and builds have a /dev of their own. An image without device nodes is the same whoever builds it, and an
ordinary user can pull it whole.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DebianRecipe:
    """What to install.

    Attributes:
        packages: beside Debian's required ones and apt.
        hooks: shell commands run at the end on the host with the root of the image as ``$1``.
        release: Debian's code name; None: the host's.
    """

    packages: Sequence[str]
    hooks: Sequence[str] = ()
    release: str | None = None


def import_debian(store: LocalImageStore, request: ImportRequest, recipe: DebianRecipe) -> ImageInfo:
    """Build and import; `request.path` is not used.

    Raises:
        CapabilityMissingError: mmdebstrap is not installed.
        ExternalCommandError: it failed; the detail says how.
        HostDiskFullError: for want of space.
    """
    release = recipe.release or host_release()
    with full_disk_reported("building an image of Debian packages"), store.work_directory() as work:
        target = work.path / "root.tar"
        run(
            _command(recipe, release, target),
            package="mmdebstrap",
            progress=request.progress,
            env=_environment(work.path),
            keep_fds=(work.lock_fd,),
            own_mounts=os.geteuid() == 0,
        )
        told = request.source or f"Debian {release}: {', '.join(recipe.packages)}"
        return import_rootfs_tar(store, replace(request, path=target, source=told, left_out=_DEVICES))


def _command(recipe: DebianRecipe, release: str, target: Path) -> list[str]:
    command = [
        "mmdebstrap",
        "--mode=root" if os.geteuid() == 0 else "--mode=unshare",
        "--variant=minbase",
        "--format=tar",
        f"--include={','.join(recipe.packages)}",
        # Manuals and translations are a third of the files, and no program reads them.
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        # An image is one big virtual environment: `pip install` in it must just work.
        "--dpkgopt=path-exclude=/usr/lib/python3*/EXTERNALLY-MANAGED",
        # What apt computes once and keeps would be 70 MB in the layer of every `RUN apt-get install`.
        '--aptopt=Dir::Cache::pkgcache ""',
        '--aptopt=Dir::Cache::srcpkgcache ""',
        '--aptopt=Acquire::Languages "none"',
        '--aptopt=APT::Install-Recommends "false"',
        *(f"--customize-hook={hook}" for hook in recipe.hooks),
        release,
        str(target),
    ]
    mirror = _host_sources(release)
    return command if mirror is None else [*command, str(mirror)]


def _environment(scratch: Path) -> dict[str, str]:
    """Return our environment with temporary files in the work directory, where a crash leaves nothing behind.

    The time stamp makes mmdebstrap's output independent of when it ran, but for what the mirror has by then.
    """
    kept = {key: value for key, value in os.environ.items() if key not in ("APT_CONFIG", "DEBIAN_FRONTEND")}
    return kept | {"TMPDIR": str(scratch), "LC_ALL": "C.UTF-8", "SOURCE_DATE_EPOCH": "1700000000"}


def host_release() -> str:
    """Return the code name of the host's Debian release, or `FALLBACK_RELEASE` on another system."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return FALLBACK_RELEASE
    is_debian = release.get("ID") == "debian"
    return release.get("VERSION_CODENAME") or FALLBACK_RELEASE if is_debian else FALLBACK_RELEASE


def _host_sources(release: str) -> Path | None:
    """Return the host's file of Debian sources, if it is for this release."""
    for path in _SOURCES:
        try:
            words = path.read_text(encoding="utf8").split()
        except OSError:
            continue
        if release in words and "main" in words:
            return path
    return None
