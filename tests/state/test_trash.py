"""What is discarded, where the disk does not let it go at once."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dsec.state.trash import Trash, remove_tree

PATIENCE_S = 60.0
PAUSE_S = 0.01


def discard(trash: Trash, root: Path, name: str) -> None:
    (root / name).mkdir()
    fd = os.open(root, os.O_RDONLY)
    assert trash.put(fd, name)
    os.close(fd)


def left(root: Path) -> list[str]:
    return [name for place in ("trash", "removing") for name in os.listdir(root / place)]


class Refusing:
    """Removes trees once it has refused to, for so many times."""

    def __init__(self, refusals: float) -> None:
        self._refusals = refusals
        self.refused = threading.Event()

    def __call__(self, parent_fd: int, name: str, stopping: Callable[[], bool]) -> bool:
        if self._refusals > 0:
            self._refusals -= 1
            self.refused.set()
            raise OSError(errno.EBUSY, "in use")
        return remove_tree(parent_fd, name, stopping)


def test_what_cannot_be_removed_is_tried_again_until_it_can(tmp_path: Path) -> None:
    trash = Trash(tmp_path, Refusing(3), first_pause_s=PAUSE_S)
    for name in ("a", "b"):
        discard(trash, tmp_path, name)
    assert trash.wait_empty(PATIENCE_S)
    assert left(tmp_path) == []
    trash.close()


def test_what_cannot_be_removed_is_not_said_to_be_and_keeps_nothing_else(tmp_path: Path) -> None:
    refusing = Refusing(float("inf"))

    def remove(parent_fd: int, name: str, stopping: Callable[[], bool]) -> bool:
        remover = remove_tree if removable.is_set() else refusing
        return remover(parent_fd, name, stopping)

    removable = threading.Event()
    trash = Trash(tmp_path, remove, first_pause_s=PATIENCE_S)
    discard(trash, tmp_path, "a")
    assert refusing.refused.wait(PATIENCE_S)
    removable.set()
    discard(trash, tmp_path, "b")
    assert not trash.wait_empty(0.05)
    waited: list[bool] = []
    waiter = threading.Thread(target=lambda: waited.append(trash.wait_empty(10 * PATIENCE_S)))
    waiter.start()
    trash.close()
    waiter.join(PATIENCE_S)
    assert waited == [False]
    assert len(left(tmp_path)) == 1
    trash = Trash(tmp_path, remove_tree)
    assert trash.wait_empty(PATIENCE_S)
    trash.close()
    assert left(tmp_path) == []


def test_a_disk_without_room_for_a_rename_has_its_trash_removed_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def full(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        if source == target:
            raise OSError(errno.ENOSPC, "no space left on device")
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "rename", full)
    trash = Trash(tmp_path, remove_tree)
    for name in ("a", "b"):
        discard(trash, tmp_path, name)
    assert trash.wait_empty(PATIENCE_S)
    trash.close()
    assert left(tmp_path) == []


def test_what_a_removal_leaves_to_be_done_is_done_while_more_is_discarded(tmp_path: Path) -> None:
    asked = threading.Semaphore(0)
    answers = iter([False, False, True])

    def finish() -> bool:
        asked.release()
        return next(answers, True)

    trash = Trash(tmp_path, remove_tree, finish, first_pause_s=PAUSE_S)
    for _ in range(3):
        assert asked.acquire(timeout=PATIENCE_S)
    # Now it has said that nothing is left: only what is removed from here on is a reason to ask again.
    ended = threading.Event()

    def discard_all_the_time() -> None:
        number = 0
        while not ended.is_set():
            discard(trash, tmp_path, str(number := number + 1))

    thread = threading.Thread(target=discard_all_the_time)
    thread.start()
    for _ in range(3):
        assert asked.acquire(timeout=PATIENCE_S)
    ended.set()
    thread.join()
    trash.close()


def test_an_error_in_what_is_left_to_be_done_ends_nothing(tmp_path: Path) -> None:
    asked = threading.Semaphore(0)

    def finish() -> bool:
        asked.release()
        raise OSError(errno.EIO, "a bad disk")

    trash = Trash(tmp_path, remove_tree, finish, first_pause_s=PAUSE_S)
    for _ in range(2):
        assert asked.acquire(timeout=PATIENCE_S)
    discard(trash, tmp_path, "a")
    assert trash.wait_empty(PATIENCE_S)
    trash.close()
