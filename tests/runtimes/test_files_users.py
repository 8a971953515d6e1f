"""Users by the sandbox's own databases, which belong to the guest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import UserNotFoundError
from dsec.runtimes.container.users import MAXIMUM_DATABASE_BYTES, ROOT, ResolvedUser, find_user, resolve_user

PASSWD = b"""root:x:0:0:root:/root:/bin/bash
broken line
big:x:70000:70000::/big:
user:x:1000:1001:User:/home/user:/bin/bash
relative:x:7:7::home:/bin/sh
123:x:55:55::/numeric:
"""
GROUP = b"""root:x:0:
staff:x:50:user,other
user:x:1001:user
wheel:x:10:user
huge:x:99999:user
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("root", ResolvedUser(0, 0, (), "/root")),
        ("user", ResolvedUser(1000, 1001, (50, 10), "/home/user")),
        ("1000", ResolvedUser(1000, 1001, (50, 10), "/home/user")),
        ("4242", ResolvedUser(4242, 0, (), "/")),
        ("user:staff", ResolvedUser(1000, 50, (), "/home/user")),
        ("1000:77", ResolvedUser(1000, 77, (), "/home/user")),
        ("relative", ResolvedUser(7, 7, (), "/")),
        ("123", ResolvedUser(55, 55, (), "/numeric")),
    ],
)
def test_users_are_found(text: str, expected: ResolvedUser) -> None:
    assert find_user(text, PASSWD, GROUP) == expected


@pytest.mark.parametrize(
    "text", ["nobody", "", ":", "-1", "65536", "user:", "user:nogroup", "big", "\uff11", "a\udcff", "\ud800"]
)
def test_others_do_not_exist(text: str) -> None:
    with pytest.raises(UserNotFoundError):
        find_user(text, PASSWD, GROUP)


@given(text=st.text(max_size=20), passwd=st.binary(max_size=300), group=st.binary(max_size=300))
def test_hostile_databases_give_a_user_in_range_or_a_typed_error(text: str, passwd: bytes, group: bytes) -> None:
    try:
        user = find_user(text, passwd, group)
    except UserNotFoundError:
        return
    assert all(0 <= number < 65_536 for number in (user.uid, user.gid, *user.groups))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    return tmp_path


def _resolve(root: Path, text: str) -> ResolvedUser:
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        return resolve_user(fd, text)
    finally:
        os.close(fd)


def test_databases_are_read_below_the_root(root: Path) -> None:
    (root / "etc/passwd").write_bytes(PASSWD)
    (root / "etc/group").write_bytes(GROUP)
    assert _resolve(root, "user").groups == (50, 10)


def test_an_image_without_databases_has_root_and_numbers(root: Path) -> None:
    assert _resolve(root, "root") == ROOT
    assert _resolve(root, "12:13") == ResolvedUser(12, 13)


def test_a_link_to_the_hosts_database_and_a_fifo_give_nobody(root: Path) -> None:
    (root / "etc/passwd").symlink_to("../../../../../../etc/passwd")
    os.mkfifo(root / "etc/group")
    with pytest.raises(UserNotFoundError):
        _resolve(root, "daemon")


def test_only_the_start_of_a_huge_database_is_read(root: Path) -> None:
    with open(root / "etc/passwd", "wb") as file:
        file.truncate(MAXIMUM_DATABASE_BYTES)
        file.seek(MAXIMUM_DATABASE_BYTES)
        file.write(b"\nlate:x:5:5::/:\n")
    with pytest.raises(UserNotFoundError):
        _resolve(root, "late")
