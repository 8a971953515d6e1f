"""Compute a worksheet: every calculation once, in the order in which they need each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dsec.base.errors import CallerError, InvalidRequestError, NotFoundError
from dsec.planner.binding import Binder
from dsec.planner.dimension import Dimension
from dsec.planner.document import Table
from dsec.planner.expectation import Check, Context, check_all
from dsec.planner.expression import evaluate
from dsec.planner.figure import Figure
from dsec.planner.formula import Formula
from dsec.planner.quantity import Quantity
from dsec.planner.registry import find_formula
from dsec.planner.result import figures_in, part_of, wrap
from dsec.planner.worksheet import Calculation, Heading, Worksheet


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """A worksheet with its results.

    Attributes:
        heading: of the file.
        results: trees of figures, by the name of the calculation.
        figures: every figure by its name, given values among them.
        checks: expected numbers beside computed ones.
        pictures: what is to be drawn, not yet read.
    """

    heading: Heading
    results: Mapping[str, Any]
    figures: Mapping[str, Figure]
    checks: tuple[Check, ...]
    evaluator: Evaluator

    @property
    def holds(self) -> bool:
        """Whether every expected number came out."""
        return all(check.holds for check in self.checks)


class Further(Protocol):
    """Figures from elsewhere that references may lead to."""

    def get(self, name: str) -> Figure | None:
        """Return a figure; None: there is none of that name."""


@dataclass(slots=True)
class Evaluator:
    """The results so far, and what is being computed at the moment."""

    worksheet: Worksheet
    further: Further | None = None
    results: dict[str, Any] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)

    def resolve(self, reference: str) -> Any:
        """Return what a reference leads to, computing it first if need be.

        Raises:
            NotFoundError: it leads nowhere.
            InvalidRequestError: it leads back to where it came from.
        """
        if self.further is not None and (figure := self.further.get(reference)) is not None:
            return figure
        name, _, rest = reference.partition(".")
        path = tuple(rest.split(".")) if rest else ()
        return part_of(self.result(name), path, name)

    def result(self, name: str) -> Any:
        """Return the whole result of a calculation, or a given value."""
        if name in self.worksheet.given:
            return self.worksheet.given[name]
        if name in self.results:
            return self.results[name]
        calculation = self.worksheet.calculations.get(name)
        if calculation is None:
            known = ", ".join([*self.worksheet.given, *self.worksheet.calculations])
            raise NotFoundError(f"there is no ${name}", detail=f"there are: {known}")
        if name in self.open:
            circle = " -> ".join([*self.open[self.open.index(name) :], name])
            raise calculation.table.error(None, f"the calculations need each other in a circle: {circle}")
        self.open.append(name)
        try:
            self.results[name] = self._compute(calculation)
        finally:
            self.open.pop()
        return self.results[name]

    def evaluate(self, text: str) -> tuple[Quantity, Mapping[str, Figure]]:
        """Compute an expression; return its value and the figures that it used."""
        used: dict[str, Figure] = {}

        def resolve(reference: str) -> Any:
            part = self.resolve(reference)
            for figure in figures_in(part):
                used[figure.name] = figure
            return part

        return evaluate(text, resolve), used

    def _compute(self, calculation: Calculation) -> Any:
        table = calculation.table
        if calculation.expression:
            return self._expression(calculation)
        try:
            formula = find_formula(calculation.formula)
        except NotFoundError as error:
            raise table.error("formula", error.brief, detail=error.detail, resolution=error.resolution) from error
        binder = Binder(self, self.worksheet.heading.source or self.worksheet.heading.where)
        arguments = binder.arguments(formula.parameters, table.table("inputs") or _empty(table))
        return call(calculation.name, formula, arguments, binder.used, table)

    def _expression(self, calculation: Calculation) -> Figure:
        table = calculation.table
        try:
            quantity, used = self.evaluate(calculation.expression)
        except CallerError as error:
            raise placed(table, "calculate", error) from error
        return Figure(
            name=calculation.name,
            value=quantity.value,
            dimension=quantity.dimension,
            formula=calculation.expression,
            inputs=used,
            source=self.worksheet.heading.source or self.worksheet.heading.where,
            note=f"written at {table.place('calculate')}",
        )


def _empty(table: Table) -> Table:
    return Table(table.document, (*table.path, "inputs"), {})


def placed(table: Table, key: str | None, error: CallerError) -> CallerError:
    """Return an error with file and line, unless it has them."""
    if error.brief.startswith(f"{table.document.name}:"):
        return error
    return table.error(key, error.brief, detail=error.detail, resolution=error.resolution)


def call(name: str, formula: Formula, arguments: dict[str, Any], used: Mapping[str, Figure], table: Table) -> Any:
    """Call a formula and return its result as figures.

    Raises:
        InvalidRequestError: the formula refuses its inputs; file and line are added.
    """
    try:
        value = formula.function(**arguments)
    except CallerError as error:
        raise placed(table, None, error) from error
    except (ArithmeticError, ValueError) as error:
        raise table.error(None, f"{formula.name} cannot be computed", detail=str(error)) from error

    def make(part: str, number: float, dimension: Dimension) -> Figure:
        return Figure(
            name=part,
            value=number,
            dimension=dimension,
            formula=formula.text or formula.name,
            inputs=used,
            source=formula.source,
            note=f"{formula.summary} ({formula.name})",
        )

    return wrap(name, value, formula.unit, make)


def compute(worksheet: Worksheet, further: Further | None = None) -> Computed:
    """Compute every calculation and compare it with what is expected; references may lead to `further` figures too.

    Raises:
        InvalidRequestError: something is missing, contradictory, circular or refused by its formula.
    """
    evaluator = Evaluator(worksheet, further)
    checks: list[Check] = []
    for name, calculation in worksheet.calculations.items():
        try:
            result = evaluator.result(name)
        except RecursionError as error:
            raise InvalidRequestError(f"{worksheet.heading.file}: the chain of calculations is too long") from error
        checks += _checks(calculation, result, worksheet.heading)
    figures = dict(worksheet.given)
    for result in evaluator.results.values():
        figures.update((figure.name, figure) for figure in figures_in(result))
    return Computed(
        heading=worksheet.heading,
        results=evaluator.results,
        figures=figures,
        checks=tuple(checks),
        evaluator=evaluator,
    )


def _checks(calculation: Calculation, result: Any, heading: Heading) -> list[Check]:
    table = calculation.table
    tolerance = table.read("tolerance", table.raw("tolerance")) if "tolerance" in table else None
    context = Context(
        table=table, where=table.text("where", heading.where), assumed=table.text("assumed", ""), tolerance=tolerance
    )
    expected = table.raw("expect")
    table.raw("inputs")
    table.finish()
    return list(check_all(calculation.name, result, expected, context)) if expected is not None else []
