"""The directories of a store of writable layers."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import HostDiskFullError, StateCorruptedError
from dsec.state.layout import Layout
from dsec.state.trash import remove_tree


def fail(layout: Layout, root: Path, error: BaseException) -> None:
    with layout.making("one") as staged:
        os.mkdir(root / "staging" / staged)
        raise error


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    made = Layout(tmp_path / "store", remove_tree)
    yield made
    made.close()


@pytest.mark.parametrize(
    "error", [StateCorruptedError("a chunk is missing"), KeyboardInterrupt(), OSError(errno.EIO, "a bad disk")]
)
def test_what_was_being_made_is_discarded_whatever_went_wrong(
    layout: Layout, tmp_path: Path, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        fail(layout, tmp_path / "store", error)
    assert layout.trash.wait_empty(10)
    assert not any((tmp_path / "store" / "staging").iterdir())
    assert not layout.names()


@pytest.mark.anyio
async def test_what_was_being_made_is_discarded_when_its_maker_is_cancelled(layout: Layout, tmp_path: Path) -> None:
    with anyio.CancelScope() as scope, layout.making("one") as staged:
        os.mkdir(tmp_path / "store" / "staging" / staged)
        scope.cancel()
        await anyio.sleep_forever()
    assert layout.trash.wait_empty(10)
    assert not any((tmp_path / "store" / "staging").iterdir())


def test_a_full_disk_is_said_and_what_was_being_made_discarded(layout: Layout, tmp_path: Path) -> None:
    with pytest.raises(HostDiskFullError):
        fail(layout, tmp_path / "store", OSError(errno.ENOSPC, "no space left"))
    assert layout.trash.wait_empty(10)
    assert not any((tmp_path / "store" / "staging").iterdir())


def test_what_was_being_made_goes_though_the_disk_has_no_room_to_move_it(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(HostDiskFullError):
        fail(layout, tmp_path / "store", OSError(errno.ENOSPC, "no space left"))
    assert layout.trash.wait_empty(10)
    assert not any((tmp_path / "store" / "staging").iterdir())
