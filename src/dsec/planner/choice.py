"""Which combinations a table is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which combinations a table is about: one element of each array for each.

    Attributes:
        row: index into the rows of `outer`.
        host: index into the kinds of host.
        units: replicas or seats.
        hosts: how many hosts.
    """

    row: Any
    host: Any
    units: Any
    hosts: Any

    def __len__(self) -> int:
        return len(self.row)

    def at(self, where: Any) -> Choice:
        """Return some of them."""
        return Choice(row=self.row[where], host=self.host[where], units=self.units[where], hosts=self.hosts[where])
