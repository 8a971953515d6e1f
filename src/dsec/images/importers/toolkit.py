"""Make an image that is to be stacked on others: a toolkit, or a workspace.

Overlayfs shows of a directory that several layers have the attributes of the uppermost one. A directory of the host
with mode 0700 would therefore close the root of every sandbox that stands on it, and an archive that was packed by an
ordinary user would give that user ``/usr``. So directories that every base has are not taken from the source: they are
what bases have. All others are the layer's own.

Nothing is said of commands either: an image made so has the settings it was given, and no user or directory of its own.
"""

from __future__ import annotations

from dataclasses import replace

from dsec.base.errors import InvalidRequestError
from dsec.images.entries import Entry, EntryKind
from dsec.images.tree_writer import TreeWriter

_MODES = {b"root": 0o700, b"tmp": 0o1777, b"var/tmp": 0o1777}
_USUAL = frozenset(
    b" boot dev etc home media mnt opt proc root run sbin srv sys tmp usr var".split(b" ")
    + b"bin lib lib32 lib64 libx32 usr/bin usr/games usr/include usr/lib usr/libexec usr/local usr/sbin".split()
    + b"usr/share usr/src usr/local/bin usr/local/etc usr/local/include usr/local/lib usr/local/sbin".split()
    + b"usr/local/share var/cache var/lib var/local var/log var/opt var/spool var/tmp".split()
)
"""Directories of the Filesystem Hierarchy Standard 3.0; the first is the root itself."""


def placed(entry: Entry, at: bytes) -> Entry:
    """Return an entry of a source as it is in a layer whose content lies at `at`, a clean path."""
    path = b"/".join(part for part in entry.path.split(b"/") if part not in (b"", b"."))
    if at:
        link = b"%s/%s" % (at, entry.link.lstrip(b"/")) if entry.kind is EntryKind.HARD_LINK else entry.link
        # What is not clean stays as it is, so that the writer refuses it and shows it.
        entry = replace(entry, path=b"%s/%s" % (at, entry.path) if _is_relative(entry.path) else entry.path, link=link)
        path = b"%s/%s" % (at, path) if path else at
    if entry.kind is EntryKind.DIRECTORY and path in _USUAL:
        return replace(entry, mode=_MODES.get(path, 0o755), uid=0, gid=0, xattrs={})
    return entry


def _is_relative(path: bytes) -> bool:
    return not path.startswith(b"/") or not path.strip(b"/")


def write_parents(writer: TreeWriter, at: bytes) -> None:
    """Make the directories on the way to `at`, as bases have them.

    Raises:
        UnsafeArchiveError: `at` is no path of a sandbox.
    """
    parts = writer.clean_path(at).split(b"/") if at else []
    for depth in range(len(parts) + 1):
        path = b"/".join(parts[:depth])
        mode = _MODES.get(path, 0o755)
        writer.add(Entry(path=path or b".", kind=EntryKind.DIRECTORY, mode=mode))


def check_kind(what: str) -> None:
    """Refuse to import whole images as layers.

    Raises:
        InvalidRequestError: always.
    """
    raise InvalidRequestError(
        f"{what} is an image with layers and settings of its own, and cannot be imported as one layer",
        resolution="leave --as-layer out; the layers that it shares with a base are stacked once",
    )
