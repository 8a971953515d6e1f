"""A starting point for an image's rules: what is worth declaring, and what changes by use, found by looking at it.

Declared are files through which whoever controls them controls every later program (what the loader, shells and Python
read before they do anything, accounts, programs that run with another's rights) and those of them that are missing and
must stay so. Ignored are directories that everybody may write to, and caches. All of it is a proposal: the author of
the image knows better, so that each line says why it is there.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsec.images.merged import MergedEntry, merged_tree
from dsec.model.image import ImageInfo

_MOST_ENTRIES = 1_000_000
_MOST_LISTED = 100
_CONTENTS = {
    "/etc/passwd": "accounts",
    "/etc/group": "accounts",
    "/etc/ld.so.cache": "which library a program gets",
    "/etc/profile": "read by login shells",
    "/etc/bash.bashrc": "read by interactive shells",
}
_FILES = {
    "/etc/shadow": "accounts",
    "/etc/sudoers": "who may become root",
    "/etc/ld.so.preload": "a library in every program",
    "/etc/environment": "variables of sessions",
    "/etc/nsswitch.conf": "where names are looked up",
    "/etc/pip.conf": "where pip fetches from",
    "/etc/apt/sources.list": "where apt fetches from",
}
_MUST_BE_MISSING = frozenset({"/etc/ld.so.preload"})
_OF_A_HOME = {
    ".bashrc": "read by shells",
    ".profile": "read by login shells",
    ".gitconfig": "commands that git runs",
    ".ssh": "keys",
}
_PYTHON_START = re.compile(r"/(?:site|dist)-packages/(?:[^/]+\.pth|sitecustomize\.py|usercustomize\.py)$")
# Not `__pycache__`: what is in it is code that Python runs.
_CACHE = re.compile(r"/(?:\.cache|\.npm|\.pytest_cache)$")
_ALWAYS_VOLATILE = {"/run": "state of running programs", "/var/log": "logs", "/var/cache": "caches"}


@dataclass(slots=True)
class _Found:
    """Paths with the reason for each, in the order in which they are to be read."""

    contents: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    entries: int = 0


def fingerprint_template(image: ImageInfo, layer_paths: Sequence[Path]) -> str:
    """Return rules for an image as a commented TOML text that `dsec image import --fingerprint` takes."""
    found = _look(merged_tree(layer_paths, limit=_MOST_ENTRIES), image)
    lines = [
        f"# A start for the fingerprint rules of {image.name}, made by looking at its {found.entries} entries.",
        "# Edit it, then: dsec image import PATH --name NAME --fingerprint THIS_FILE",
        "# Always compared, without any rule: processes, mounts, environment, seed, System V objects, sockets, files",
        "# in memory, and every entry of the writable layer. docs/formats/fingerprints.md tells what each key means.",
        "",
        "# Read and hashed at every check: keep it short.",
        *_list("contents", found.contents),
        "",
        "# Kind, mode, owner, size and time of change. A path that is missing in the image must stay missing.",
        *_list("files", found.files),
        "",
        "# May differ while a sandbox is in use (`dsec sandbox fingerprint`), and may be written to by `command`.",
        "# After a rollback these are compared like everything else.",
        *_list("ignored", found.ignored),
        "",
        "# A check of your own, run in the sandbox as its user: status 0, and the same output in every clean sandbox.",
        '# command = ["python3", "-c", "import numpy; print(numpy.__version__)"]',
        '# timeout = "10s"',
        '# maximum = "64KiB"    # of output; more is a difference',
    ]
    return "\n".join(lines) + "\n"


def _look(entries: Iterator[MergedEntry], image: ImageInfo) -> _Found:
    found = _Found()
    present: set[str] = set()
    homes: list[str] = []
    for entry in entries:
        found.entries += 1
        if entry.path in _CONTENTS or entry.path in _FILES or entry.path in _ALWAYS_VOLATILE:
            present.add(entry.path)
        if reason := _volatile_reason(entry):
            found.ignored[entry.path] = reason
        elif reason := _metadata_reason(entry):
            found.files[entry.path] = reason
        elif stat.S_ISDIR(entry.mode) and _is_home(entry.path, image):
            homes.append(entry.path)
        if _home_file(entry.path):
            present.add(entry.path)
    found.contents.update({path: why for path, why in _CONTENTS.items() if path in present})
    found.files.update({path: why for path, why in _FILES.items() if path in present})
    found.files.update({path: f"missing, and must stay so: {_FILES[path]}" for path in _MUST_BE_MISSING - present})
    for home in homes:
        found.ignored[home] = "home or working directory"
        found.files.update({path: why for path, why in _in_home(home) if path in present})
    found.ignored.update({path: why for path, why in _ALWAYS_VOLATILE.items() if path in present})
    return found


def _volatile_reason(entry: MergedEntry) -> str:
    if not stat.S_ISDIR(entry.mode):
        return ""
    if entry.mode & stat.S_IWOTH:
        return "everybody may write here"
    return "cache" if _CACHE.search(entry.path) else ""


def _metadata_reason(entry: MergedEntry) -> str:
    if not stat.S_ISREG(entry.mode):
        return ""
    if entry.mode & (stat.S_ISUID | stat.S_ISGID):
        return "runs with another's rights"
    return "read by every Python at its start" if _PYTHON_START.search(entry.path) else ""


def _is_home(path: str, image: ImageInfo) -> bool:
    return path in ("/root", image.config.workdir) or (path.startswith("/home/") and path.count("/") == 2)


def _home_file(path: str) -> bool:
    directory, _, name = path.rpartition("/")
    return name in _OF_A_HOME and (directory == "/root" or directory.startswith("/home/"))


def _in_home(home: str) -> Iterator[tuple[str, str]]:
    return ((f"{home}/{name}", why) for name, why in _OF_A_HOME.items())


def _list(name: str, paths: dict[str, str]) -> Iterator[str]:
    """Yield a key with its paths, one a line and why; of paths below one that is listed, that one will do."""
    if not paths:
        yield f"{name} = []"
        return
    yield f"{name} = ["
    kept = [path for path in sorted(paths) if name != "ignored" or not _has_parent(path, paths)]
    for path in kept[:_MOST_LISTED]:
        yield f"    {_quoted(path)},    # {paths[path]}"
    if len(kept) > _MOST_LISTED:
        yield f"    # and {len(kept) - _MOST_LISTED} more that were found and are left out"
    yield "]"


def _has_parent(path: str, paths: dict[str, str]) -> bool:
    parent = path.rpartition("/")[0]
    while parent:
        if parent in paths:
            return True
        parent = parent.rpartition("/")[0]
    return False


def _quoted(path: str) -> str:
    """Return a TOML string: an image's names are anybody's, and must not end the line that they stand on."""
    text = path.encode(errors="surrogateescape").decode(errors="replace")
    return (
        '"'
        + "".join(each if each.isprintable() and each not in '"\\' else f"\\U{ord(each):08x}" for each in text)
        + '"'
    )
