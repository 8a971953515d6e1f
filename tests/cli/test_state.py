"""Saved state on the command line, against a node of fakes."""

from __future__ import annotations

from dsec.base.errors import SnapshotNotFoundError
from dsec.testing.command_line import Dsec


def test_a_checkpoint_is_saved_drawn_and_returned_to(dsec: Dsec) -> None:
    dsec.create("--id", "sbx-12345")
    made = dsec.ok("sandbox", "checkpoint", "--id", "sbx-12345", "--name", "snap-001").strip()
    drawn = dsec.ok("sandbox", "checkpoints", "--id", "sbx-12345")
    assert made in drawn
    assert "snap-001" in drawn
    dsec.ok("sandbox", "rollback", "--id", "sbx-12345", "--snapshot", "snap-001")
    (listed,) = dsec.json("sandbox", "checkpoints", "sbx-12345", "--json")
    assert (listed["checkpoint_id"], listed["is_current"]) == (made, True)
    refused = dsec("sandbox", "rollback", "--id", "sbx-12345", "--snapshot", "snap-002")
    assert refused.exit_code == SnapshotNotFoundError.exit_code
    assert "snap-002" in refused.stderr


def test_a_sandbox_may_ask_to_be_rolled_back_when_its_disk_is_full(dsec: Dsec) -> None:
    box = dsec.create("--on-disk-full", "rollback")
    assert dsec.json("sandbox", "inspect", box, "--json")["spec"]["on_disk_full"] == "rollback"


def test_a_fork_prints_the_ids_of_its_children(dsec: Dsec) -> None:
    parent = dsec.create()
    children = dsec.ok("sandbox", "fork", "--id", parent, "--count", "3").split()
    assert len(set(children)) == 3
    for child in children:
        assert dsec.json("sandbox", "inspect", child, "--json")["parent"] == parent
