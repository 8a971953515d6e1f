"""Random sessions on random images: what a scrub may change of what is seen, and what it never does.

The model is overlayfs in two dictionaries: `lower` is the image, `upper` what the session left, whiteouts and opaque
directories included. Both are looked at through `seen`, before a pack and with the packed layer in the upper's place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.images.entries import Entry, EntryKind
from dsec.images.packing import Found, Packing
from dsec.images.scrub import Scrub
from dsec.model.state import ScrubRules

NAMES = ("a", "b", "cache", "x1", "keep")
RULES = ScrubRules(defaults=False, remove=("cache/", "x*"), keep=("keep",))
Node = tuple[str, str]
"""Kind (``f``, ``d``, ``o`` for opaque, ``w``) and content."""
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)
edits = st.lists(st.tuples(st.sampled_from(["write", "mkdir", "remove", "replace"]), paths), max_size=12)


def parents(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[:length]) for length in range(1, len(parts)))


def below(tree: dict[str, Node], path: str) -> list[str]:
    return [each for each in tree if each.startswith(f"{path}/")]


@dataclass
class Overlay:
    """An image, and what a session writes over it."""

    lower: dict[str, Node] = field(default_factory=dict)
    upper: dict[str, Node] = field(default_factory=dict)

    def seen(self) -> dict[str, Node]:
        """What a sandbox sees: kinds without the marks of overlayfs."""
        shown = {path: node for path, node in self.lower.items() if not self._is_hidden(path)}
        shown |= {path: node for path, node in self.upper.items() if node[0] != "w"}
        return {path: ("d" if node[0] == "o" else node[0], node[1]) for path, node in shown.items()}

    def _is_hidden(self, path: str) -> bool:
        own = self.upper.get(path)
        if own is not None and own[0] in "wf":
            return True
        return any(self.upper.get(each, ("d",))[0] in "wfo" for each in parents(path))

    def left(self, path: str) -> bool:
        """Whether the session left the image's entry where it was, although it may have changed it."""
        if path not in self.lower or any(self.upper.get(each, ("d",))[0] in "wfo" for each in parents(path)):
            return False
        return path not in self.upper or self.upper[path][0] == self.lower[path][0]

    def apply(self, edit: str, path: str, content: str) -> None:
        shown = self.seen()
        if any(shown.get(each, ("d",))[0] == "f" for each in parents(path)):
            return  # Nothing holds it.
        if edit in ("remove", "replace"):
            self._remove(path, shown)
            if edit == "replace":
                self.apply("write", path, content)
        elif edit == "write" and shown.get(path, ("f",))[0] == "f":
            self._make_parents(path)
            self.upper[path] = ("f", content)
        elif edit == "mkdir" and path not in shown:
            self._make_parents(path)
            self._make_directory(path)

    def _make_parents(self, path: str) -> None:
        for each in parents(path):
            if each not in self.seen():
                self._make_directory(each)
            elif each not in self.upper:
                self.upper[each] = ("d", "")  # Copied up.

    def _make_directory(self, path: str) -> None:
        # Over a whiteout it is opaque: what was removed there must not come back.
        self.upper[path] = ("o" if path in self.upper else "d", "")

    def _remove(self, path: str, shown: dict[str, Node]) -> None:
        if path not in shown:
            return
        for each in [path, *below(self.upper, path)]:
            self.upper.pop(each, None)
        if path in self.lower and not self._is_hidden(path):
            self._make_parents(path)
            self.upper[path] = ("w", "")


def found(path: str, node: Node) -> Found:
    kind = {"f": EntryKind.FILE, "w": EntryKind.CHARACTER_DEVICE}.get(node[0], EntryKind.DIRECTORY)
    xattrs = {b"trusted.overlay.opaque": b"y"} if node[0] == "o" else {}
    entry = Entry(
        path=path.encode(),
        kind=kind,
        size_bytes=len(node[1]),
        xattrs=xattrs,
        is_whiteout=node[0] == "w",
    )
    return Found(entry=entry, content=lambda: [node[1].encode()], is_opaque=node[0] == "o")


def packed(overlay: Overlay) -> Overlay:
    """The image with the packed layer over it."""
    image = Overlay(lower=overlay.lower).seen()
    packing = Packing(Scrub(RULES), lambda path: image.get(path.decode(), ("",))[0] == "d")
    entries = sorted(overlay.upper.items(), key=lambda item: item[0].split("/"))
    layer: dict[str, Node] = {}
    for entry, content in packing.kept([found("", ("d", "")), *(found(path, node) for path, node in entries)]):
        mark = "w" if entry.is_whiteout else "o" if entry.xattrs else entry.kind.value[0]
        if entry.path:
            layer[entry.path.decode()] = (mark, b"".join(content()).decode())
    assert packing.files == len(layer)
    return Overlay(lower=overlay.lower, upper=layer)


def is_ruled(path: str, *, is_directory: bool) -> bool:
    scrub, rule = Scrub(RULES), None
    for each in [*parents(path), path]:
        rule = scrub.rule_for(each.encode(), is_directory=each != path or is_directory, inherited=rule)
    return rule is not None


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(image=edits, session=edits)
def test_a_scrub_undoes_the_session_where_a_rule_says_so_and_nothing_else(
    image: list[tuple[str, str]], session: list[tuple[str, str]]
) -> None:
    base = Overlay()
    for number, (edit, path) in enumerate(image):
        base.apply(edit, path, f"image {number}")
    overlay = Overlay(lower=base.seen())
    for number, (edit, path) in enumerate(session):
        overlay.apply(edit, path, f"session {number}")
    before, after, original = overlay.seen(), packed(overlay).seen(), overlay.lower
    for path in set(before) | set(after) | set(original):
        was, now, image_had = before.get(path), after.get(path), original.get(path)
        if now is not None:
            assert was is not None, f"{path} came back"
            assert now in (was, image_had), f"{path} is neither the session's nor the image's"
        elif was is not None:
            assert not overlay.left(path), f"{path} was taken away"
            assert is_ruled(path, is_directory=was[0] == "d"), f"{path} went without a rule"
        if was is not None and not is_ruled(path, is_directory=was[0] == "d"):
            assert now == was, f"{path} changed without a rule"
    for path, node in after.items():
        assert all(after.get(each, ("",))[0] == "d" for each in parents(path)), f"{path} hangs in the air"
        if is_ruled(path, is_directory=node[0] == "d") and node[0] == "f":
            assert node[1].startswith("image"), f"{path} rode along"
