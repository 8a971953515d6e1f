"""One node for each state directory, with one id for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dsec.base.errors import StateCorruptedError, StateLockedError
from dsec.node.lock import hold_state, node_id

_HOLDER = """
import sys
from pathlib import Path
from dsec.node.lock import hold_state
with hold_state(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_holder_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    with hold_state(tmp_path / "state"):
        with pytest.raises(StateLockedError) as caught, hold_state(tmp_path / "state"):
            pytest.fail("held twice")
        assert str(os.getpid()) in caught.value.detail
    with hold_state(tmp_path / "state"):
        pass


@pytest.mark.slow
def test_the_lock_ends_when_its_holder_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(StateLockedError), hold_state(tmp_path):
        pytest.fail("held twice")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    holder.stdin.close()
    with hold_state(tmp_path):
        pass


def test_the_state_directory_is_private(tmp_path: Path) -> None:
    with hold_state(tmp_path / "state"):
        assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_the_node_id_is_made_once(tmp_path: Path) -> None:
    first = node_id(tmp_path, os.urandom)
    assert node_id(tmp_path, os.urandom) == first
    assert len(first) == 5
    (tmp_path / "node.id").write_text("Not an id!\n")
    with pytest.raises(StateCorruptedError):
        node_id(tmp_path, os.urandom)
