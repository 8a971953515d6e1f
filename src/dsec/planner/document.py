"""A TOML text that is read strictly: every key is asked for, and every error names its file and line."""

from __future__ import annotations

import tomllib
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from dsec.base.errors import InvalidRequestError
from dsec.base.toml_lines import Path, find_lines, line_of
from dsec.planner.dimension import PURE, Dimension
from dsec.planner.quantity import Quantity, example, parse_quantity

_LONGEST_TEXT = 4 << 20
_LARGEST = 1e300


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed text.

    Attributes:
        name: of the file, for errors.
        data: what the parser returned.
        lines: where its keys stand.
    """

    name: str
    data: dict[str, Any]
    lines: Mapping[Path, int]

    def root(self) -> Table:
        """Return the outermost table."""
        return Table(self, (), self.data)


def parse_document(text: str, *, name: str) -> Document:
    """Parse a TOML text.

    Raises:
        InvalidRequestError: it is not TOML, or larger than 4 MiB.
    """
    if len(text) > _LONGEST_TEXT:
        raise InvalidRequestError(f"{name} is larger than 4 MiB", resolution="split it")
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # Numbers of thousands of digits are plain ValueErrors.
        raise InvalidRequestError(f"{name} is not TOML", detail=str(error), resolution="mend the line named") from error
    return Document(name, data, find_lines(text))


@dataclass(slots=True)
class Table:
    """A table of a document, which remembers what was asked for so that the rest can be refused."""

    document: Document
    path: Path
    data: dict[str, Any]
    _asked: set[str] = field(default_factory=set)

    def place(self, key: str | int | None = None) -> str:
        """Return ``file:line`` of a key, or of the table."""
        path = self.path if key is None else (*self.path, key)
        return f"{self.document.name}:{line_of(self.document.lines, path)}"

    def label(self, key: str | int | None = None) -> str:
        """Return the dotted name of a key."""
        return ".".join(str(part) for part in (self.path if key is None else (*self.path, key)))

    def error(
        self, key: str | int | None, brief: str, *, detail: str = "", resolution: str = ""
    ) -> InvalidRequestError:
        """Return an error that names file, line and key."""
        label = self.label(key)
        head = f"{self.place(key)}: {label}: {brief}" if label else f"{self.place(key)}: {brief}"
        return InvalidRequestError(head, detail=detail, resolution=resolution)

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def raw(self, key: str) -> Any:
        """Return what stands under a key; None: nothing."""
        self._asked.add(key)
        return self.data.get(key)

    def required(self, key: str, what: str) -> Any:
        """Return what stands under a key; `what` says in the error what belongs there."""
        if key not in self.data:
            raise self.error(None, f"{key!r} is missing", resolution=f"add {key} = {what}")
        return self.raw(key)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text."""
        value = self.raw(key) if default is not None else self.required(key, '"..."')
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.error(key, f"{value!r} is not a text", resolution="write it in quotes")
        if any(unicodedata.category(letter) == "Cc" and letter not in "\n\t" for letter in value):
            raise self.error(key, f"{value!r} has control characters", resolution="leave them out")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str | None = None) -> str:
        """Return one of some words."""
        if key not in self.data and default is None:
            raise self.error(None, f"{key!r} is missing", resolution=f"add {key} = one of: {', '.join(choices)}")
        value = self.text(key, default)
        if value not in choices:
            raise self.error(key, f"{value!r} is not known here", resolution=f"write one of: {', '.join(choices)}")
        return value

    def boolean(self, key: str, default: bool) -> bool:
        """Return a truth value."""
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"{value!r} is not true or false")
        return value

    def quantity(self, key: str, dimension: Dimension, default: str | None = None) -> Quantity:
        """Return a quantity of a dimension."""
        value = self.raw(key) if default is not None else self.required(key, example(dimension))
        return self.checked(key, default if value is None else value, dimension)

    def checked(self, key: str | int, value: Any, dimension: Dimension) -> Quantity:
        """Return a value that stands under a key as a quantity of a dimension."""
        found = self.read(key, value, dimension)
        if found.dimension != dimension:
            raise self.wrong_dimension(key, str(value), found.dimension, dimension)
        return found

    def read(self, key: str | int, value: Any, expected: Dimension | None = None) -> Quantity:
        """Return a number or a text as a quantity of any dimension; `expected` is only named in errors."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not -_LARGEST < value < _LARGEST:
                raise self.error(key, f"{value!r} is not a number to reckon with", resolution="write one below 1e300")
            return Quantity(float(value), PURE, "", 0.0)
        wanted = f"; expected: {example(expected)}" if expected is not None else ""
        if not isinstance(value, str):
            raise self.error(key, f"{value!r} is not a quantity{wanted}", resolution="write a text with a unit")
        try:
            return parse_quantity(value)
        except InvalidRequestError as error:
            raise self.error(key, error.brief + wanted, detail=error.detail, resolution=error.resolution) from error

    def wrong_dimension(
        self, key: str | int, written: str, found: Dimension, expected: Dimension
    ) -> InvalidRequestError:
        """Return the error for a value with a missing or contradictory unit."""
        wrong = f"{written!r} has no unit" if found.is_pure else f"{written!r} is in {found}"
        return self.error(
            key,
            f"{wrong}, expected {expected}",
            resolution=f"write a quantity in {expected}, such as {example(expected)}",
        )

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number."""
        value = self.raw(key) if default is not None else self.required(key, "a whole number")
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, f"{value!r} is not a whole number")
        return value

    def items(self, key: str) -> list[Any]:
        """Return a list; empty: there is none."""
        value = self.raw(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(key, f"{value!r} is not a list", resolution="write [ ... ]")
        return value

    def table(self, key: str) -> Table | None:
        """Return a table inside; None: there is none."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"{value!r} is not a table")
        return Table(self.document, (*self.path, key), value)

    def needed_table(self, key: str) -> Table:
        """Return a table inside that has to be there."""
        found = self.table(key)
        if found is None:
            raise self.error(None, f"[{self.label(key)}] is missing", resolution=f"add the table [{self.label(key)}]")
        return found

    def tables(self, key: str) -> dict[str, Table]:
        """Return the tables inside a table, by name."""
        outer = self.table(key)
        if outer is None:
            return {}
        return {name: outer.needed_table(name) for name in outer.data}

    def listed(self, key: str) -> Iterator[Table]:
        """Return the tables of a list."""
        for index, item in enumerate(self.items(key)):
            if not isinstance(item, dict):
                raise self.error(key, f"element {index} is not a table", resolution="write { name = value, ... }")
            yield Table(self.document, (*self.path, key, index), item)

    def finish(self) -> None:
        """Refuse every key that nobody asked for.

        Raises:
            InvalidRequestError: there is one.
        """
        for key in self.data:
            if key not in self._asked:
                close = get_close_matches(key, self._asked, n=1)
                known = ", ".join(sorted(self._asked))
                raise self.error(
                    key,
                    "there is no such key here" + (f"; did you mean {close[0]!r}?" if close else ""),
                    resolution=f"the keys here are: {known}",
                )
