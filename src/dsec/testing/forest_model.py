"""What a node's sandboxes must be: plain dictionaries, and each operation on them in a line or two.

A forest holds sandboxes; a sandbox its files, its clean state and its checkpoints. Nothing is shared by copy-on-write
here, nothing is deferred, and nothing can fail half-way: that is what makes it the measure of what a node shows.
Everything is immutable, so that the forests before and after an operation that was cut off can be held side by side.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dsec.model.files import FileKind
from dsec.model.sandbox import SandboxFilter, SandboxState
from dsec.sdk.state import state_of
from dsec.service.port import SandboxService

Entry = tuple[str, int, bytes]
"""Kind, permission bits, and what is in it: content of a file, target of a link."""
Files = Mapping[str, Entry]
"""Entries by their path below the directory that is looked at."""
Shown = tuple[SandboxState, int, frozenset[tuple[str, str | None]], str | None, Files | None]
"""What an onlooker sees of a sandbox: state, generation, checkpoints with their parents, the one where the present
began, and the files; None for those of a sandbox that is not to be woken for a look."""

_FILE, _DIRECTORY, _LINK = FileKind.FILE.value, FileKind.DIRECTORY.value, FileKind.SYMLINK.value
EVERY = SandboxFilter(states=tuple(SandboxState))
_DEPTH = 16


class RefusedError(Exception):
    """This edit has to be refused, and changes nothing."""


# -- edits ------------------------------------------------------------------------------------------------------------


def with_directory(files: Files, path: str) -> Files:
    """Make a directory and its missing parents."""
    if not path:
        return files
    there = files.get(path)
    if there is not None:
        if there[0] != _DIRECTORY:
            raise RefusedError(f"{path} is no directory")
        return files
    return {**with_directory(files, posixpath.dirname(path)), path: (_DIRECTORY, 0o755, b"")}


def written(files: Files, path: str, content: bytes, *, mode: int, append: bool) -> Files:
    """Write a file, and make the directories that lead to it."""
    there = files.get(path)
    if there is not None and there[0] != _FILE:
        raise RefusedError(f"{path} is a {there[0]}")
    if there is not None:
        return {**files, path: (_FILE, there[1], there[2] + content if append else content)}
    return {**with_directory(files, posixpath.dirname(path)), path: (_FILE, mode, content)}


def removed(files: Files, path: str) -> Files:
    """Remove an entry with everything in it."""
    if path not in files:
        raise RefusedError(f"there is no {path}")
    return {name: entry for name, entry in files.items() if name != path and not name.startswith(f"{path}/")}


def moved(files: Files, source: str, target: str) -> Files:
    """Rename an entry, replacing a file but no directory."""
    if source not in files or target.startswith(f"{source}/"):
        raise RefusedError(f"{source} cannot be moved to {target}")
    there, parent = files.get(target), posixpath.dirname(target)
    if source == target:
        return files
    if (parent and files.get(parent, ("",))[0] != _DIRECTORY) or _is_in_a_file(files, target):
        raise RefusedError(f"nothing holds {target}")
    if there is not None and _DIRECTORY in (there[0], files[source][0]):
        raise RefusedError(f"{target} is in the way")
    subtree = {target + name[len(source) :]: files[name] for name in (source, *_below(files, source))}
    return {**removed(files, source), **subtree}


def _below(files: Files, path: str) -> list[str]:
    return [name for name in files if name.startswith(f"{path}/")]


def _is_in_a_file(files: Files, path: str) -> bool:
    parent = posixpath.dirname(path)
    return bool(parent) and (files.get(parent, (_DIRECTORY,))[0] != _DIRECTORY or _is_in_a_file(files, parent))


# -- sandboxes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A checkpoint: what was saved, and the checkpoint upon which."""

    files: Files = field(repr=False)
    parent: str | None
    is_for_snapshot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A sandbox. Its checkpoints go by their name, or by their id where they have none."""

    files: Files
    clean: Files = field(repr=False)
    state: SandboxState = SandboxState.READY
    generation: int = 0
    points: Mapping[str, Point] = field(default_factory=dict)
    current: str | None = None

    @property
    def is_live(self) -> bool:
        return self.state in (SandboxState.READY, SandboxState.PAUSED)

    def with_files(self, files: Files) -> Box:
        return replace(self, files=files, state=SandboxState.READY)

    def in_state(self, state: SandboxState) -> Box:
        return replace(self, state=state)

    def stopped(self) -> Box:
        return replace(self, state=SandboxState.STOPPED, points={}, current=None)

    def saved(self, key: str) -> Box:
        return replace(self, points={**self.points, key: Point(files=self.files, parent=self.current)}, current=key)

    def saved_for_snapshot(self, key: str) -> Box:
        """Save for a snapshot: the checkpoint of the last one goes."""
        box = self.saved(key)
        point = replace(box.points[key], is_for_snapshot=True)
        for name in [name for name, each in self.points.items() if each.is_for_snapshot]:
            box = box.without(name)
        parent = box.points[key].parent
        return replace(box, points={**box.points, key: replace(point, parent=parent)})

    def without(self, key: str) -> Box:
        """Forget a checkpoint; what began from it begins from its parent."""
        heir = self.points[key].parent
        kept = {
            name: replace(point, parent=heir if point.parent == key else point.parent)
            for name, point in self.points.items()
            if name != key
        }
        return replace(self, points=kept, current=heir if self.current == key else self.current)

    def rolled_back(self, key: str | None) -> Box:
        files = self.clean if key is None else self.points[key].files
        return replace(self, files=files, state=SandboxState.READY, generation=self.generation + 1, current=key)

    def child(self, key: str | None) -> Box:
        files = self.files if key is None else self.points[key].files
        return Box(files=files, clean=files)

    def shown(self) -> Shown:
        tree = frozenset((name, point.parent) for name, point in self.points.items())
        files = self.files if self.state is SandboxState.READY else None
        return (self.state, self.generation, tree, self.current, files)


@dataclass(frozen=True, slots=True)
class Sight:
    """What an onlooker sees of a node: its sandboxes, and the names of snapshots and images."""

    boxes: Mapping[str, Shown]
    snapshots: frozenset[str] = frozenset()
    images: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Forest:
    """All sandboxes of a node, the snapshots in its store, and its images with what they hold."""

    boxes: Mapping[str, Box] = field(default_factory=dict)
    snapshots: Mapping[str, Files] = field(default_factory=dict, repr=False)
    images: Mapping[str, Files] = field(default_factory=dict, repr=False)

    def having(self, boxes: Mapping[str, Box]) -> Forest:
        return replace(self, boxes={**self.boxes, **boxes})

    def without(self, name: str) -> Forest:
        return replace(self, boxes={key: box for key, box in self.boxes.items() if key != name})

    def with_snapshot(self, name: str, files: Files) -> Forest:
        return replace(self, snapshots={**self.snapshots, name: files})

    def without_snapshot(self, name: str) -> Forest:
        return replace(self, snapshots={key: files for key, files in self.snapshots.items() if key != name})

    def with_image(self, name: str, files: Files) -> Forest:
        return replace(self, images={**self.images, name: files})

    def shown(self) -> Sight:
        boxes = {name: box.shown() for name, box in self.boxes.items()}
        return Sight(boxes, frozenset(self.snapshots), frozenset(self.images))


# -- what a node shows ------------------------------------------------------------------------------------------------


async def look(service: SandboxService, home: str) -> Sight:
    """Look at everything that a node has, and wake no sandbox."""
    seen: dict[str, Shown] = {}
    for info in await service.list(EVERY):
        points = (
            await state_of(service).list_checkpoints(info.sandbox_id) if info.state is not SandboxState.STOPPED else ()
        )
        keys = {each.checkpoint_id: each.name or each.checkpoint_id for each in points}
        tree = frozenset((keys[each.checkpoint_id], keys.get(each.parent or "")) for each in points)
        current = next((keys[each.checkpoint_id] for each in points if each.is_current), None)
        files = await files_of(service, info.sandbox_id, home) if info.state is SandboxState.READY else None
        seen[info.sandbox_id] = (info.state, info.generation, tree, current, files)
    snapshots = frozenset(info.name for info in await state_of(service).list_snapshots())
    return Sight(seen, snapshots, frozenset(info.name.removesuffix(":latest") for info in await service.images()))


async def files_of(service: SandboxService, sandbox_id: str, home: str) -> Files:
    """Read everything below a directory."""
    found: dict[str, Entry] = {}
    for info in await service.list_files(sandbox_id, home, depth=_DEPTH):
        content = (info.target or "").encode()
        if info.kind is FileKind.FILE:
            content = b"".join([chunk async for chunk in service.read_file(sandbox_id, info.path)])
        # The bits of a link mean nothing, and differ from one file system to another.
        mode = 0 if info.kind is FileKind.SYMLINK else info.mode
        found[posixpath.relpath(info.path, home)] = (info.kind.value, mode, content)
    return found


def link(target: str) -> Entry:
    """A symbolic link."""
    return (_LINK, 0, target.encode())


_PARTS = ("state", "generation", "checkpoints", "current", "files")


def differing(shown: Sight, expected: Sight) -> str:
    """Say in which parts of which sandboxes what is shown is not what must be; empty when it is."""
    pairs = [
        ("sandboxes", shown.boxes.keys(), expected.boxes.keys()),
        ("snapshots", shown.snapshots, expected.snapshots),
        ("images", shown.images, expected.images),
    ]
    lines = [f"{what}: {sorted(seen)}, expected: {sorted(wanted)}" for what, seen, wanted in pairs if seen != wanted]
    for name in sorted(shown.boxes.keys() & expected.boxes.keys()):
        parts = zip(_PARTS, shown.boxes[name], expected.boxes[name], strict=True)
        lines += [f"{name}: {part}: {seen}, expected: {wanted}" for part, seen, wanted in parts if seen != wanted]
    return "\n".join(lines)
