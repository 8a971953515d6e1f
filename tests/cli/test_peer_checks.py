"""`dsec doctor` calls each peer as the node would."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
import msgspec
import pytest

from dsec.base.errors import InvalidRequestError
from dsec.cli.host_checks import Check
from dsec.cli.peer_checks import peer_checks
from dsec.cli.up import _gate
from dsec.node.settings import NodeSettings
from dsec.testing.http_fleet import SECRET, free_ports, http_fleet
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio


def settings(directory: Path, peers: str) -> NodeSettings:
    return NodeSettings(state_dir=str(directory), peers=peers)


def test_without_peers_there_are_no_rows(tmp_path: Path) -> None:
    assert peer_checks(settings(tmp_path, "")) == []


def test_a_peer_that_does_not_answer_is_missing(tmp_path: Path) -> None:
    (check,) = peer_checks(settings(tmp_path, f"bbbbb=http://127.0.0.1:{free_ports(1)[0]}"))
    finding = check.probe()
    assert (finding.present, check.name) == (False, "peer_bbbbb")
    assert "peer-token" in finding.seen
    assert "openssl" in finding.resolution
    (tmp_path / "peer-token").touch(0o600)
    (tmp_path / "peer-token").write_bytes(SECRET)
    assert "no server answers" in check.probe().seen


@pytest.mark.slow
async def test_a_peer_that_answers_says_how_it_is_and_the_node_itself_is_no_peer(tmp_path: Path) -> None:
    (tmp_path / "node.id").write_text("nadea\n")
    async with http_fleet(tmp_path, "nadeb") as fleet:
        listed = f"nadea=http://127.0.0.1:1,nadeb={fleet['nadeb'].url}"
        (check,) = peer_checks(settings(tmp_path, listed))
        finding = await anyio.to_thread.run_sync(check.probe)
        assert finding.present
        assert finding.seen.startswith("accepting, 0 sandboxes, load ")
        (wrong,) = peer_checks(settings(tmp_path, f"other={fleet['nadeb'].url}".replace("other", "ather")))
        assert "nadeb" in (await anyio.to_thread.run_sync(wrong.probe)).seen


@pytest.mark.slow
async def test_the_tracker_is_asked_as_a_peer_asks(tmp_path: Path) -> None:
    def row(url: str) -> Check:
        (check,) = peer_checks(NodeSettings(state_dir=str(tmp_path), tracker=f"nadeb={url}"))
        return check

    gone = f"http://127.0.0.1:{free_ports(1)[0]}"
    assert "openssl" in (await anyio.to_thread.run_sync(row(gone).probe)).resolution
    async with http_fleet(tmp_path, "nadeb") as fleet:
        finding = await anyio.to_thread.run_sync(row(fleet["nadeb"].url).probe)
        assert (finding.present, finding.seen) == (True, "node nadeb, which knows 0 nodes")
    finding = await anyio.to_thread.run_sync(row(gone).probe)
    assert not finding.present
    assert "cannot be asked" in finding.seen


async def test_a_node_with_peers_and_no_secret_does_not_start_to_serve(tmp_path: Path) -> None:
    chosen = settings(tmp_path, "bbbbb=http://127.0.0.1:1")
    async with MemoryHost().node() as node:
        with pytest.raises(InvalidRequestError, match="peer-token"):
            await _gate(chosen, node)
        (tmp_path / "peer-token").touch(0o644)
        with pytest.raises(InvalidRequestError, match="others may read"):
            await _gate(chosen, node)
        (tmp_path / "peer-token").chmod(0o600)
        (tmp_path / "peer-token").write_bytes(SECRET)
        assert await _gate(chosen, node) is not None
        elsewhere = msgspec.structs.replace(chosen, peer_token_file=str(tmp_path / "none"))
        with pytest.raises(InvalidRequestError, match="none"):
            await _gate(elsewhere, node)
        assert await _gate(settings(tmp_path, ""), node) is None
