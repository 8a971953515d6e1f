"""Plain directories: on the test host's file system, and on one where files share their contents."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.model.capability import Capability
from dsec.state.directory import DirectoryWritableLayers
from dsec.state.volume import StateVolume
from dsec.testing.layers_suite import GuestOnDisk, LayersOnDiskSuite, Subject, leftovers, make_empty_files, protect


class TestPlainDirectory(LayersOnDiskSuite):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Iterator[Subject]:
        layers = DirectoryWritableLayers(tmp_path / "layers")
        yield Subject(layers, GuestOnDisk())
        layers.close()

    @pytest.mark.root
    def test_immutable_files_are_removed(self, subject: Subject) -> None:
        layer = subject.layers.create("a", quota_bytes=None)
        protect(layer.upper / "protected")
        subject.layers.discard("a")
        self.wait_removed(subject)
        assert leftovers(layer.upper.parents[2]) == []


@pytest.mark.root
class TestDirectoryWithSharedContents(LayersOnDiskSuite):
    @pytest.fixture
    def subject(self, volume: StateVolume) -> Iterator[Subject]:
        layers = DirectoryWritableLayers(volume.path / secrets.token_hex(4))
        yield Subject(layers, GuestOnDisk())
        layers.close()

    def test_it_has_checkpoints(self, subject: Subject) -> None:
        assert subject.can(Capability.CHECKPOINT)

    def test_branch_of_deep_paths_and_many_links(self, subject: Subject) -> None:
        layer = subject.layers.create("a", quota_bytes=None)
        (layer.upper / "f").write_bytes(b"x" * 100_000)
        for number in range(50):
            os.link(layer.upper / "f", layer.upper / f"link{number}")
        subject.layers.checkpoint("a", "point")
        branch = subject.layers.branch("point", "b", quota_bytes=None)
        assert (branch.upper / "f").stat().st_nlink == 51
        assert (branch.upper / "link49").read_bytes() == b"x" * 100_000


_KILLED_WHILE_REMOVING = """
import os, signal, sys
from pathlib import Path
from dsec.state.directory import DirectoryWritableLayers
from dsec.testing.layers_suite import make_empty_files

layers = DirectoryWritableLayers(Path(sys.argv[1]))
layer = layers.create("a", quota_bytes=None)
for name in ("one", "two", "three"):
    (layer.upper / name).mkdir()
    make_empty_files(layer.upper / name, 1000)
removed = 0

def count(event, arguments):
    global removed
    if event == "os.remove":
        removed += 1
        if removed == 1500:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
layers.discard("a")
layers.wait_removed(60)
"""


@pytest.mark.slow
def test_removal_goes_on_after_a_kill_in_the_middle(tmp_path: Path) -> None:
    root = tmp_path / "layers"
    done = subprocess.run([sys.executable, "-c", _KILLED_WHILE_REMOVING, str(root)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    (left,) = (root / "removing").iterdir()
    assert 1000 <= sum(path.is_file() for path in left.rglob("*")) <= 2000
    layers = DirectoryWritableLayers(root)
    assert layers.names() == frozenset()
    assert layers.wait_removed(60)
    layers.close()
    assert leftovers(root) == []


@pytest.mark.slow
def test_closing_does_not_wait_for_a_long_removal(tmp_path: Path) -> None:
    root = tmp_path / "layers"
    layers = DirectoryWritableLayers(root)
    layer = layers.create("a", quota_bytes=None)
    make_empty_files(layer.upper, 10_000)
    layers.discard("a")
    layers.close()
    assert len(leftovers(root)) == 1
    layers = DirectoryWritableLayers(root)
    assert layers.wait_removed(60)
    layers.close()
    assert leftovers(root) == []
