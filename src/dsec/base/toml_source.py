"""A TOML text that knows on which line each value stands, so that every complaint can name it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.base.toml_lines import find_lines
from dsec.base.units import MIB, format_size

MAXIMUM_TEXT_BYTES = 1 * MIB
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
            return cls(name, tomllib.loads(text), find_lines(text))
        except tomllib.TOMLDecodeError as error:
            match = _SYNTAX_LINE.search(str(error))
            line = int(match.group(1)) if match else text.count("\n") + 1
            raise InvalidRequestError(
                f"{name}:{line}: not TOML: {error}", resolution="write `key = value` lines under `[table]` headers"
            ) from error

    def error(self, path: Sequence[Key], problem: str, *, resolution: str = "") -> InvalidRequestError:
        """Return the error for the value at `path`, to be raised."""
        text = f"{self.place(path)}: {shown(path)} {problem}".replace("  ", " ")
        return InvalidRequestError(text, resolution=resolution)

    def place(self, path: Sequence[Key]) -> str:
        """Return file and line of the value at `path`, as errors begin."""
        line = self.line(path)
        return f"{self.name}:{line}" if line else self.name

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
