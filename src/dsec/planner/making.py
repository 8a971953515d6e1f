"""From a file's text to a plan."""

from __future__ import annotations

from dsec.planner.document import Document, parse_document
from dsec.planner.evaluation import compute
from dsec.planner.picture_reading import read_pictures
from dsec.planner.plan import Plan
from dsec.planner.worksheet import read_worksheet

VERSION = 1


def make_plan(text: str, *, name: str) -> Plan:
    """Read a worksheet or a workload and compute everything that it asks for.

    Args:
        text: of the file, TOML.
        name: of the file, for errors.

    Raises:
        InvalidRequestError: the text is not what docs/formats/planner.md says; file and line are named.
    """
    return plan_document(parse_document(text, name=name))


def plan_document(document: Document) -> Plan:
    """Compute what a parsed file asks for; errors are those of `make_plan`."""
    root = document.root()
    kind = root.choice("kind", ("worksheet", "workload"))
    if (version := root.integer("version", VERSION)) != VERSION:
        raise root.error("version", f"version {version} is not known", resolution=f"write version = {VERSION}")
    if kind == "worksheet":
        return _worksheet_plan(document)
    from dsec.planner.workload_plan import workload_plan

    return workload_plan(document)


def _worksheet_plan(document: Document) -> Plan:
    computed = compute(read_worksheet(document))
    expected = {check.name for check in computed.checks}
    return Plan(
        heading=computed.heading,
        figures=computed.figures,
        checks=computed.checks,
        pictures=read_pictures(computed),
        shown=tuple(name for name in computed.figures if name not in expected),
    )
