"""What is compared when a sandbox is asked whether it is clean: facts in groups, a hash over them, differences in
words.

A fact is a line of text that two clean sandboxes of one shape have alike. The whole is small (some eighty lines), so
that recording and comparing cost less than looking. Pure.
"""

from __future__ import annotations

from itertools import pairwise

import blake3
import msgspec

from dsec.model.value import Value

VERSION = 2
"""Of what the facts mean; a record of another version is not compared with."""

COMMANDS = "groups of commands"
PROCESSES = "processes"
MOUNTS = "mounts"
INIT = "settings of the init"
IPC = "System V objects"
SOCKETS = "interfaces and sockets"
VOLATILE = "files in memory"
WRITTEN = "files of the writable layer"
ENVIRONMENT = "variables and seed"
DECLARED = "declared files"
COMMAND = "the image's check"

OF_FILES = frozenset({WRITTEN, DECLARED, COMMAND})
"""Groups that a state which began from a checkpoint has from there, and not from the clean state."""


_ENTRIES = (WRITTEN, VOLATILE)
_AFTER_PATH = " mode "
"""Ends the path in a line of these groups. Nothing that a guest chooses stands behind it: the last one counts."""
_LED_THROUGH_ROOT = frozenset({"/ has trusted.overlay.impure", "/ has user.overlay.impure"})
"""What overlayfs notes of the root directory when something below it came from a layer of the image."""
_DIRECTORY_MODE = "4"
"""The first digit of a directory's mode and kind, in octal; that of a link is 12, of a device 2 or 6."""


class CleanState(Value, frozen=True):
    """What was seen of one sandbox.

    Attributes:
        facts: lines by group, sorted; a group that nobody could look at is missing.
    """

    facts: dict[str, tuple[str, ...]] = {}

    def fingerprint(self) -> str:
        """Return ``blake3:`` and the hash over all facts."""
        content = msgspec.json.encode([VERSION, self.facts], order="sorted")
        return f"blake3:{blake3.blake3(content).hexdigest()}"

    def without(self, groups: frozenset[str]) -> CleanState:
        """Leave groups out of the comparison."""
        return CleanState(facts={name: lines for name, lines in self.facts.items() if name not in groups})

    def ignoring(self, paths: tuple[str, ...]) -> CleanState:
        """Leave files below these paths out of the comparison, and the directories that lead there.

        A directory that leads to one is in the writable layer because something was written below it; whether its
        rights were changed meanwhile, too, is not told any more.
        """
        if not paths:
            return self
        shown = tuple(map(printable, paths))
        return CleanState(
            facts={
                name: tuple(line for line in found if not _concerns(line, shown)) if name in _ENTRIES else found
                for name, found in self.facts.items()
            }
        )

    def having(self, group: str, lines: tuple[str, ...]) -> CleanState:
        """Return the same with another group."""
        return CleanState(facts={**self.facts, group: lines})


def differences(expected: CleanState, seen: CleanState) -> tuple[str, ...]:
    """Say in which ways `seen` is not as expected; empty when it is."""
    said: list[str] = []
    for group in sorted(expected.facts.keys() | seen.facts.keys()):
        clean, found = expected.facts.get(group, ()), seen.facts.get(group, ())
        if group == PROCESSES and clean != found:
            said.append(f"{_number(found)} processes run, {_number(clean)} do in a fresh one")
            continue
        if group == COMMAND and clean != found:
            said.append(f"{group}: {'; '.join(found) or 'not run'}. In a fresh one: {'; '.join(clean) or 'not run'}")
            continue
        more, less = sorted(set(found) - set(clean)), sorted(set(clean) - set(found))
        more = _telling(more) if group == WRITTEN else more
        if more:
            said.append(f"{group} that a fresh one has not: {_few(more)}")
        if less:
            said.append(f"{group} of a fresh one are missing: {_few(less)}")
    return tuple(said)


def printable(text: str) -> str:
    """Return text that any report can carry: what a guest named may be no UTF-8, or hold control characters."""
    encoded = text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in encoded)


def lines(facts: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Return the lines of a group as they are recorded."""
    return tuple(sorted(map(printable, facts)))


def _concerns(line: str, ignored: tuple[str, ...]) -> bool:
    if line in _LED_THROUGH_ROOT:
        return True
    path, _, mode = line.rpartition(_AFTER_PATH)
    leads = f"{path}/" if path and mode.startswith(_DIRECTORY_MODE) else None
    return any(
        path == each or path.startswith(f"{each}/") or (leads is not None and each.startswith(leads))
        for each in ignored
    )


def _telling(entries: list[str]) -> list[str]:
    """Return the entries of a writable layer that tell what was done, unless they are all of the other kind: what
    overlayfs does of itself when it copies an entry of the image up is to mark the root and to copy the directories
    that lead there."""
    # What is in a directory comes right behind it in this order.
    paths = sorted((entry.rpartition(_AFTER_PATH)[0] for entry in entries), key=lambda path: path.replace("/", "\0"))
    leading = {path for path, after in pairwise(paths) if after.startswith(f"{path.rstrip('/')}/")}
    told = [
        entry
        for entry in entries
        if entry not in _LED_THROUGH_ROOT and not (_is_directory(entry) and entry.rpartition(_AFTER_PATH)[0] in leading)
    ]
    return told or entries


def _is_directory(entry: str) -> bool:
    return entry.rpartition(_AFTER_PATH)[2].startswith(_DIRECTORY_MODE)


def _few(names: list[str]) -> str:
    shown = ", ".join(name[:200] for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def _number(found: tuple[str, ...]) -> str:
    return found[0] if found else "no"
