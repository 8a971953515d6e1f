"""Typed, range-checked access to one table of task.toml that remembers which keys were read.

What was not asked for when all reading is done is an unknown key: it is kept and warned about, never an error, because
a newer version of the format may have added it, and never dropped in silence, because it may be a misspelling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from dsec.base.errors import InvalidRequestError
from dsec.base.units import parse_size
from dsec.worker.tasks.document import Document


class Fields:
    """One table, read key by key."""

    def __init__(self, document: Document, table: str, values: Mapping[str, object]) -> None:
        self._document = document
        self._table = table
        self._values = values
        self._asked: set[str] = set()

    @classmethod
    def of(cls, document: Document, table: str) -> Fields:
        """Open a top-level table."""
        return cls(document, table, document.table(table))

    def take(self, key: str) -> object:
        """Return the raw value, None when it is missing."""
        self._asked.add(key)
        return self._values.get(key)

    def fail(self, key: str, problem: str, *, resolution: str = "") -> Exception:
        """Return the error for a bad value, to be raised."""
        return self._document.error(self._table, key, problem, resolution=resolution)

    def number(self, key: str, *, above: float, most: float) -> float | None:
        """Return a number in (above, most], None when missing."""
        value = self.take(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.fail(key, f"must be a number, not {value!r}")
        if not above < value <= most:
            raise self.fail(key, f"is {value:g}; it must be above {above:g} and at most {most:g}")
        return float(value)

    def seconds(self, key: str, default: float) -> float:
        """Return seconds of at most 30 days."""
        value = self.number(key, above=0, most=30 * 86_400)
        return default if value is None else value

    def text(self, key: str) -> str | None:
        """Return a text that is not empty, None when missing."""
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise self.fail(key, f"must be a text that is not empty, not {value!r}")
        return value

    def flag(self, key: str) -> bool | None:
        """Return true or false, None when missing."""
        value = self.take(key)
        if value is not None and not isinstance(value, bool):
            raise self.fail(key, f"must be true or false, not {value!r}")
        return value

    def choice(self, key: str, choices: tuple[str, ...]) -> str | None:
        """Return one of `choices`, None when missing."""
        value = self.text(key)
        if value is not None and value not in choices:
            raise self.fail(key, f"is {value!r}; it must be one of: {', '.join(choices)}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts, empty when missing."""
        value = self.take(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.fail(key, "must be a list of texts")
        return tuple(value)

    def variables(self, key: str) -> dict[str, str]:
        """Return environment variables; numbers and flags are not converted."""
        value = self.take(key)
        if value is None:
            return {}
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise self.fail(key, "must be a table of texts")
        for name, item in value.items():
            if not name or "=" in name or "\0" in name + item:
                raise self.fail(key, f"holds {name!r}, which cannot be an environment variable")
        return dict(value)

    def user(self, key: str) -> str | None:
        """Return a user as a name or the digits of an id."""
        value = self.take(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return str(value)
        return self.text(key)

    def size_bytes(self, megabytes_key: str, legacy_key: str) -> int | None:
        """Return bytes from a number of MiB, or from the format's older text such as ``2G``."""
        number = self.number(megabytes_key, above=0, most=64 << 20)
        value = self.take(legacy_key)
        if value is None:
            return None if number is None else int(number * (1 << 20))
        try:
            size = parse_size(value) if isinstance(value, str) else 0
        except InvalidRequestError:
            size = 0
        if size <= 0:
            raise self.fail(legacy_key, f"must be a size such as '2G', not {value!r}")
        if number is not None and int(number * (1 << 20)) != size:
            raise self.fail(legacy_key, f"contradicts {megabytes_key}", resolution=f"keep {megabytes_key} alone")
        return size

    def unknown(self) -> tuple[str, ...]:
        """Return the full names of the keys that nobody asked for."""
        prefix = f"{self._table}." if self._table else ""
        return tuple(f"{prefix}{key}" for key in self._values if key not in self._asked)
