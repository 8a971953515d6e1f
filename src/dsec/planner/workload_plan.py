"""From a workload file to its plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsec.base.errors import InvalidRequestError
from dsec.planner.combination import combinations
from dsec.planner.decision import Decision
from dsec.planner.document import Document, Table
from dsec.planner.evaluation import Computed, compute
from dsec.planner.expectation import Check, Context, check_all
from dsec.planner.levers import make_levers
from dsec.planner.notes import break_evens, warnings
from dsec.planner.options import make_options, reasons, take
from dsec.planner.outer import make_outer, numeric, outer_keys
from dsec.planner.picture_reading import read_pictures
from dsec.planner.plan import Plan
from dsec.planner.search import corners, front
from dsec.planner.space import everything, size_of
from dsec.planner.table import evaluate
from dsec.planner.tracing import WorkloadFigures
from dsec.planner.workload import Workload
from dsec.planner.workload_pictures import workload_pictures
from dsec.planner.workload_reading import check_deadlines, read_workload
from dsec.planner.worksheet import Worksheet, read_sections

MOST_SHOWN = 10_000


def decide_document(document: Document) -> Decision:
    """Read a workload and decide, without anything that stands around it; errors are those of `workload_plan`."""
    root = document.root()
    workload = read_workload(root)
    check_deadlines(root, workload)
    return decide(workload, brief=True)


def workload_plan(document: Document, sources: Mapping[str, str] | None = None) -> Plan:
    """Read a workload, compare its combinations and decide.

    Args:
        document: of the file.
        sources: of figures that do not come from the file, by name.

    Raises:
        InvalidRequestError: the file is not what docs/formats/planner.md says, or its ranges are too wide.
    """
    root = document.root()
    workload = read_workload(root, sources)
    sheet = read_sections(root, workload.heading)
    expected = list(root.listed("expect"))
    root.finish()
    check_deadlines(root, workload)
    decision = decide(workload)
    figures = WorkloadFigures(decision)
    computed = compute(sheet, figures)
    checks = [check for table in expected for check in _check(table, figures, sheet)]
    return Plan(
        heading=workload.heading,
        figures={**figures.listed(), **computed.figures},
        checks=(*checks, *computed.checks),
        pictures=(*workload_pictures(decision), *read_pictures(computed)),
        decision=decision,
        shown=tuple(_shown(computed)),
        lookup=figures.get,
    )


def _shown(computed: Computed) -> Iterator[str]:
    expected = {check.name for check in computed.checks}
    for name, figure in computed.figures.items():
        if not figure.is_given and name not in expected:
            yield name


def decide(workload: Workload, *, brief: bool = False) -> Decision:
    """Compare all combinations, or search them if they are too many to list.

    Args:
        workload: what is asked.
        brief: leave out what would change the answer, which takes longer than the answer.

    Raises:
        InvalidRequestError: they are too many to search, or the numbers overflow.
    """
    try:
        with numeric().errstate(over="raise"):
            return _decide(workload, brief=brief)
    except (FloatingPointError, OverflowError) as error:
        raise InvalidRequestError(
            f"{workload.heading.file}: the numbers of this workload become too large to reckon with",
            detail=f"{workload.arrivals.rate.name} is {workload.arrivals.rate}",
            resolution="check the exponents of rates, times, memory and prices",
        ) from error


def _decide(workload: Workload, *, brief: bool) -> Decision:
    size = size_of(workload)
    keys = outer_keys(workload)
    outer = make_outer(workload, keys)
    table = evaluate(workload, outer, everything(workload, keys)) if size.is_listed else corners(workload, outer, keys)
    options = make_options(workload, outer, table)
    on_front = front(table)
    shown = take(table, range(min(len(table), MOST_SHOWN)))
    return Decision(
        workload=workload,
        size=size,
        outer=outer,
        table=table,
        combinations=combinations(workload, outer, shown),
        options=options,
        chosen=options[0] if options and options[0].is_possible else None,
        reasons=tuple(reasons(workload, options)),
        front=combinations(workload, outer, take(table, on_front)),
        front_is_exact=size.is_listed,
        levers=() if brief else make_levers(workload, options),
        break_evens=tuple(break_evens(workload, options)),
        warnings=tuple(warnings(workload, options)),
    )


def _check(table: Table, figures: WorkloadFigures, sheet: Worksheet) -> Iterator[Check]:
    name = table.text("figure")
    found = figures.get(name)
    if found is None:
        raise table.error("figure", f"there is no figure {name!r}", resolution="`--explain all` lists them")
    tolerance = table.read("tolerance", table.raw("tolerance")) if "tolerance" in table else None
    context = Context(
        table=table,
        where=table.text("where", sheet.heading.where),
        assumed=table.text("assumed", ""),
        tolerance=tolerance,
    )
    raw = table.required("expect", "a quantity")
    table.finish()
    yield from check_all(name, found, raw, context)
