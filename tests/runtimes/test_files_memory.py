"""The files of the in-memory fake conform."""

from __future__ import annotations

import pytest

from dsec.runtimes.memory_files import MemoryFiles
from dsec.runtimes.memory_tree import Tree
from dsec.testing.files_suite import FilesSuite

pytestmark = pytest.mark.anyio


def _alive() -> None:
    """The fake's tree asks before every operation; this one never ends."""


class TestMemoryFiles(FilesSuite):
    @pytest.fixture
    def files(self) -> MemoryFiles:
        return MemoryFiles(Tree({}, None, _alive))
