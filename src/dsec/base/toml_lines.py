"""On which line of a TOML text each key stands.

The standard parser forgets positions, and an error without a line sends its reader searching. This scan follows just
enough of the grammar (headers, dotted keys, strings, brackets) to say where a key's entry begins; what stands inside a
value that spans lines is reported at the line of the entry, or of the element where each element has its own line.
It runs only on texts that the real parser has accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

Path = tuple[str | int, ...]

_KEY = r"(?:[A-Za-z0-9_-]+|\"(?:[^\"\\]|\\.)*\"|'[^']*')"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*\]\]?\s*(?:#.*)?$")
_ENTRY = re.compile(rf"\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*=")
_TOKEN = re.compile(
    r"\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''.*?'''|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|#[^\n]*|[\[\]{}]|\n", re.DOTALL
)


@dataclass(slots=True)
class _Scan:
    text: str
    lines: dict[Path, int] = field(default_factory=dict)
    prefix: Path = ()
    counts: dict[Path, int] = field(default_factory=dict)


def find_lines(text: str) -> Mapping[Path, int]:
    """Return the first line of every table, entry and list element that begins a line."""
    scan = _Scan(text)
    position, number = 0, 1
    while position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        line = text[position:end]
        if header := _HEADER.match(line):
            _enter(scan, header, number)
        elif entry := _ENTRY.match(line):
            stop, last = _value(scan, position + entry.end(), number, scan.prefix + _keys(entry.group(1)))
            position, number = stop, last
            continue
        position, number = end + 1, number + 1
    return scan.lines


def _keys(text: str) -> tuple[str, ...]:
    return tuple(found.strip("\"'") for found in re.findall(_KEY, text))


def _enter(scan: _Scan, header: re.Match[str], number: int) -> None:
    path: Path = ()
    keys = _keys(header.group(2))
    for index, key in enumerate(keys):
        path = (*path, key)
        if index < len(keys) - 1 and path in scan.counts:
            path = (*path, scan.counts[path])
    if header.group(1) == "[[":
        scan.counts[path] = scan.counts.get(path, -1) + 1
        scan.lines.setdefault(path, number)
        path = (*path, scan.counts[path])
    scan.prefix = path
    scan.lines.setdefault(path, number)


def _value(scan: _Scan, start: int, number: int, path: Path) -> tuple[int, int]:
    """Note an entry; return where the line after its value begins, and that line's number."""
    scan.lines.setdefault(path, number)
    depth, element = 0, -1
    for token in _TOKEN.finditer(scan.text, start):
        text = token.group()
        if text == "\n":
            number += 1
            if depth == 0:
                return token.end(), number
            continue
        if text in "[{":
            if depth == 1:
                element += 1
                scan.lines.setdefault((*path, element), number)
            depth += 1
        elif text in "]}":
            depth -= 1
        number += text.count("\n")
    return len(scan.text), number


def line_of(lines: Mapping[Path, int], path: Path) -> int:
    """Return the line of the nearest thing around a path that has one."""
    for length in range(len(path), 0, -1):
        if (found := lines.get(path[:length])) is not None:
            return found
    return 1
