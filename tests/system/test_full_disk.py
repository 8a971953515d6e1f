"""A disk without room in the middle of every operation on saved state: journal, layers, store and images lie on it.

What was asked for happens or does not, and is said; the sandbox goes on as it was; and when there is room again the
same request leads to what was asked. What makes room is done all the same.

A normal run draws a few operations; `DSEC_CRASH_STEPS=all` walks through all. `DSEC_CRASH_SEED` repeats a draw.
"""

from __future__ import annotations

import errno
import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import NodeUnavailableError, PlatformError, UnknownOutcomeError
from dsec.base.units import MIB
from dsec.state.btrfs import BtrfsWritableLayers
from dsec.state.volume import StateVolume, open_volume
from dsec.testing.leaks import clear_away
from dsec.testing.state_cases import CASES, add_hooked, forest
from dsec.testing.step_ring import Case, Ring

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600)]
IS_FULL = os.environ.get("DSEC_CRASH_STEPS") == "all"
DRAWN = 2
MAKE_ROOM = ("stop", "remove", "remove-checkpoint")
"""Who has no room has to be able to make some."""
DISK_BYTES = 512 * MIB
ROOM_BYTES = 64 * MIB
PATIENCE_S = 60.0


@pytest.fixture
def disk(image_root: Path) -> Iterator[StateVolume]:
    """A small btrfs of its own, with a state directory that holds both images."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    top = Path(tempfile.mkdtemp(prefix="dsec-"))
    volume = open_volume(top, size_bytes=DISK_BYTES)
    state = volume.path / "s"
    try:
        BtrfsWritableLayers(volume).close()  # It switches quotas on.
        state.mkdir(mode=0o700)
        command = [sys.executable, "-m", "dsec", "--state-dir", str(state)]
        subprocess.run([*command, "image", "import", str(image_root), "--name", "guest"], check=True, timeout=120)
        add_hooked(state, image_root)
        yield volume
        ends_at = time.monotonic() + PATIENCE_S
        while subprocess.run([*command, "down", "--destroy"], timeout=120).returncode:
            # The file system frees what was removed with a later commit.
            assert time.monotonic() < ends_at
            os.sync()
    finally:
        clear_away(state)
        clear_away(top)
        shutil.rmtree(top, ignore_errors=True)


class FullDisk(Ring):
    """One node that has no room while it is asked for something."""

    def __init__(self, disk: StateVolume) -> None:
        # What a node keeps free for itself would refuse everything before it began.
        super().__init__(disk.path / "s", forest(None), environment={"DSEC_MINIMUM_FREE_DISK_BYTES": "0"})
        self._filler = disk.path / "filler"
        self.told: list[str] = []

    async def starve(self, cases: list[Case]) -> None:
        assert self.node.start()
        async with self.node.service() as service:
            for case in cases:
                await self.see(service)
                self.case = case
                await case.scene.make(service)
                await self.quiet(case.scene.forest)
                self._fill()
                try:
                    await case.act(service)
                    self.told.append(f"{case.name}: done")
                except PlatformError as error:
                    if isinstance(error, NodeUnavailableError | UnknownOutcomeError) or case.name in MAKE_ROOM:
                        raise
                    self.told.append(f"{case.name}: {error.code}: {error.brief}")
                finally:
                    await self._empty()
            await self.see(service)
        self.node.stop()

    async def _empty(self) -> None:
        """Make room again, and wait until the file system has it: it frees with its next commit."""
        self._filler.unlink()
        with anyio.fail_after(PATIENCE_S):
            while True:
                os.sync()
                try:
                    self._filler.write_bytes(bytes(ROOM_BYTES))
                    os.sync()
                    return
                except OSError:
                    await anyio.sleep(0.05)
                finally:
                    self._filler.unlink(missing_ok=True)

    def _fill(self) -> None:
        """Take everything, until the kernel says that there is no room."""
        with self._filler.open("wb", buffering=0) as file:
            for size in (16 * MIB, MIB, 65536, 4096):
                try:
                    while True:
                        os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
            os.fsync(file.fileno())


def test_a_disk_that_is_full_in_an_operation_costs_nothing_but_the_operation(disk: StateVolume) -> None:
    seed = int(os.environ.get("DSEC_CRASH_SEED") or secrets.randbits(32))
    ring = FullDisk(disk)
    # A file on btrfs is no swap file: nothing can be paused there.
    cases = [case for case in CASES if "pause" not in case.name and "resume" not in case.name]
    drawn = cases if IS_FULL else [*random.Random(seed).sample(cases, DRAWN), cases[-1]]
    try:
        anyio.run(ring.starve, drawn)
    except BaseException as error:
        error.add_note(f"repeat with DSEC_CRASH_SEED={seed}")
        error.add_note("\n".join([*ring.told, "the node's log ends with:", ring.node.log_tail()]))
        raise
    finally:
        ring.node.kill()
    sys.stderr.write("\n".join(ring.told))
