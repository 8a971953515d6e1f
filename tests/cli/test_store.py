"""`dsec store`: what is wrong is named with the snapshots that it costs, and what is not needed goes after a while."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

from dsec.base.errors import NotFoundError, StateCorruptedError
from dsec.cli.main import cli
from dsec.model.sandbox import SandboxSpec
from dsec.model.state import SnapshotInfo
from dsec.node.node import Node
from dsec.stores.objects_folder import FolderObjectStore
from dsec.testing.memory_node import MemoryHost

CONTENT = bytes(range(256)) * 1000


class Folder:
    """A store in a folder with two snapshots, each of a sandbox of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.infos: Sequence[SnapshotInfo] = anyio.run(self._fill)

    async def _fill(self) -> Sequence[SnapshotInfo]:
        host = MemoryHost()
        host.store = FolderObjectStore(self.path)  # type: ignore[assignment]
        async with host.node() as node:
            infos = [await self._save(node, number) for number in range(2)]
        await host.store.aclose()
        return infos

    async def _save(self, node: Node, number: int) -> SnapshotInfo:
        box = (await node.create(SandboxSpec())).sandbox_id
        await node.write_file(box, "/tmp/x", CONTENT + b"%d" % number)
        return await node.state.snapshot(box)

    def __call__(self, *argv: str) -> Result:
        return CliRunner().invoke(cli, ["store", *argv, "--store", self.path.as_uri()])

    def json(self, *argv: str) -> Any:
        return json.loads(self(*argv, "--json").stdout)

    def files(self, prefix: str) -> list[Path]:
        return sorted(path for path in (self.path / prefix).rglob("*") if path.is_file())


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "store")


def test_a_store_that_is_whole_passes(folder: Folder) -> None:
    for argv in (("check",), ("check", "--quick")):
        result = folder(*argv)
        assert (result.exit_code, result.stdout) == (0, "")
        assert "snapshots: 2" in result.stderr
    found = folder.json("check")
    assert found["problems"] == []
    assert found["read_bytes"] > 0


def test_a_damaged_chunk_is_named_with_the_snapshots_that_need_it(folder: Folder) -> None:
    pack = max(folder.files("chunks/packs"), key=lambda path: path.stat().st_size)
    data = bytearray(pack.read_bytes())
    data[10] ^= 1
    pack.chmod(0o600)
    pack.write_bytes(data)
    result = folder("check")
    assert result.exit_code == StateCorruptedError.exit_code
    (problem,) = folder.json("check")["problems"]
    assert pack.name in problem["what"]
    assert problem["affected"] == len(problem["snapshots"]) > 0
    assert all(snapshot in result.stdout for snapshot in problem["snapshots"])
    assert folder("check", "--quick").exit_code == 0


def test_a_missing_pack_is_named_with_the_snapshots_that_need_it(folder: Folder) -> None:
    for pack in folder.files("chunks/packs"):
        pack.unlink()
    problems = folder.json("check", "--quick")["problems"]
    lost = {snapshot for problem in problems for snapshot in problem["snapshots"]}
    assert lost == {info.snapshot_id for info in folder.infos}
    assert all("is in no pack" in problem["what"] for problem in problems)


@pytest.mark.parametrize("prefix", ["manifests", "snapshots"])
def test_a_damaged_description_is_named(folder: Folder, prefix: str) -> None:
    path = folder.files(prefix)[0]
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-3])
    result = folder("check", "--quick")
    assert result.exit_code == StateCorruptedError.exit_code
    assert path.name in result.stdout


def test_a_missing_manifest_is_named(folder: Folder) -> None:
    path = folder.files("manifests")[0]
    path.unlink()
    (problem,) = folder.json("check")["problems"]
    assert path.name in problem["what"]
    assert problem["affected"] == 1


def test_what_is_held_is_counted(folder: Folder) -> None:
    found = folder.json("stat")
    assert found["snapshots"] == 2
    assert found["content_bytes"] == sum(info.content_bytes for info in folder.infos)
    assert found["manifests"] == 2
    assert 0 < found["pack_bytes"] < found["content_bytes"]
    assert "one by one" in folder("stat").stdout


def test_what_is_young_stays_whoever_needs_it(folder: Folder) -> None:
    for path in folder.files("snapshots"):
        path.unlink()
    before = folder.files("")
    dry = folder.json("gc", "--dry-run")
    assert folder.files("") == before
    done = folder.json("gc")
    assert (dry["deleted"], done["deleted"]) == (0, 0)
    assert folder.files("") == before
    assert "deleted" in folder("gc").stdout


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    result = CliRunner().invoke(cli, ["store", "stat", "--store", missing.as_uri()])
    assert result.exit_code == NotFoundError.exit_code
    assert not missing.exists()
