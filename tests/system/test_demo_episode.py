"""The README's demo of a durable episode runs as it is written there, over an image of this host's own Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from dsec.cli.leave import leave_host
from dsec.images.store import LocalImageStore
from dsec.linux import mounts
from dsec.model.image import ImageConfig
from dsec.node.builder import open_node
from dsec.node.settings import NodeSettings
from dsec.testing.guest_image import make_root

pytestmark = [pytest.mark.root, pytest.mark.slow]
REPOSITORY = Path(__file__).parents[2]


async def _destroy(state: Path) -> None:
    async with open_node(NodeSettings(state_dir=str(state))) as node:
        await node.shutdown(destroy=True)


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """Yield a state directory that has an image ``python``."""
    root = make_root(tmp_path / "root", python=True)
    library = Path(sysconfig.get_paths()["stdlib"])
    shutil.copytree(library / "unittest", root / "usr/lib" / library.name / "unittest")
    state = tmp_path / "state"
    store = LocalImageStore(state / "images")
    config = ImageConfig(env={"PATH": "/usr/bin:/bin"}, workdir="/home/user")
    store.add_image("python", [store.add_layer(root)], config, source="a test")
    store.close()
    yield state
    anyio.run(_destroy, state)
    leave_host(state)
    targets = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for target in reversed([target for target in targets if target.startswith(f"{tmp_path}/")]):
        mounts.unmount(Path(target), detach=True)


def test_the_demo_is_killed_in_the_middle_goes_on_and_finds_nothing_done_twice(state_dir: Path, tmp_path: Path) -> None:
    env = {**os.environ, "DSEC_STATE_DIR": str(state_dir), "DEMO_INSTALLED": "1", "DEMO_SPEED": "20"}
    done = subprocess.run(
        [REPOSITORY / "scripts" / "demo-episode", tmp_path / "out"],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok   ") == 8
    assert "NOT " not in done.stdout
    assert (tmp_path / "out" / "report.html").exists()
