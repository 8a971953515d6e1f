"""A state directory with an image, for nodes that are killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsec.cli.leave import leave_host
from dsec.sdk.background import NODE, is_held
from dsec.testing.guest_image import make_root
from dsec.testing.leaks import Leaks, clear_away, wait_loop_devices_gone

IMAGE = "guest"


def dsec(state_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line on a state directory."""
    command = [sys.executable, "-m", "dsec", "--state-dir", str(state_dir), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)


@pytest.fixture(scope="session")
def image_root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dsec-") as top:
        yield make_root(Path(top) / "root")


@pytest.fixture(scope="session")
def image_store(image_root: Path) -> Iterator[Path]:
    """An image store that holds the image, to be copied: importing it takes as long as many a test."""
    with tempfile.TemporaryDirectory(prefix="dsec-") as top:
        dsec(Path(top), "image", "import", str(image_root), "--name", IMAGE)
        yield Path(top) / "images"


@pytest.fixture
def state_dir(image_store: Path) -> Iterator[Path]:
    """A state directory (short, for the socket) that holds the image; at the end nothing of it is left on the host.

    Each test has its own, so that what one leaves when it fails is not taken for the next one's.
    """
    with _made_state_dir(image_store) as state:
        yield state


@pytest.fixture
def other_state_dir(image_store: Path) -> Iterator[Path]:
    """A second one, for a node beside the first."""
    with _made_state_dir(image_store) as state:
        yield state


def leave(state: Path) -> None:
    """Do what `dsec down --destroy` does. Where a test has destroyed its sandboxes and ended its node, no other has to
    start for that, which takes longer than many a test."""
    if is_held(state, NODE) or not (state / "node.id").exists() or Leaks.read(state).described(swap=False):
        dsec(state, "down", "--destroy")
    else:
        leave_host(state)


@contextmanager
def _made_state_dir(image_store: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    top = Path(tempfile.mkdtemp(prefix="dsec-"))
    state = top / "state"
    state.mkdir(mode=0o700)
    try:
        shutil.copytree(image_store, state / "images", symlinks=True)
        yield state
        leave(state)
        left = Leaks.read(state)
        assert not left.described()
        wait_loop_devices_gone(state)
        assert not (Path("/run/dsec") / (state / "node.id").read_text().strip()).exists()
    finally:
        clear_away(state)
        shutil.rmtree(top, ignore_errors=True)
