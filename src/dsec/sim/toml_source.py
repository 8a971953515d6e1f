"""A TOML text that knows on which line each value stands.

`tomllib` says where the syntax is wrong and forgets where a value stood. Headers and the starts of ``key =`` are
enough to find it again;
a value inside an inline table or a list is reported at the line where that begins.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.base.units import MIB, format_size

MAXIMUM_TEXT_BYTES = 1 * MIB
_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(#.*)?")
_KEY = re.compile(r"""\s*([A-Za-z0-9_."'-]+?)\s*=""")
_SYNTAX_LINE = re.compile(r"line (\d+)")

Key = str | int
KeyPath = tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class TomlSource:
    """Parsed values, and the line of each key path.

    Attributes:
        name: of the file, for errors.
        values: as parsed.
        lines: line numbers by path, such as ``("nodes", 0, "count")``.
    """

    name: str
    values: Mapping[str, object]
    lines: Mapping[KeyPath, int]

    @classmethod
    def parse(cls, name: str, text: str) -> TomlSource:
        """Parse.

        Raises:
            InvalidRequestError: it is not TOML, or too large; the brief names file and line.
        """
        if len(text) > MAXIMUM_TEXT_BYTES:
            raise InvalidRequestError(f"{name} is larger than {format_size(MAXIMUM_TEXT_BYTES)}")
        try:
            return cls(name, tomllib.loads(text), _lines(text))
        except tomllib.TOMLDecodeError as error:
            match = _SYNTAX_LINE.search(str(error))
            line = int(match.group(1)) if match else text.count("\n") + 1
            raise InvalidRequestError(
                f"{name}:{line}: not TOML: {error}", resolution="write `key = value` lines under `[table]` headers"
            ) from error

    def error(self, path: Sequence[Key], problem: str, *, resolution: str = "") -> InvalidRequestError:
        """Return the error for the value at `path`, to be raised."""
        line = self.line(path)
        place = f"{self.name}:{line}" if line else self.name
        return InvalidRequestError(f"{place}: {shown(path)} {problem}".replace("  ", " "), resolution=resolution)

    def line(self, path: Sequence[Key]) -> int | None:
        """Return the line of the nearest enclosing key that is known."""
        key = tuple(path)
        while key:
            if key in self.lines:
                return self.lines[key]
            key = key[:-1]
        return None


def shown(path: Sequence[Key]) -> str:
    """Return a path as people write it: ``nodes[0].count``."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.removeprefix(".")


def _lines(text: str) -> dict[KeyPath, int]:
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.fullmatch(line):
            table = _table(header.group(2), counts, repeated=header.group(1) == "[[")
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault(table + _parts(key.group(1)), number)
    return lines


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _table(dotted: str, counts: dict[KeyPath, int], *, repeated: bool) -> KeyPath:
    """Return the path of a header; inside an array of tables it means the last element."""
    path: KeyPath = ()
    parts = _parts(dotted)
    for depth, part in enumerate(parts):
        path = (*path, part)
        if repeated and depth == len(parts) - 1:
            counts[path] = counts.get(path, 0) + 1
        if path in counts:
            path = (*path, counts[path] - 1)
    return path
