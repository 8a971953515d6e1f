"""Saved state on the command line, against a node of fakes."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from dsec.base.errors import AlreadyExistsError, SnapshotNotFoundError
from dsec.model.sandbox import SandboxInfo
from dsec.testing.command_line import Dsec


def test_a_checkpoint_is_saved_drawn_and_returned_to(dsec: Dsec) -> None:
    dsec.create("--id", "sbx-12345")
    made = dsec.ok("sandbox", "checkpoint", "--id", "sbx-12345", "--name", "snap-001").strip()
    drawn = dsec.ok("sandbox", "checkpoints", "--id", "sbx-12345")
    assert made in drawn
    assert "snap-001" in drawn
    dsec.ok("sandbox", "rollback", "--id", "sbx-12345", "--snapshot", "snap-001")
    dsec.ok("sandbox", "rollback", "sbx-12345", "--checkpoint", made)
    (listed,) = dsec.json("sandbox", "checkpoints", "sbx-12345", "--json")
    assert (listed["checkpoint_id"], listed["is_current"]) == (made, True)
    refused = dsec("sandbox", "rollback", "--id", "sbx-12345", "--snapshot", "snap-002")
    assert refused.exit_code == SnapshotNotFoundError.exit_code
    assert "snap-002" in refused.stderr


def test_checkpoints_are_forgotten_as_the_refusal_of_their_name_says(dsec: Dsec) -> None:
    dsec.create("--id", "sbx-12345")
    dsec.ok("sandbox", "checkpoint", "sbx-12345", "--name", "one")
    two = dsec.ok("sandbox", "checkpoint", "sbx-12345").strip()
    refused = dsec("sandbox", "checkpoint", "sbx-12345", "--name", "one")
    assert refused.exit_code == AlreadyExistsError.exit_code
    assert "dsec sandbox checkpoints --id sbx-12345 --remove one" in refused.stderr
    assert two in dsec.ok("sandbox", "checkpoints", "--id", "sbx-12345", "--remove", "one")
    assert dsec.json("sandbox", "checkpoints", "sbx-12345", "--remove", two, "--json") == []
    assert dsec("sandbox", "checkpoints", "sbx-12345", "--remove", "three").exit_code == SnapshotNotFoundError.exit_code


def test_a_sandbox_may_ask_to_be_rolled_back_when_its_disk_is_full(dsec: Dsec) -> None:
    box = dsec.create("--on-disk-full", "rollback")
    assert dsec.json("sandbox", "inspect", box, "--json")["spec"]["on_disk_full"] == "rollback"


def test_a_fork_prints_the_ids_of_its_children(dsec: Dsec) -> None:
    parent = dsec.create()
    children = dsec.ok("sandbox", "fork", "--id", parent, "--count", "3").split()
    assert len(set(children)) == 3
    for child in children:
        assert dsec.json("sandbox", "inspect", child, "--json")["parent"] == parent


def test_a_creation_that_takes_long_says_what_it_may_be(dsec: Dsec, monkeypatch: pytest.MonkeyPatch) -> None:
    create = dsec.node.create

    async def slowly(*arguments: Any, **options: Any) -> SandboxInfo:
        await anyio.sleep(0.01)
        return await create(*arguments, **options)

    monkeypatch.setattr(dsec.node, "create", slowly)
    assert "built first" not in dsec("sandbox", "create").stderr
    monkeypatch.setattr("dsec.cli.sandbox.create._PATIENCE_S", 0.0)
    told = dsec("sandbox", "create")
    assert "built first" in told.stderr
    assert told.stdout.startswith("sbx-")
    refused = dsec("sandbox", "create", "--memory", "1")
    assert refused.stderr.count("error [") == 1


def test_a_fork_that_was_to_spread_says_where_the_children_are(dsec: Dsec) -> None:
    told = dsec("sandbox", "fork", dsec.create(), "-n", "2", "--spread")
    assert len(told.stdout.split()) == 2
    assert told.stderr.startswith("2 on ")


def test_a_state_is_kept_listed_restored_and_forgotten(dsec: Dsec) -> None:
    box = dsec.create("--id", "sbx-12345")
    dsec.ok("sandbox", "exec", "--id", box, "--", "sh", "-c", "echo one > /tmp/x")
    kept = dsec.ok("sandbox", "snapshot", "--id", box, "--name", "step-1", "-l", "score=1").strip()
    (listed,) = dsec.json("snapshot", "ls", "--json")
    assert (listed["snapshot_id"], listed["metadata"]) == (kept, {"score": "1"})
    back = dsec.ok("snapshot", "restore", "step-1", "-e", "A=1").strip()
    assert dsec.ok("sandbox", "exec", "--id", back, "--", "sh", "-c", "cat /tmp/x; echo $A") == "one\n1\n"
    dsec.ok("snapshot", "rm", kept)
    assert dsec("snapshot", "restore", kept).exit_code == SnapshotNotFoundError.exit_code


def test_of_snapshots_with_one_name_the_newest_is_forgotten_and_named(dsec: Dsec) -> None:
    box = dsec.create()
    old, new = (dsec.ok("sandbox", "snapshot", box, "--name", "step-1").strip() for _ in range(2))
    first = dsec("snapshot", "rm", "step-1")
    assert first.stdout.strip() == new
    assert "2 snapshots bear the name step-1" in first.stderr
    second = dsec("snapshot", "rm", "step-1")
    assert (second.stdout.strip(), second.stderr) == (old, "")
    assert dsec("snapshot", "rm", "step-1").exit_code == SnapshotNotFoundError.exit_code


def test_a_session_becomes_an_image_without_its_residue(dsec: Dsec) -> None:
    box = dsec.create("--id", "sbx-12345")
    dsec.ok("sandbox", "exec", "--id", box, "--", "sh", "-c", "echo one > /home/user/x; echo no > /tmp/y")
    dsec.ok("sandbox", "exec", "--id", box, "--", "sh", "-c", "echo a > /home/user/answers; echo b > /tmp/kept")
    rules = ("--remove", "answers", "--keep", "/tmp/kept")
    dry = dsec.ok("sandbox", "pack", "--id", box, "--as", "mine", *rules, "--dry-run")
    assert dry.splitlines()[-2:] == ["- /home/user/answers: answers", "- /tmp/y: temporary files"]
    assert {"+ /home/user/x", "+ /tmp/kept"} <= set(dry.splitlines())
    assert dsec.ok("sandbox", "pack", "--id", box, "--as", "mine", *rules).strip() == "mine:latest"
    words = ("--remove", "answres", "--remove", "answers", "--dry-run")
    misspelt = dsec("sandbox", "pack", "--id", box, "--as", "other", *words)
    assert "nothing was left out by --remove answres" in misspelt.stderr
    assert "--remove answers" not in misspelt.stderr
    other = dsec.create("mine")
    assert dsec.ok("sandbox", "exec", "--id", other, "--", "sh", "-c", "cat /home/user/x /tmp/kept") == "one\nb\n"
    assert dsec("sandbox", "exec", "--id", other, "--", "cat", "/home/user/answers").exit_code != 0
    again = dsec("sandbox", "pack", "--id", box, "--as", "mine")
    assert again.exit_code == AlreadyExistsError.exit_code
    assert "choose another name" in again.stderr
