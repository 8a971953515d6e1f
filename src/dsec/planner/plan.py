"""What `dsec plan` found, whichever kind of file it read: all that is printed, encoded, drawn or asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from dsec.base.errors import NotFoundError
from dsec.planner.expectation import Check
from dsec.planner.figure import Figure
from dsec.planner.picture import Picture
from dsec.planner.worksheet import Heading

if TYPE_CHECKING:
    from dsec.planner.decision import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that one file comes to.

    Attributes:
        heading: title, place in its source, assumptions.
        figures: every number by its name; each knows where it comes from.
        checks: expected numbers beside computed ones.
        pictures: what is to be drawn.
        decision: of a workload: combinations, what binds, what to take, what would change that; None: a worksheet.
        shown: names of the figures that are printed without being asked for.
        lookup: makes figures that are too many to be in `figures`.
        extra: what else belongs into its JSON, such as what was fitted.
    """

    heading: Heading
    figures: Mapping[str, Figure]
    checks: tuple[Check, ...] = ()
    pictures: tuple[Picture, ...] = ()
    decision: Decision | None = None
    shown: tuple[str, ...] = ()
    lookup: Callable[[str], Figure | None] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether every expected number came out."""
        return all(check.holds for check in self.checks)

    def figure(self, name: str) -> Figure:
        """Return a figure by its name.

        Raises:
            NotFoundError: there is none; names close to it are in the detail.
        """
        found = self.figures.get(name)
        if found is None and self.lookup is not None:
            found = self.lookup(name)
        if found is None:
            inside = [known for known in self.figures if known.startswith(name)]
            close = inside or get_close_matches(name, self.figures, n=5, cutoff=0.4)
            raise NotFoundError(
                f"there is no figure {name!r}",
                detail=f"close to it: {', '.join(close[:12])}" if close else "",
                resolution="`dsec plan FILE --explain all` lists every figure",
            )
        return found

    def printed(self) -> Iterator[Figure]:
        """Return the figures that a reader wants to see without asking."""
        for name in self.shown:
            yield self.figures[name]


def figure_record(figure: Figure) -> dict[str, Any]:
    """Return a figure as a JSON object."""
    return {
        "value": figure.value,
        "unit": "" if figure.dimension.is_pure else str(figure.dimension),
        "text": str(figure),
        "formula": figure.formula,
        "inputs": {name: inner.name for name, inner in figure.inputs.items()},
        "source": figure.source,
        "note": figure.note,
    }
