"""Pools of an ordinary user's node: without control groups, in its own user namespace."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.testing.ordinary_user import OrdinaryUser

pytestmark = [pytest.mark.root, pytest.mark.slow]

PATIENCE_S = 60.0


class Host:
    """The user's node, driven by the command line."""

    def __init__(self, user: OrdinaryUser, state_dir: Path) -> None:
        self._user, self._state_dir = user, state_dir

    def dsec(self, *arguments: str) -> str:
        done = self._user.run(self._user.dsec(self._state_dir, *arguments))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def statistics(self) -> dict[str, int]:
        (pool,) = json.loads(self.dsec("pool", "ls", "--json"))
        found: dict[str, int] = pool["statistics"]
        return found

    def wait_ready(self) -> dict[str, int]:
        ends_at = time.monotonic() + PATIENCE_S
        while True:
            now = self.statistics()
            if now["ready"] and not (now["creating"] or now["recycling"] or now["recycle_queue"] or now["leaving"]):
                return now
            assert time.monotonic() < ends_at, now


@pytest.fixture
def host(user: OrdinaryUser, state_dir: Path) -> Iterator[Host]:
    host = Host(user, state_dir)
    yield host
    host.dsec("down", "--destroy")


def test_a_sandbox_is_handed_out_recycled_and_handed_out_again(host: Host) -> None:
    host.dsec("pool", "set", "base", "--floor", "1", "--maximum", "1", "--share", "0", "--spreads", "0")
    host.wait_ready()
    for name in ("sbx-first", "sbx-second"):
        assert host.dsec("sandbox", "create", "base", "--id", name).strip() == name
        assert host.dsec("sandbox", "exec", name, "sh", "-c", "hostname; ls /tmp; touch /tmp/left").split() == [name]
        host.dsec("sandbox", "rm", name)
        now = host.wait_ready()
        assert now["failed_checks"] == 0
    assert (now["hand_outs"], now["recycles"], now["creations"]) == (2, 2, 1)
