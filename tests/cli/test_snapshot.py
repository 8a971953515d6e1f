"""`dsec snapshot`, against a node whose store is a list."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dsec.base.errors import CapabilityMissingError
from dsec.model.sandbox import SandboxInfo, SandboxSpec
from dsec.model.state import RestoreRequest, SnapshotInfo
from dsec.testing.command_line import Dsec


def test_snapshots_are_listed_and_removed(dsec: Dsec, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {name: SnapshotInfo(snapshot_id=name, name="good\x1b[31m\x9b1m\u202e") for name in ("snp-a", "snp-b")}

    async def list_snapshots() -> Sequence[SnapshotInfo]:
        return list(kept.values())

    async def remove_snapshot(snapshot: str) -> None:
        del kept[snapshot]

    monkeypatch.setattr(dsec.node.state, "list_snapshots", list_snapshots)
    monkeypatch.setattr(dsec.node.state, "remove_snapshot", remove_snapshot)
    listed = dsec.ok("snapshot", "ls")
    assert "snp-a" in listed
    assert not set("\x1b\x9b\u202e") & set(listed + dsec.ok("snapshot", "ls", "--json"))
    assert dsec.json("snapshot", "ls", "--json")[0]["name"] == kept["snp-a"].name
    assert [each["snapshot_id"] for each in dsec.json("snapshot", "ls", "--json")] == ["snp-a", "snp-b"]
    dsec.ok("snapshot", "rm", "snp-a", "snp-b")
    assert kept == {}


def test_a_restore_says_what_it_was_given_and_prints_the_id(dsec: Dsec, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, RestoreRequest]] = []

    async def restore(snapshot: str, request: RestoreRequest) -> SandboxInfo:
        asked.append((snapshot, request))
        return await dsec.node.create(SandboxSpec(), sandbox_id=request.sandbox_id)

    monkeypatch.setattr(dsec.node.state, "restore", restore)
    argv = ("snapshot", "restore", "good", "--id", "sbx-back", "--seed", "5", "-e", "A=1", "-l", "b=2")
    assert dsec.ok(*argv) == "sbx-back\n"
    wanted = RestoreRequest(sandbox_id="sbx-back", seed=5, env={"A": "1"}, metadata={"b": "2"})
    assert asked == [("good", wanted)]


def test_a_node_without_snapshots_says_so(dsec: Dsec, monkeypatch: pytest.MonkeyPatch) -> None:
    async def list_snapshots() -> Sequence[SnapshotInfo]:
        raise CapabilityMissingError("this node has no store", resolution="set DSEC_STORE")

    monkeypatch.setattr(dsec.node.state, "list_snapshots", list_snapshots)
    refused = dsec("snapshot", "ls")
    assert refused.exit_code == CapabilityMissingError.exit_code
    assert "DSEC_STORE" in refused.stderr
