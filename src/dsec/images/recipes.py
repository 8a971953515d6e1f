"""Images that DSec knows how to make itself, built on first use and cached.

There is one: ``python``, a small Debian with Python, git and the tools that agents reach for, enough for function-level
tasks (HumanEval needs nothing but Python) and for small repositories (git, pytest).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dsec.base.errors import ImageNotFoundError
from dsec.images.command import Progress, silent
from dsec.images.durable import exclusive
from dsec.images.importers.debian import DebianRecipe, import_debian
from dsec.images.importers.request import ImportRequest
from dsec.images.names import canonical_name, not_found
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig, ImageInfo

DEFAULT_IMAGE = "python"

_PYTHON_PACKAGES = (
    "bash",
    "ca-certificates",
    "coreutils",
    "curl",
    "diffutils",
    "findutils",
    "git",
    "grep",
    "less",
    "patch",
    "procps",
    "python3",
    "python3-pip",
    "python3-pytest",
    "python3-venv",
    "sed",
)
_MAKE_USER = 'chroot "$1" useradd --create-home --uid 1000 --shell /bin/bash user'
_PYTHON_ALIAS = 'ln -s python3 "$1/usr/bin/python"'
_NO_MACHINE_ID = 'rm -f "$1/etc/machine-id" && : > "$1/etc/machine-id"'
_NO_RESIDUE = (
    'cd "$1" && rm -rf var/log/*.log var/log/apt var/cache/ldconfig/* root/.cache etc/hostname && : > etc/resolv.conf'
)

RECIPES: Mapping[str, tuple[DebianRecipe, ImageConfig]] = {
    DEFAULT_IMAGE: (
        DebianRecipe(packages=_PYTHON_PACKAGES, hooks=(_MAKE_USER, _PYTHON_ALIAS, _NO_MACHINE_ID, _NO_RESIDUE)),
        ImageConfig(
            env={
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "LANG": "C.UTF-8",
            },
            workdir="/home/user",
            user="0",
        ),
    ),
}


def ensure(store: LocalImageStore, name: str, *, progress: Progress = silent) -> ImageInfo:
    """Return the image `name`; build it first if it has a recipe and is not there. Blocks, so call it from a thread.

    Many processes may ask at once: one builds, the others wait and find it built.

    Raises:
        ImageNotFoundError: neither stored nor a recipe; the detail names the closest.
        CapabilityMissingError, ExternalCommandError: the build is not possible, or failed.
    """
    known = canonical_name(name)
    try:
        return store.get(known)
    except ImageNotFoundError:
        if known not in RECIPES:
            raise not_found(known, {image.name for image in store.list()} | set(RECIPES)) from None
    with exclusive(store.root / f"build-{known}.lock"):
        try:
            return store.get(known)
        except ImageNotFoundError:
            return _build(store, known, progress)


def _build(store: LocalImageStore, name: str, progress: Progress) -> ImageInfo:
    recipe, config = RECIPES[name]
    progress(f"building the image {name!r} from Debian packages; this happens once")
    request = ImportRequest(path=Path("/"), name=name, config=config, progress=progress)
    return import_debian(store, request, recipe)
