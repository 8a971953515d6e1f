"""`dsec node`, against a node that is told what to say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from dsec.base.errors import InvalidRequestError, NodeUnavailableError, NotFoundError, PlatformError
from dsec.model.fleet import DrainEvent, DrainFailure, DrainProgress, DrainReport, DrainRequest, FleetInfo, PeerInfo
from dsec.testing.command_line import Dsec

INFO = FleetInfo(
    node="aaaaa",
    load=0.25,
    sandboxes=3,
    peers=(
        PeerInfo(node="bbbbb", url="http://b:1", answers=True, takes=True, load=0.5, sandboxes=7),
        PeerInfo(node="ccccc", url="http://c:1", answers=False, detail="node_unavailable: no server answers"),
    ),
)


@pytest.fixture
def asked(dsec: Dsec, monkeypatch: pytest.MonkeyPatch) -> list[DrainRequest]:
    """A node that knows `INFO`, and what it was asked to drain."""

    async def look() -> FleetInfo:
        return INFO

    monkeypatch.setattr(dsec.node.fleet, "look", look)
    return []


def answer(
    dsec: Dsec, monkeypatch: pytest.MonkeyPatch, asked: list[DrainRequest], events: Sequence[DrainEvent]
) -> None:
    @asynccontextmanager
    async def drain(request: DrainRequest) -> AsyncIterator[AsyncIterator[DrainEvent]]:
        async def told() -> AsyncIterator[DrainEvent]:
            for event in events:
                yield event

        asked.append(request)
        yield told()

    monkeypatch.setattr(dsec.node.fleet, "drain", drain)


def test_a_node_and_its_peers_are_listed(dsec: Dsec, asked: list[DrainRequest]) -> None:
    lines = dsec.ok("node", "ls").splitlines()
    assert lines[1].split()[:3] == ["aaaaa", "(this)", "takes"]
    assert lines[2].split() == ["bbbbb", "http://b:1", "takes", "7", "0.50"]
    assert "no answer" in lines[3]
    assert "no server answers" in lines[3]
    assert [peer["node"] for peer in dsec.json("node", "ls", "--json")["peers"]] == ["bbbbb", "ccccc"]


def test_one_is_shown(dsec: Dsec, asked: list[DrainRequest]) -> None:
    assert "1 of 2 answer" in dsec.ok("node", "show")
    assert "http://b:1" in dsec.ok("node", "show", "bbbbb")
    assert dsec.json("node", "show", "http://c:1", "--json")["answers"] is False
    assert dsec.json("node", "show", "--json")["fleet"]["node"] == "aaaaa"
    assert dsec("node", "show", "other").exit_code == NotFoundError.exit_code


def test_a_drain_tells_what_goes_where(dsec: Dsec, monkeypatch: pytest.MonkeyPatch, asked: list[DrainRequest]) -> None:
    events = [
        DrainProgress(done=0, total=2),
        DrainProgress(done=1, total=2, sandbox_id="sbx-a", node="bbbbb"),
        DrainProgress(done=2, total=2, sandbox_id="sbx-b"),
        DrainReport(
            moved={"sbx-a": "bbbbb"}, failed=(DrainFailure(sandbox_id="sbx-b", code="host_disk_full", brief="full"),)
        ),
    ]
    answer(dsec, monkeypatch, asked, events)
    result = dsec("node", "drain", "--to", "bbbbb", "--at-once", "3")
    assert asked == [DrainRequest(to=("bbbbb",), at_once=3)]
    assert result.exit_code == PlatformError.exit_code
    assert result.stdout.startswith("1 moved, 0 ended, 1 still here")
    assert result.stderr.splitlines() == [
        "2 sandboxes to move",
        "1 of 2: sbx-a is on bbbbb",
        "2 of 2: sbx-b stays",
        "sbx-b: host_disk_full: full",
        "the node takes no more sandboxes until `dsec node drain --undo`",
    ]
    answer(dsec, monkeypatch, asked, [DrainReport(moved={"sbx-a": "bbbbb"})])
    assert dsec.json("node", "drain", "--json")["moved"] == {"sbx-a": "bbbbb"}


def test_a_drain_without_an_outcome_is_no_success(
    dsec: Dsec, monkeypatch: pytest.MonkeyPatch, asked: list[DrainRequest]
) -> None:
    answer(dsec, monkeypatch, asked, [DrainProgress(done=0, total=1)])
    assert dsec("node", "drain").exit_code == NodeUnavailableError.exit_code


def test_a_drain_is_undone(dsec: Dsec) -> None:
    dsec.ok("node", "drain")
    assert "draining" in dsec.ok("node", "ls")
    dsec.ok("node", "drain", "--undo")
    assert "draining" not in dsec.ok("node", "ls")
    assert dsec("node", "drain", "--undo", "--to", "bbbbb").exit_code == InvalidRequestError.exit_code
    assert dsec("node", "drain", "--to", "bbbbb").exit_code == InvalidRequestError.exit_code
