"""The users of a sandbox, read from its own /etc/passwd and /etc/group from outside (passwd(5), group(5)).

Both files belong to the guest: they are bounded, lines that are not understood are skipped, and ids outside the
sandbox's 65,536 do not exist.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from dsec.base.errors import DsecError, UserNotFoundError
from dsec.linux.userns import IDS_PER_RANGE
from dsec.runtimes.container.file_errors import show, typed_errors
from dsec.runtimes.container.root import open_data

MAXIMUM_DATABASE_BYTES = 1 << 20
MAXIMUM_LINES = 20_000
MAXIMUM_GROUPS = 1024
"""Supplementary groups of one user that count; the kernel takes 65,536, no user has them."""

DEFAULT_HOME = "/"


@dataclass(frozen=True, slots=True)
class ResolvedUser:
    """Who somebody is inside the sandbox.

    Attributes:
        uid, gid: ids inside.
        groups: supplementary group ids inside.
        home: home directory, ``/`` where the database names none.
    """

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = DEFAULT_HOME


ROOT = ResolvedUser(0, 0, (), "/root")


@dataclass(frozen=True, slots=True)
class _Account:
    name: str
    uid: int
    gid: int
    home: str


def find_user(text: str, passwd: bytes, group: bytes) -> ResolvedUser:
    """Resolve ``name``, ``uid``, ``name:group`` or ``uid:gid``.

    A number needs no entry: it then has group 0 and no home, as in other container engines. With a group
    named explicitly the supplementary groups do not count.

    Raises:
        UserNotFoundError: the name is unknown or the id lies outside the sandbox.
    """
    who, colon, group_text = text.partition(":")
    account = _find_account(who, passwd)
    if account is None:
        account = _Account(name="", uid=_parse_id(who, text), gid=0, home=DEFAULT_HOME)
    home = account.home if account.home.startswith("/") else DEFAULT_HOME
    if colon:
        return ResolvedUser(account.uid, _find_group(group_text, group, text), (), home)
    groups = tuple(gid for gid in _groups_of(account.name, group) if gid != account.gid)
    return ResolvedUser(account.uid, account.gid, groups, home)


def _find_account(who: str, passwd: bytes) -> _Account | None:
    """Return the first entry of that name, else the first of that uid."""
    by_uid = None
    for account in _accounts(passwd):
        if account.name == who:
            return account
        if by_uid is None and who.isascii() and who.isdigit() and account.uid == int(who[:10]):
            by_uid = account
    return by_uid


def _accounts(passwd: bytes) -> Iterator[_Account]:
    for fields in _lines(passwd, 7):
        uid, gid = _id(fields[2]), _id(fields[3])
        if uid is not None and gid is not None:
            yield _Account(fields[0], uid, gid, fields[5])


def _groups_of(name: str, group: bytes) -> tuple[int, ...]:
    """Return the groups that name the user as a member, in order, each once."""
    found: dict[int, None] = {}
    for fields in _lines(group, 4):
        gid = _id(fields[2])
        if name and gid is not None and name in fields[3].split(",") and len(found) < MAXIMUM_GROUPS:
            found[gid] = None
    return tuple(found)


def _find_group(text: str, group: bytes, whole: str) -> int:
    for fields in _lines(group, 4):
        gid = _id(fields[2])
        if fields[0] == text and gid is not None:
            return gid
    return _parse_id(text, whole)


def _lines(data: bytes, count: int) -> Iterator[list[str]]:
    """Yield the fields of well-formed lines."""
    for line in data[:MAXIMUM_DATABASE_BYTES].split(b"\n", MAXIMUM_LINES)[:MAXIMUM_LINES]:
        fields = line.decode("utf-8", "surrogateescape").split(":")
        if len(fields) == count and fields[0]:
            yield fields


def _id(text: str) -> int | None:
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        return None
    number = int(text)
    return number if number < IDS_PER_RANGE else None


def _parse_id(text: str, whole: str) -> int:
    number = _id(text)
    if number is None:
        raise UserNotFoundError(
            f"there is no user {show(whole.encode('utf-8', 'replace'))} in the sandbox",
            resolution=f"use a name of its /etc/passwd, or ids below {IDS_PER_RANGE}",
        )
    return number


def resolve_user(root_fd: int, text: str) -> ResolvedUser:
    """Resolve a user by the databases below a sandbox's root. Blocking; call it from a thread.

    Args:
        root_fd: the sandbox's root directory (O_PATH will do).
        text: ``name``, ``uid``, ``name:group`` or ``uid:gid``; ``0`` and ``root`` of an image without databases work.

    Raises:
        UserNotFoundError: unknown.
    """
    passwd, group = _read(root_fd, b"/etc/passwd"), _read(root_fd, b"/etc/group")
    if text == "root" and not passwd:
        return ROOT
    return find_user(text, passwd, group)


def _read(root_fd: int, path: bytes) -> bytes:
    """Return the start of a database; what cannot be read is empty, as in an image that has none."""
    try:
        with typed_errors(path):
            return _read_start(open_data(root_fd, path, os.O_RDONLY))
    except DsecError:
        return b""


def _read_start(fd: int) -> bytes:
    """Read a file from its beginning, at most `MAXIMUM_DATABASE_BYTES`, and close it. EISDIR for a directory."""
    try:
        data = b""
        while len(data) < MAXIMUM_DATABASE_BYTES and (more := os.read(fd, MAXIMUM_DATABASE_BYTES - len(data))):
            data += more
        return data
    finally:
        os.close(fd)
