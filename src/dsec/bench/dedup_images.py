"""Twenty related images, made of real packages: what a team of four kinds of agents builds within a month.

Each image is a base, a runtime and tools, as in the training report, and each part is rebuilt at its own rate:

- *base*: the default image (Debian and Python), and the same before its last security upgrades: packages of which the
  mirror has an older version are put back;
- *runtime*: a compiler and headers, as Debian has them, built three times; the first with the older versions;
- *tools*: wheels of four kinds of agents (web, lint, test, data), built five times each. A build upgrades one or two
  packages, and every file gets the time of the build, as `pip install` leaves it.

What a build notes of itself changes with every one: the state of dpkg, a log, the record of the installer. Programs of
packages are not run, so that no caches are made.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dsec.base.errors import CapabilityMissingError
from dsec.images.command import Progress, run
from dsec.images.store import LocalImageStore
from dsec.images.tree_writer import TreeWriter, copy_tree

RUNTIME_PACKAGES = (
    "gcc-12", "cpp-12", "libgcc-12-dev", "binutils-x86-64-linux-gnu", "libbinutils", "libc6-dev", "linux-libc-dev",
    "libisl23", "libmpc3", "libmpfr6", "make", "libssl-dev", "zlib1g-dev",
)  # fmt: skip
BUILDS = 5
_BASE_OF_BUILD = (0, 0, 0, 1, 1)
_RUNTIME_OF_BUILD = (0, 0, 1, 1, 2)
_FIRST_BUILD_S = 1_700_000_000
_DAY_S = 86_400
_FETCHED_AT_ONCE = 4
_PYTHON = "usr/local/lib/python3.11/dist-packages"
_PIP = ("--no-deps", "--only-binary=:all:", "--python-version=3.11", "--platform=manylinux2014_x86_64")

TOOLS: Mapping[str, Sequence[Sequence[str]]] = {
    "web": (
        ("django==5.0.1", "django==5.0.2", "django==5.0.3", "django==5.0.4", "django==5.0.6"),
        ("requests==2.31.0", "requests==2.31.0", "requests==2.31.0", "requests==2.32.3", "requests==2.32.3"),
        ("jinja2==3.1.3", "jinja2==3.1.3", "jinja2==3.1.4", "jinja2==3.1.4", "jinja2==3.1.4"),
        ("sqlalchemy==2.0.25",) * 4 + ("sqlalchemy==2.0.30",),
    ),
    "lint": (
        ("ruff==0.4.1", "ruff==0.4.2", "ruff==0.4.2", "ruff==0.4.4", "ruff==0.4.4"),
        ("black==24.3.0", "black==24.3.0", "black==24.4.2", "black==24.4.2", "black==24.4.2"),
        ("pylint==3.1.0", "pylint==3.1.0", "pylint==3.1.0", "pylint==3.1.0", "pylint==3.2.0"),
        ("mypy==1.9.0",) * 3 + ("mypy==1.10.0",) * 2,
    ),
    "test": (
        ("pytest==8.0.2", "pytest==8.1.1", "pytest==8.1.1", "pytest==8.2.0", "pytest==8.2.0"),
        (
            "hypothesis==6.98.0",
            "hypothesis==6.98.0",
            "hypothesis==6.100.0",
            "hypothesis==6.100.0",
            "hypothesis==6.100.0",
        ),
        ("coverage==7.4.4", "coverage==7.4.4", "coverage==7.4.4", "coverage==7.4.4", "coverage==7.5.0"),
        ("pygments==2.17.2",) * 5,
    ),
    "data": (
        ("numpy==1.26.3", "numpy==1.26.3", "numpy==1.26.4", "numpy==1.26.4", "numpy==1.26.4"),
        ("lxml==5.1.0", "lxml==5.2.1", "lxml==5.2.1", "lxml==5.2.1", "lxml==5.2.2"),
        ("pillow==10.2.0", "pillow==10.2.0", "pillow==10.2.0", "pillow==10.3.0", "pillow==10.3.0"),
    ),
}


@dataclass(frozen=True, slots=True)
class RelatedImage:
    """One of the images: its name, and the digests of its layers from the lowest up."""

    name: str
    layers: tuple[str, ...]


class Workload:
    """Makes the images.

    Args:
        store: takes their layers.
        base: digest of the layer that is the base; stored there.
        directory: for downloads and trees.
        progress: takes lines for people.
    """

    def __init__(self, store: LocalImageStore, base: str, directory: Path, progress: Progress) -> None:
        self._store = store
        self._base = base
        self._directory = directory
        self._progress = progress
        self._status = b""

    def images(self) -> list[RelatedImage]:
        """Make all of them. Blocks.

        Raises:
            CapabilityMissingError: packages cannot be fetched here.
        """
        bases = [self._older_base(), self._base]
        older = self._debs("older", _older(RUNTIME_PACKAGES))
        newer = self._debs("newer", RUNTIME_PACKAGES)
        runtimes = [self._runtime(build, newer, older if build == 0 else []) for build in range(3)]
        found = []
        self._fetch_wheels()
        for kind in TOOLS:
            for build in range(BUILDS):
                tools = self._tools(kind, build)
                stack = (bases[_BASE_OF_BUILD[build]], runtimes[_RUNTIME_OF_BUILD[build]], tools)
                found.append(RelatedImage(f"agent-{kind}:v{build + 1}", stack))
        return found

    def _older_base(self) -> str:
        (root,) = self._store.mount_layers([self._base])
        self._status = (root / "var/lib/dpkg/status").read_bytes()
        names = [line[9:].decode() for line in self._status.splitlines() if line.startswith(b"Package: ")]
        wanted = _older(names)
        self._progress(f"base: {len(wanted)} of {len(names)} packages have an older version")
        debs = self._debs("base", wanted)
        tree = self._tree("base")
        with TreeWriter(tree, keep_devices=True) as writer:
            copy_tree(root, writer)
        self._unpack(debs, tree)
        self._note(tree, "base", -30)
        return self._take(tree)

    def _runtime(self, build: int, debs: Sequence[Path], older: Sequence[Path]) -> str:
        tree = self._tree(f"runtime-{build}")
        tree.mkdir()
        self._unpack([*debs, *older], tree)
        self._note(tree, "runtime", build * 7)
        return self._take(tree)

    def _tools(self, kind: str, build: int) -> str:
        tree = self._tree(f"{kind}-{build}")
        target = tree / _PYTHON
        target.mkdir(parents=True)
        time_s = _FIRST_BUILD_S + build * _DAY_S
        for versions in TOOLS[kind]:
            with zipfile.ZipFile(self._wheel(versions[build])) as wheel:
                wheel.extractall(target)
        (target / "installed.txt").write_text(f"{time_s}\n" + "\n".join(each[build] for each in TOOLS[kind]) + "\n")
        for path in tree.rglob("*"):
            os.utime(path, (time_s, time_s))
        return self._take(tree)

    def _take(self, tree: Path) -> str:
        self._progress(f"storing {tree.name}")
        digest = self._store.add_layer(tree)
        subprocess.run(["rm", "-rf", str(tree)], check=True)
        return digest

    def _tree(self, name: str) -> Path:
        return self._directory / name

    def _note(self, tree: Path, what: str, day: int) -> None:
        """Write what an installation notes of itself."""
        for path, content in (
            ("var/lib/dpkg/status", self._status + f"X-{what}: {day}\n".encode()),
            ("var/log/dpkg.log", f"day {day}: {what} installed\n".encode() * 200),
        ):
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content)

    def _unpack(self, debs: Sequence[Path], tree: Path) -> None:
        for deb in debs:
            run(["dpkg-deb", "--extract", str(deb), str(tree)], package="dpkg")

    def _debs(self, name: str, wanted: Sequence[str]) -> list[Path]:
        """Fetch Debian packages."""
        target = self._directory / f"debs-{name}"
        target.mkdir()
        if wanted:
            self._progress(f"fetching {len(wanted)} packages")
            run(["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *wanted], package="apt", cwd=target)
        return sorted(target.glob("*.deb"))

    def _fetch_wheels(self) -> None:
        wanted = dict.fromkeys(each for kind in TOOLS.values() for versions in kind for each in versions)
        self._progress(f"fetching {len(wanted)} wheels")
        with ThreadPoolExecutor(_FETCHED_AT_ONCE) as pool:
            for _ in pool.map(self._wheel, wanted):
                pass

    def _wheel(self, wanted: str) -> Path:
        """Fetch a wheel, once."""
        target = self._directory / "wheels" / wanted
        if not target.is_dir():
            command = [sys.executable, "-m", "pip", "download", "-q", *_PIP, "-d", str(target), wanted]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise CapabilityMissingError(
                    f"cannot fetch {wanted}", detail=done.stderr[-1000:], resolution="run it where pip finds packages"
                )
        return next(target.glob("*.whl"))


def _older(names: Sequence[str]) -> list[str]:
    """Return ``NAME=VERSION`` for those packages of which the host's mirrors have a version before the newest."""
    listed = subprocess.run(["apt-cache", "madison", *names], capture_output=True, text=True, check=False).stdout
    versions: dict[str, dict[str, None]] = {}
    for line in listed.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) == 3 and fields[2].endswith("Packages"):
            versions.setdefault(fields[0], {})[fields[1]] = None
    return [f"{name}={list(known)[1]}" for name, known in versions.items() if len(known) > 1]
