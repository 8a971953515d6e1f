"""One environment of several images: a base, a workspace and toolkits, each with a version of its own.

Their layers are stacked when a sandbox is created, the base lowest. Nothing is replaced: directories that several have
are merged by overlayfs, and of a file that several have the uppermost shows. A layer that two of them share, such as
the base that a toolkit was built on, is stacked once, at its lowest place. What the images *say* is merged here, by
rules that one can keep in mind (docs/images.md):

- a variable that several set has the value of the uppermost; lists of directories such as PATH are appended to;
- the directory of commands is that of the uppermost image that names one; the user is the base's;
- what an image says as the base does, it has from the base that it was built on, and does not say itself;
- hooks and the check of a clean state can only come from one image, the paths of fingerprint rules from each.

What would make a base unusable in silence is refused: a directory ``/bin`` of a toolkit above a base whose ``/bin`` is
a link would hide every program in it.

Sources: training report (base, runtime and tools with rates of change of their own; the chapter, 11.2.2);
Documentation/filesystems/overlayfs.rst ("Multiple lower layers").
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from dsec.base.errors import ImagesConflictError, InvalidRequestError
from dsec.model.image import STANDARD_PATH, FingerprintRules, ImageConfig, ImageInfo, LayerInfo, StateHooks

MAXIMUM_STACKED_LAYERS = 500
"""What overlayfs stacks at most (OVL_MAX_STACK)."""

LIST_VARIABLES = frozenset(
    {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "NODE_PATH", "MANPATH", "INFOPATH"}
    | {"PKG_CONFIG_PATH", "XDG_DATA_DIRS", "CLASSPATH", "PERL5LIB", "GOPATH"}
)
"""Variables that hold lists of directories, separated by colons."""

_ROOT = "/"
T = TypeVar("T")


def stacked(images: Sequence[ImageInfo]) -> ImageInfo:
    """Return what an environment of several images is: named after its base, with all layers and what all say.

    Args:
        images: from the base up; at least one.

    Raises:
        ImagesConflictError: two of them say what only one can.
        InvalidRequestError: more layers than overlayfs stacks.
    """
    base = images[0]
    layers = stacked_layers(images)
    check_count(len(layers), " + ".join(image.name for image in images))
    if len(images) == 1:
        return base if layers == base.layers else msgspec.structs.replace(base, layers=layers)
    return msgspec.structs.replace(base, layers=layers, config=stacked_config(images))


def stacked_layers(images: Sequence[ImageInfo]) -> tuple[LayerInfo, ...]:
    """Return the layers of images from the lowest up, each once, since overlayfs takes no directory twice.

    Of images the lowest place counts: a toolkit does not lift the base that it was built on above the workspace. Within
    an image the uppermost does: what a layer hid is shown again by the same layer above it.
    """
    found: dict[str, LayerInfo] = {}
    for image in images:
        for layer in reversed(dict.fromkeys(reversed(image.layers))):
            found.setdefault(layer.digest, layer)
    return tuple(found.values())


def check_count(layers: int, what: str) -> None:
    """Raise `InvalidRequestError` for more layers than overlayfs stacks."""
    if layers > MAXIMUM_STACKED_LAYERS:
        raise InvalidRequestError(
            f"{what} has {layers} layers; a sandbox can stand on {MAXIMUM_STACKED_LAYERS} at most",
            resolution="merge them: `dsec image layers` shows what it is made of, `dsec image merge` makes fewer",
        )


def stacked_config(images: Sequence[ImageInfo]) -> ImageConfig:
    """Merge what images say about running in them.

    Raises:
        ImagesConflictError: two of them say what only one can.
    """
    base = images[0].config
    env = dict(base.env)
    for image in images[1:]:
        for name, value in image.config.env.items():
            if name in LIST_VARIABLES:
                env[name] = _appended(_below(env, name), value)
            elif value != base.env.get(name):  # What an image has from the base that it was built on it does not say.
                env[name] = value
    workdirs = [each for image in images if (each := image.config.workdir) not in (_ROOT, base.workdir)]
    return ImageConfig(
        env=env,
        workdir=workdirs[-1] if workdirs else base.workdir,
        user=base.user,
        hooks=_one_of(images, "hooks", lambda config: config.hooks, StateHooks()),
        fingerprint=_fingerprint(images),
    )


def _below(env: Mapping[str, str], name: str) -> str:
    """Return what a list holds so far. A base that says nothing of PATH relies on the usual one."""
    return env.get(name, STANDARD_PATH if name == "PATH" else "")


def _appended(below: str, above: str) -> str:
    """Return a list with what another adds to it: what stands in both keeps the place that it has below."""
    return ":".join(dict.fromkeys(part for part in (*below.split(":"), *above.split(":")) if part))


def _one_of(images: Sequence[ImageInfo], what: str, of: Callable[[ImageConfig], T], nothing: T) -> T:
    """Return what the images say about something that only one of them, or all of them alike, can say."""
    said = [(image.name, of(image.config)) for image in images if of(image.config) != nothing]
    if not said:
        return nothing
    for name, value in said[1:]:
        if value != said[0][1]:
            raise ImagesConflictError(
                f"images {said[0][0]!r} and {name!r} both bring {what}, which cannot be merged",
                resolution=f"import one of them without {what}, or stack the other on it in a Dockerfile",
            )
    return said[0][1]


def _fingerprint(images: Sequence[ImageInfo]) -> FingerprintRules:
    """Join the paths of all rules; the command is one image's, with its limits."""
    nothing = FingerprintRules()
    command, timeout_s, maximum_bytes = _one_of(
        images,
        "a check of their clean state",
        lambda config: (
            config.fingerprint.command,
            config.fingerprint.timeout_s if config.fingerprint.command else nothing.timeout_s,
            config.fingerprint.maximum_bytes if config.fingerprint.command else nothing.maximum_bytes,
        ),
        (nothing.command, nothing.timeout_s, nothing.maximum_bytes),
    )
    rules = [image.config.fingerprint for image in images]
    return FingerprintRules(
        files=tuple(dict.fromkeys(path for each in rules for path in each.files)),
        contents=tuple(dict.fromkeys(path for each in rules for path in each.contents)),
        ignored=tuple(dict.fromkeys(path for each in rules for path in each.ignored)),
        command=command,
        timeout_s=timeout_s,
        maximum_bytes=maximum_bytes,
    )


def check_roots(images: Sequence[ImageInfo], paths: Mapping[str, Path]) -> None:
    """Refuse images of which one would hide those below as a whole.

    One hides a top directory by something of another kind: deeper down an image may replace what it likes; at the top
    it is always an accident, made by archives of programs that say ``bin/tool`` where the base has a link ``/bin`` to
    ``usr/bin``. Another brings an operating system of its own below its tools, such as an older version of the base
    that it was built on: its files would stand above the base's, and nobody would have what the base's packages say.

    Args:
        images: from the base up.
        paths: where each layer can be read, by digest.

    Raises:
        ImagesConflictError: names the entry and the images.
    """
    owner: dict[str, tuple[str, int]] = {}
    """The image that shows each entry of the root so far, and the kind of that entry."""
    seen: set[str] = set()
    system = ""
    for image in images:
        lowest = image.layers[0].digest
        if lowest not in seen and _is_system(paths[lowest]):
            _check_system(image.name, system)
            system = image.name
        for layer in image.layers:
            if layer.digest in seen:
                continue
            seen.add(layer.digest)
            for name, kind, is_whiteout in _root_entries(paths[layer.digest]):
                _check_entry(name, kind, image.name, owner)
                if is_whiteout:
                    owner.pop(name, None)
                else:
                    owner[name] = (image.name, kind)


def _check_system(image: str, below: str) -> None:
    if below:
        raise ImagesConflictError(
            f"image {image!r} brings an operating system of its own, which would hide that of {below!r}",
            resolution=f"make {image!r} again on this version of {below!r}, or of its own files alone "
            "(dsec image import --as-layer)",
        )


def _is_system(layer: Path) -> bool:
    """Tell whether a layer begins an operating system (os-release(5)). Nothing is followed."""
    return any(os.path.lexists(layer / name) for name in ("usr/lib/os-release", "etc/os-release"))


def _check_entry(name: str, kind: int, image: str, owner: Mapping[str, tuple[str, int]]) -> None:
    below = owner.get(name)
    if below is None or below[0] == image or below[1] == kind or stat.S_IFDIR not in (below[1], kind):
        return
    raise ImagesConflictError(
        f"{_word(kind)} /{name} of image {image!r} would hide {_word(below[1])} of image {below[0]!r}",
        resolution=f"make {image!r} again with what it has there where /{name} of {below[0]!r} is (such as usr/{name})",
    )


def _word(kind: int) -> str:
    return {stat.S_IFDIR: "a directory", stat.S_IFLNK: "a symbolic link"}.get(kind, "a file")


def _root_entries(layer: Path) -> list[tuple[str, int, bool]]:
    """Return name and kind of each entry of a layer's root, and whether it is a whiteout."""
    found = []
    with os.scandir(layer) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            is_whiteout = stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
            found.append((entry.name, stat.S_IFMT(status.st_mode), is_whiteout))
    return found
