"""Shared fixtures: stores that leave no mount behind, and a root file system made of the host's own programs."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsec.images.staging import remove_tree
from dsec.images.store import LocalImageStore
from dsec.linux import mounts
from dsec.model.image import LayerFormat

OpenStore = Callable[..., LocalImageStore]


@pytest.fixture
def open_store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    """Open the same store any number of times; its format is the test class's, or the host's best."""
    kind: LayerFormat | None = getattr(request.cls, "layer_format", None)
    root = tmp_path / "images"
    opened: list[LocalImageStore] = []

    def open_one(**options: object) -> LocalImageStore:
        opened.append(LocalImageStore(root, layer_format=kind, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()
    remove_tree(root)
    assert not list(mounts.mounts_under(root))


@pytest.fixture
def store(open_store: OpenStore) -> LocalImageStore:
    return open_store()


@pytest.fixture(scope="session")
def tiny_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system with a shell and a few programs of the host, with the libraries they need."""
    root = tmp_path_factory.mktemp("tiny") / "root"
    for name in ("sh", "cat", "id", "touch", "rm", "mkdir", "ls", "env", "chmod", "sleep"):
        _copy_program(shutil.which(name) or "", root)
    for directory in ("tmp", "etc", "proc", "sys", "dev", "home/user"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nuser:x:1000:\n")
    return root


def _copy_program(path: str, root: Path) -> None:
    needed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    for file in {path, *re.findall(r"(/\S+) \(0x", needed)}:
        target = root / file.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    if not path.startswith("/bin/"):
        (root / "bin").mkdir(exist_ok=True)
        shutil.copy(path, root / "bin" / Path(path).name)
