"""Who talks to a node that runs already hears which of the settings it was given that node does not go by."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.node.running_settings import RUNNING_SETTINGS, keep_settings, unheeded
from dsec.node.settings import NodeSettings


def test_what_was_set_and_differs_is_named_with_both_values(tmp_path: Path) -> None:
    keep_settings(NodeSettings(state_dir="/elsewhere", default_pids=7), tmp_path)
    mine = NodeSettings(state_dir=str(tmp_path), store="s3://b", default_pids=7, migration_lease_s=5)
    assert unheeded(mine, ["state_dir", "store", "default_pids", "migration_lease_s"], tmp_path) == (
        "store is '' there, not 's3://b'",
        "migration_lease_s is 30 there, not 5",
    )
    assert unheeded(mine, ["default_pids"], tmp_path) == ()
    assert unheeded(mine, [], tmp_path) == ()


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"of_another_version": 1}', b"\xff"])
def test_a_file_that_tells_nothing_is_no_error(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / RUNNING_SETTINGS).write_bytes(content)
    assert unheeded(NodeSettings(default_pids=7), ["default_pids"], tmp_path) == ()


def test_a_disk_without_room_keeps_no_node_from_starting(tmp_path: Path) -> None:
    keep_settings(NodeSettings(), tmp_path / "none")
