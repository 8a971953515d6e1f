"""Reading task.toml so that every complaint names the file and the line.

`tomllib` says where the syntax is wrong but forgets where a value stood, so that the line of a bad value is looked up
again in the text: the tables' headers and ``key =`` at the start of a line are enough for the format's flat files. A
key inside an inline table is reported at the line of its table.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dsec.base.errors import TaskFormatError
from dsec.base.units import MIB

MAXIMUM_FILE_BYTES = 4 * MIB
_HEADER = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(#.*)?")
_KEY = re.compile(r"""\s*(["']?)([A-Za-z0-9_.-]+)\1\s*=""")
_SYNTAX_LINE = re.compile(r"line (\d+)")


def read_text(path: Path) -> str:
    """Return a small text file of a task.

    Raises:
        TaskFormatError: it is missing, not a regular file, too large or not UTF-8.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise TaskFormatError(f"{path} is missing", resolution="every task folder needs this file") from None
    except OSError as error:
        raise TaskFormatError(f"{path} cannot be read", detail=error.strerror or "") from error
    if len(data) > MAXIMUM_FILE_BYTES:
        raise TaskFormatError(f"{path} is larger than {MAXIMUM_FILE_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise TaskFormatError(f"{path}:{line}: not UTF-8", detail=str(error)) from error


def line_of(text: str, table: str, key: str) -> int | None:
    """Return the line on which `key` of `table` stands ("" is the top), or that of the table, or None."""
    current, table_line = "", None
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.fullmatch(line):
            current = header.group(1).replace(" ", "").replace('"', "")
            if current == table:
                table_line = table_line or number
        elif (match := _KEY.match(line)) and ".".join(filter(None, (current, match.group(2)))) in (
            ".".join(filter(None, (table, key))),
            table,
        ):
            return number
    return table_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed TOML file that knows its text."""

    path: Path
    text: str
    values: Mapping[str, object]

    @classmethod
    def read(cls, path: Path) -> Document:
        """Parse a file.

        Raises:
            TaskFormatError: it cannot be read, or is not TOML; the brief names file and line.
        """
        text = read_text(path)
        try:
            return cls(path=path, text=text, values=tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            match = _SYNTAX_LINE.search(str(error))
            line = int(match.group(1)) if match else len(text.splitlines())
            raise TaskFormatError(f"{path}:{line}: not TOML: {error}") from error

    def error(self, table: str, key: str, problem: str, *, resolution: str = "") -> TaskFormatError:
        """Return the error for a bad value, to be raised."""
        line = line_of(self.text, table, key)
        place = f"{self.path}:{line}" if line else str(self.path)
        name = ".".join(filter(None, (table, key)))
        return TaskFormatError(f"{place}: {name} {problem}", resolution=resolution)

    def table(self, name: str) -> Mapping[str, object]:
        """Return a top-level table, empty when it is missing.

        Raises:
            TaskFormatError: it is no table.
        """
        value = self.values.get(name, {})
        if not isinstance(value, dict):
            raise self.error("", name, "must be a table")
        return value
