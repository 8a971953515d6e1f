"""Plain directories: on the test host's file system, and on one where files share their contents."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.model.capability import Capability
from dsec.state.directory import DirectoryWritableLayers
from dsec.state.volume import StateVolume
from dsec.testing.layers_suite import GuestOnDisk, LayersOnDiskSuite, Subject, leftovers, protect


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
