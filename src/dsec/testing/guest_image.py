"""A root file system of this host's own programs and this Python, for tests: quick to make, and nothing to fetch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

PROGRAMS = """bash cat chmod chown cp dd env false find grep head hostname id ln ls mkdir mkfifo mknod mount mv od perl
    printf pwd readlink rm sed seq setsid sh sleep stat stty tail timeout touch tr true truncate tty wc yes""".split()
_SEARCHED = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_DIRECTORIES = "bin dev etc home/user lib proc root run sys tmp usr/bin usr/lib var".split()
_LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", "config-*", "dist-packages", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages",
    "test", "tests", "tkinter", "turtledemo", "unittest"
)  # fmt: skip


def make_root(root: Path, *, python: bool = False) -> Path:
    """Fill the new directory `root` with programs and what they need; with `python` also the interpreter that runs us.

    Users are root and `user` (1000). Owners are set when we are root.
    """
    for name in _DIRECTORIES:
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    (root / "root").chmod(0o700)
    if os.geteuid() == 0:
        os.chown(root / "home/user", 1000, 1000)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nuser:x:1000:\n")
    found = [path for name in PROGRAMS if (path := shutil.which(name, path=_SEARCHED))]
    for path in found:
        shutil.copy(path, root / "bin" / Path(path).name)
    needed = list(found)
    if python:
        needed += _copy_python(root)
    _copy_libraries(root, needed)
    return root


def _copy_python(root: Path) -> list[str]:
    """Copy interpreter and standard library below /usr, where everybody may read; return what has libraries."""
    interpreter = os.path.realpath(sys.executable)
    library = Path(sysconfig.get_paths()["stdlib"])
    shutil.copy(interpreter, root / "usr/bin/python3")
    shutil.copytree(library, root / "usr/lib" / library.name, ignore=_LEFT_OUT, symlinks=True)
    return [interpreter, *map(str, (library / "lib-dynload").glob("*.so"))]


def _copy_libraries(root: Path, programs: Iterable[str]) -> None:
    answer = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    for library in {word for word in answer.split() if word.startswith("/") and not word.endswith(":")}:
        # What lies where only its owner may look is found in the linker's own directory.
        known = library.startswith(("/lib", "/usr/lib"))
        target = root / library.lstrip("/") if known else root / "usr/lib" / Path(library).name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
