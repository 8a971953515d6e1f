"""Random trees of sandboxes against plain dictionaries, on real btrfs and real processes: the machine of
`dsec.testing.forest_machine`, with an image whose own files are changed, removed and replaced, and with links.

`DSEC_TEST_EXAMPLES` makes it long: a hundredth of them is run here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from dsec.model.process import CommandRequest
from dsec.node.builder import open_node
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.service.port import SandboxService
from dsec.testing.forest_machine import HOME, NUMBER, ForestMachine
from dsec.testing.forest_model import EVERY, Files, link
from dsec.testing.leaks import Leaks

EXAMPLES = max(3, int(os.environ.get("DSEC_TEST_EXAMPLES", "0")) // 100)
pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600 + 20 * EXAMPLES)]
PATIENCE_S = 60.0
IMAGE = "forest"
IN_IMAGE: Files = {
    "image": ("directory", 0o755, b""),
    "image/one": ("file", 0o644, b"one"),
    "image/sub": ("directory", 0o755, b""),
    "image/sub/two": ("file", 0o600, b"two"),
}


class RealGround:
    """A state directory."""

    images: Mapping[str, Files] = {IMAGE: IN_IMAGE, "guest": {}}
    is_dead = False

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._is_new = True

    @asynccontextmanager
    async def node(self) -> AsyncIterator[SandboxService]:
        async with open_node(NodeSettings(state_dir=str(self._state_dir))) as node:
            if self._is_new:
                await self._clear(node)
            self._is_new = False
            yield node

    async def _clear(self, node: Node) -> None:
        """Remove what an earlier example left: all that it had if it failed, and else its snapshots and images."""
        for info in await node.list(EVERY):
            await node.remove(info.sandbox_id)
        for snapshot in await node.state.list_snapshots():
            await node.state.remove_snapshot(snapshot.snapshot_id)
        for image in await node.images():
            if image.name.removesuffix(":latest") not in self.images:
                node._core.parts.images.remove(image.name)

    def arm(self, step: int) -> None:
        """It is not killed here: `test_step_kills` does that, from outside."""

    async def settle(self, service: SandboxService) -> None:
        """What goes in the background is waited for at the end."""

    async def check(self, service: SandboxService) -> None:
        left = Leaks.read(self._state_dir)
        assert not left.mounts
        assert not left.files

    async def check_empty(self, service: SandboxService) -> None:
        ends_at = anyio.current_time() + PATIENCE_S
        while left := Leaks.read(self._state_dir).described(swap=False):
            assert anyio.current_time() < ends_at, left
            await anyio.sleep(0.02)

    def close(self) -> None:
        """The fixture sees that nothing is left."""


class Machine(ForestMachine):
    """With what only a real file system has."""

    @rule(who=NUMBER, path=st.sampled_from(["l", "d/l", "image/l"]))
    def make_link(self, who: int, path: str) -> None:
        """Links that lead nowhere: nothing follows them by accident."""
        if (chosen := self._live(who)) is None:
            return
        name, box = chosen
        parent = path.rpartition("/")[0]
        is_possible = path not in box.files and (not parent or box.files.get(parent, ("",))[0] == "directory")
        files = {**box.files, path: link("nowhere")} if is_possible else box.files
        request = CommandRequest(argv=("ln", "-s", "-T", "nowhere", path))
        result = self.do(f"{name}: link {path}", lambda s: s.run(name, request),
                         self.forest.having({name: box.with_files(files)}))  # fmt: skip
        assert result is not None
        assert (result.status.exit_code == 0) is is_possible, result


@pytest.fixture
def forest_dir(image_root: Path, state_dir: Path, tmp_path: Path) -> Path:
    root = tmp_path / "root"
    shutil.copytree(image_root, root, symlinks=True, copy_function=os.link)
    home = root / HOME.lstrip("/")
    for path, (kind, mode, content) in IN_IMAGE.items():
        (home / path).mkdir() if kind == "directory" else (home / path).write_bytes(content)
        (home / path).chmod(mode)
    command = [
        sys.executable,
        "-m",
        "dsec",
        "--state-dir",
        str(state_dir),
        "image",
        "import",
        str(root),
        "--name",
        IMAGE,
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return state_dir


def test_a_forest_on_btrfs_and_crun_is_what_plain_dictionaries_say(forest_dir: Path) -> None:
    machine = type("OnThisHost", (Machine,), {"make_ground": staticmethod(partial(RealGround, forest_dir))})
    chosen = settings(
        max_examples=EXAMPLES,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        # Smaller examples are for the node in memory: here each takes a second.
        phases=(Phase.explicit, Phase.generate),
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(machine, settings=chosen)
