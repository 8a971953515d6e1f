"""The example of what it feels like, in a program whose node is embedded: real btrfs, real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec import Client, Network, Resources, SnapshotNotFoundError
from dsec.testing.leaks import Leaks

pytestmark = [pytest.mark.root, pytest.mark.slow]


def test_a_step_is_saved_branched_eight_times_and_returned_to(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSEC_URL", raising=False)
    limits = Resources(cpu_millis=1000, memory_bytes=512 << 20)
    with (
        Client(state_dir=state_dir) as client,
        client.create("guest", resources=limits, network=Network(), metadata={"task": "fix-42"}) as box,
    ):
        box.files.write("/tmp/fix.py", b"step one")
        assert box.run("cat fix.py", cwd="/tmp", timeout_s=60).stdout == "step one"
        point = box.checkpoint(name="snap-001")
        children = box.fork(8)
        box.run("echo spoilt > /tmp/fix.py; rm -rf /etc").check()
        assert [child.run("cat /tmp/fix.py").stdout for child in children] == ["step one"] * 8
        children[0].run("echo mine > /tmp/fix.py").check()
        box.rollback(point)
        assert box.run("cat /tmp/fix.py; test -d /etc && echo whole").stdout == "step onewhole\n"
        assert children[1].run("cat /tmp/fix.py").stdout == "step one"
        with pytest.raises(SnapshotNotFoundError):
            children[1].rollback(point)
        for child in children:
            child.close()
        assert [info.sandbox_id for info in client.list()] == [box.sandbox_id]
    assert not [line for line in Leaks.read(state_dir).described() if box.sandbox_id in line]


def test_a_step_is_kept_restored_and_packed(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSEC_URL", raising=False)
    with Client(state_dir=state_dir) as client:
        with client.create("guest") as box:
            box.run("mkdir /srv; echo one > /srv/step; echo secret > /root/.netrc").check()
            kept = box.snapshot(name="step-1", metadata={"score": "0.5"})
            report = box.pack("my-env:v1")
            assert report.removed == ("/root/.netrc: credentials",)
        assert [info.snapshot_id for info in client.snapshots()] == [kept.snapshot_id]
        for reference in (kept, kept.snapshot_id, "step-1"):
            with client.restore(reference) as again:
                assert again.run("cat /srv/step").stdout == "one\n"
        with client.create("my-env:v1") as fresh:
            assert fresh.run("cat /srv/step; ls -A /root").stdout == "one\n"
        client.remove_snapshot(kept)
        with pytest.raises(SnapshotNotFoundError):
            client.restore("step-1")
        assert client.list() == []
