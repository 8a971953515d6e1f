"""An image store without root: directories, nothing mounted, owners left out and said so."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from dsec.base.errors import CapabilityMissingError
from dsec.images.build import BuildRequest, build
from dsec.images.importers.detect import import_image
from dsec.images.importers.request import ImportRequest
from dsec.images.store import LocalImageStore
from dsec.model.image import LayerFormat
from dsec.testing.image_suite import make_tree

_NOBODY = 65534


def as_ordinary_user(act: Callable[[], None]) -> None:
    """Run `act` in a child process without root; fail with what it said."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
        try:
            act()
        except BaseException:  # noqa: BLE001 - whatever it is, the parent fails with it
            os.write(writer, traceback.format_exc().encode())
        os._exit(0)  # Not even pytest's own clean-up may run in the child.
    os.close(writer)
    with os.fdopen(reader) as said:
        problem = said.read()
    os.waitpid(child, 0)
    assert not problem, problem


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory that any user may write and reach."""
    place = Path("/tmp") / f"dsec-ordinary-{os.getpid()}-{tmp_path.name}"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    return place


def test_import_mount_and_remove_work_without_root(root: Path) -> None:
    tree = make_tree(root / "tree", etc__passwd="root", d__f="1")

    def act() -> None:
        said: list[str] = []
        store = LocalImageStore(root / "images")
        assert store.layer_format()[0] is LayerFormat.DIRECTORY
        assert "root" in store.layer_format()[1]
        import_image(store, ImportRequest(path=tree, name="mine", progress=said.append))
        assert any("owners" in line for line in said) is (os.stat(tree).st_uid != 0)
        (path,) = store.mount(["mine"]).layer_paths
        assert (path / "d/f").read_text() == "1"
        store.verify("mine")
        # Another process must not take away what this one uses, although no mount shows it.
        other = LocalImageStore(root / "images")
        other.remove("mine")
        assert (path / "d/f").exists()
        store.release()
        assert not path.exists()
        store.close()
        other.close()

    try:
        as_ordinary_user(act)
    finally:
        _remove(root)


def test_build_without_root_says_what_to_do(root: Path) -> None:
    def act() -> None:
        with pytest.raises(CapabilityMissingError, match="root"):
            build(LocalImageStore(root / "images"), BuildRequest(context=root, name="mine"))

    try:
        as_ordinary_user(act)
    finally:
        _remove(root)


def _remove(root: Path) -> None:
    from dsec.images.staging import remove_tree

    remove_tree(root)
