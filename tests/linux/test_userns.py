"""User namespaces as maps of ids, kept by descriptors in a bounded cache."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from pathlib import Path

import pytest

from dsec.linux import mounts
from dsec.linux.userns import UserNamespaces, in_user_namespace, is_host_root, make_user_namespace

pytestmark = pytest.mark.root

NS_GET_OWNER_UID = 0xB704


def identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def test_this_process_tells_where_it_lives() -> None:
    assert is_host_root() == (not in_user_namespace())


def children_of_this_thread() -> set[str]:
    """Process ids, as the kernel lists them; other tests may have left some that end by themselves."""
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


def test_namespace_outlives_the_process_it_was_made_in() -> None:
    children = children_of_this_thread()
    descriptor = make_user_namespace(0x60_0000)
    try:
        assert os.readlink(f"/proc/self/fd/{descriptor}").startswith("user:[")
        assert children_of_this_thread() <= children
    finally:
        os.close(descriptor)


def test_namespace_belongs_to_the_user_who_is_root_in_it() -> None:
    descriptor = make_user_namespace(0x60_0000)
    try:
        owner = bytearray(4)
        fcntl.ioctl(descriptor, NS_GET_OWNER_UID, owner)
        assert int.from_bytes(owner, sys.byteorder) == 0x60_0000
    finally:
        os.close(descriptor)


def test_descriptors_are_used_again_and_bounded() -> None:
    namespaces = UserNamespaces(limit=2)
    try:
        first = identity(namespaces.get(0x60_0000))
        assert identity(namespaces.get(0x61_0000)) != first
        assert identity(namespaces.get(0x60_0000)) == first
        namespaces.get(0x62_0000)
        # The least recently used is gone, the one used again is not.
        assert identity(namespaces.get(0x60_0000)) == first
        assert len(namespaces._descriptors) == 2
    finally:
        namespaces.close()
    assert not namespaces._descriptors


def test_mounts_keep_a_namespace_whose_descriptor_is_closed(tmp_path_factory: pytest.TempPathFactory) -> None:
    source = tmp_path_factory.mktemp("source")
    (source / "f").touch()
    namespaces = UserNamespaces()
    tree = mounts.open_tree(source)
    try:
        mounts.map_ids(tree, namespaces.get(0x60_0000))
        namespaces.close()
        assert os.stat("f", dir_fd=tree).st_uid == 0x60_0000
    finally:
        os.close(tree)
        namespaces.close()
