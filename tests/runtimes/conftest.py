"""A small image made of this host's own programs, and requests to launch it."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsec.model.sandbox import QosClass, Resources
from dsec.runtimes.port import LaunchRequest
from dsec.testing.runtime_suite import MakeRequest

PROGRAMS = """bash cat chmod dd env false find grep head hostname id ls mkdir perl printf pwd readlink sed seq setsid sh
    sleep stat stty tail touch tr true tty wc yes""".split()
SEARCHED = ("/usr/bin", "/bin", "/usr/sbin", "/sbin")
_FIRST_HOST_IDS = itertools.count(0x40_0000, 0x1_0000)
_NUMBERS = itertools.count()


def _libraries(program: str) -> set[str]:
    answer = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return {word for word in answer.split() if word.startswith("/")}


def make_image(root: Path) -> Path:
    """Copy programs and the libraries they need into a fresh root."""
    for name in ("bin", "dev", "etc", "home/user", "proc", "root", "sys", "tmp", "usr/bin"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    (root / "root").chmod(0o700)
    os.chown(root / "home/user", 1000, 1000)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nuser:x:1000:\n")
    needed: set[str] = set()
    for name in PROGRAMS:
        found = shutil.which(name, path=":".join(SEARCHED))
        if found is None:
            pytest.skip(f"this host has no {name} to make a test image of")
        shutil.copy(found, root / "bin" / name)
        needed |= _libraries(found)
    for library in needed:
        target = root / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    return root


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    return make_image(tmp_path_factory.mktemp("image") / "root")


@pytest.fixture
def make_request(image: Path, tmp_path: Path) -> MakeRequest:
    """Return a function that makes launch requests, each with a writable layer of its own."""

    def make(**options: Any) -> LaunchRequest:
        number = next(_NUMBERS)
        layer = tmp_path / f"layer-{number}"
        (layer / "upper").mkdir(parents=True)
        (layer / "work").mkdir(mode=0o700)
        fields: dict[str, Any] = {
            "instance_id": f"sbx-{os.getpid()}x{number}-g0",
            "layer_paths": [image],
            "upper": layer / "upper",
            "work": layer / "work",
            "resources": Resources(memory_bytes=512 << 20, cpu_millis=2000, open_files=4096),
            "qos": QosClass.LATENCY_SENSITIVE,
            "hostname": f"host-{number}",
            "first_host_id": next(_FIRST_HOST_IDS),
            **options,
        }
        return LaunchRequest(**fields)

    return make


@pytest.fixture
def node_id() -> Iterator[str]:
    """A node id of the test's own; its (empty) groups are removed at the end."""
    name = f"t{os.getpid()}x{next(_NUMBERS)}"
    yield name
    remove_node(name)


def remove_node(name: str) -> None:
    """Remove what a node keeps while it has no instances."""
    from dsec.linux import mounts
    from dsec.runtimes.container.run_directory import close_run_directory

    for entry in mounts.mount_table():
        if entry.kind in ("cgroup", "cgroup2"):
            try:
                os.rmdir(f"{entry.target}/dsec/{name}")
            except OSError:
                continue
    with contextlib.suppress(OSError):
        close_run_directory(Path("/run/dsec") / name)
    shutil.rmtree(f"/run/dsec/{name}", ignore_errors=True)
