"""What of a session becomes a layer: a frozen writable layer goes in, entries of an image layer come out.

A writable layer is the upper half of an overlay and a layer of an image is a lower one; both say in the same way what
they hide, so that what is not scrubbed is copied as it stands: whiteouts, opaque marks, attributes, hard links. What
was of one mount alone (`origin` and others) is not.

To scrub means to undo what the session did at a path, and never to change what the image has there:

- A whiteout stays: without it a file that the session removed would come back. So does an opaque directory, empty if
  need be, for it hides what the image has in it. A directory stays when anything in it does.
- A file that hides one of the image's goes, and the image's is seen again. If it hides a *directory* of the image, a
  whiteout takes its place, since the session had removed all that is in there.
- A directory that no rule names stays although a scrub leaves it empty: programs may need it.
- Of an inode with several names those that stay share its content, whichever of them came first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dsec.base.errors import LimitExceededError
from dsec.images.entries import Entry, EntryKind, whiteout
from dsec.images.scrub import Scrub, shown
from dsec.model.image import ImageConfig
from dsec.model.state import PackReport

MAXIMUM_ENTRIES = 1_000_000
"""Entries of a pack: a guest can make more than the node should hold in memory, and no environment has as many."""
MAXIMUM_NAMED = 1000
"""Paths that a report names."""

_OVERLAY = (b"trusted.overlay.", b"user.overlay.")
_OF_ONE_MOUNT = frozenset({b"origin", b"impure", b"uuid", b"nlink", b"upper", b"index"})

Content = Callable[[], Iterable[bytes]]
"""Reads a file's bytes, before the next entry is asked for."""
Kept = tuple[Entry, Content]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOrder:
    """An image to be made of a frozen layer and of the layers that it stands on.

    Attributes:
        name: of the image.
        upper: directory of the frozen layer; nobody changes it meanwhile.
        base: digests of the layers below, from the lowest up.
        layer_paths: where those can be read.
        config: of the image.
        scrub: what is left out.
        source: for people to read.
        dry_run: make nothing.
        check: called at each entry; what it raises ends the pack.
    """

    name: str
    upper: Path
    base: tuple[str, ...]
    layer_paths: tuple[Path, ...]
    config: ImageConfig
    scrub: Scrub
    source: str
    dry_run: bool = False
    check: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One entry of a frozen layer.

    Attributes:
        entry: what it is, with the path from the root; never a hard link.
        content: reads a file's bytes.
        inode: the same for all names of one file that has several; None for others.
        is_opaque: a directory that hides what lower layers have in it.
    """

    entry: Entry
    content: Content = tuple
    inode: tuple[int, int] | None = None
    is_opaque: bool = False


@dataclass(slots=True)
class _Directory:
    """A directory on the way to where we are.

    Attributes:
        rule: why it is left out unless something in it stays; None: it stays.
        unnamed: how many paths had been named when it was entered.
    """

    path: bytes
    found: Found
    rule: str | None
    is_hidden: bool
    unnamed: int
    is_kept: bool


@dataclass(slots=True)
class Packing:
    """One pack. Go through `kept` once; the figures are true after that.

    Attributes:
        scrub: the rules.
        is_directory_below: whether the image's layers show a directory at a path.
        files, content_bytes: what is kept, the root left out.
        named: the first paths of what is kept; directories, with a slash, where nothing is named that is in them.
        removed: paths with their rules, the uppermost of what went as a whole.
        removed_files, removed_bytes: all that was left out.
    """

    scrub: Scrub
    is_directory_below: Callable[[bytes], bool]
    files: int = 0
    content_bytes: int = 0
    named: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    removed_files: int = 0
    removed_bytes: int = 0
    _way: list[_Directory] = field(default_factory=list)
    _first: dict[tuple[int, int], bytes] = field(default_factory=dict)
    _gone: dict[tuple[int, int], int] = field(default_factory=dict)
    _directory_path: bytes = b""

    def kept(self, entries: Iterable[Found]) -> Iterator[Kept]:
        """Yield what is to be written of a layer's entries: directories before what is in them, the root first."""
        for found in entries:
            self._leave_for(found.entry.path)
            if found.entry.kind is EntryKind.DIRECTORY:
                yield from self._directory(found)
            else:
                yield from self._other(found)
        self._leave_all()
        self._name_directory()
        self.removed_bytes += sum(size for inode, size in self._gone.items() if inode not in self._first)

    def report(self, *, name: str = "", layer: str = "") -> PackReport:
        """Say what was packed, or would be."""
        return PackReport(
            name=name,
            layer=layer,
            files=self.files,
            content_bytes=self.content_bytes,
            kept=() if name else tuple(self.named),
            removed=tuple(self.removed),
            removed_files=self.removed_files,
            removed_bytes=self.removed_bytes,
        )

    def _directory(self, found: Found) -> Iterator[Kept]:
        path = found.entry.path
        rule = self._rule(path, is_directory=True) if path else None
        stays = rule is None or found.is_opaque
        is_hidden = found.is_opaque or self._is_hidden()
        self._way.append(_Directory(path, found, rule, is_hidden, len(self.removed), is_kept=False))
        if stays:
            yield from self._keep_way()

    def _other(self, found: Found) -> Iterator[Kept]:
        entry = found.entry
        if entry.is_whiteout:
            yield from self._keep_way()
            # As importers write it, so that a layer keeps its digest on its way through an archive.
            yield self._counted(whiteout(entry.path), tuple)
            return
        rule = self._rule(entry.path, is_directory=False)
        if rule is None:
            yield from self._keep_way()
            yield self._linked(found)
            return
        self._leave_out(found, rule)
        if not self._is_hidden() and self.is_directory_below(entry.path):
            yield from self._keep_way()
            yield self._counted(whiteout(entry.path), tuple)

    def _rule(self, path: bytes, *, is_directory: bool) -> str | None:
        inherited = self._way[-1].rule if self._way else None
        return self.scrub.rule_for(path, is_directory=is_directory, inherited=inherited)

    def _is_hidden(self) -> bool:
        """Whether nothing of lower layers is seen where we are."""
        return bool(self._way) and self._way[-1].is_hidden

    def _keep_way(self) -> Iterator[Kept]:
        """Keep the directories that lead to what is kept."""
        for directory in self._way:
            if not directory.is_kept:
                directory.is_kept = True
                yield self._counted(_clean(directory.found.entry), tuple)

    def _linked(self, found: Found) -> Kept:
        entry = _clean(found.entry)
        if found.inode is not None:
            first = self._first.setdefault(found.inode, entry.path)
            if first != entry.path:
                link = replace(entry, kind=EntryKind.HARD_LINK, link=first, size_bytes=0)
                return self._counted(link, tuple)
        return self._counted(entry, found.content)

    def _counted(self, entry: Entry, content: Content) -> Kept:
        self.files += bool(entry.path)
        if self.files > MAXIMUM_ENTRIES:
            raise LimitExceededError(
                f"the session left more than {MAXIMUM_ENTRIES} entries", resolution="remove or scrub what is not needed"
            )
        self.content_bytes += entry.size_bytes
        self._name_kept(entry)
        return entry, content

    def _name_kept(self, entry: Entry) -> None:
        if not _is_in(entry.path, self._directory_path):
            self._name_directory()
        self._directory_path = b""
        if entry.kind is EntryKind.DIRECTORY:
            self._directory_path = entry.path
        elif len(self.named) < MAXIMUM_NAMED:
            self.named.append(shown(entry.path) + (" (removed)" if entry.is_whiteout else ""))

    def _name_directory(self) -> None:
        if self._directory_path and len(self.named) < MAXIMUM_NAMED:
            self.named.append(f"{shown(self._directory_path)}/")

    def _leave_out(self, found: Found, rule: str) -> None:
        self.removed_files += 1
        if found.inode is None:
            self.removed_bytes += found.entry.size_bytes
        else:
            self._gone[found.inode] = found.entry.size_bytes
        self._name(found.entry.path, rule)

    def _name(self, path: bytes, rule: str) -> None:
        if len(self.removed) < MAXIMUM_NAMED:
            self.removed.append(f"{shown(path)}: {rule}")

    def _leave_for(self, path: bytes) -> None:
        while self._way and not _is_in(path, self._way[-1].path):
            self._leave()

    def _leave_all(self) -> None:
        while self._way:
            self._leave()

    def _leave(self) -> None:
        directory = self._way.pop()
        if directory.is_kept or directory.rule is None:
            return
        # It went as a whole: name it instead of what was in it.
        del self.removed[directory.unnamed :]
        self._leave_out(directory.found, directory.rule)


def _is_in(path: bytes, directory: bytes) -> bool:
    return not directory or path.startswith(directory + b"/")


def _clean(entry: Entry) -> Entry:
    return replace(entry, xattrs=_kept_xattrs(entry.xattrs))


def _kept_xattrs(xattrs: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
    return {name: value for name, value in xattrs.items() if not _is_of_one_mount(name)}


def _is_of_one_mount(name: bytes) -> bool:
    return any(name.startswith(prefix) and name[len(prefix) :] in _OF_ONE_MOUNT for prefix in _OVERLAY)
