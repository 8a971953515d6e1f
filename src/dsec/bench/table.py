"""A report for people, or for programs."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from dsec.bench.distribution import Distribution
from dsec.bench.report import Report

_PIPE_WIDTH = 1000


def print_report(report: Report, *, as_json: bool) -> None:
    """Write the report to stdout: one line of JSON and nothing else, or tables."""
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.flush()
        return
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print(_comparison(report))
    for row in report.series:
        console.print("  ".join(f"{name}: {_text(value)}" for name, value in row.items()), markup=False)
    for note in report.host.get("notes", ()):
        console.print(f"note: {note}", markup=False)


def _comparison(report: Report) -> Table:
    table = Table(
        title=f"{report.benchmark} ({report.unit}, {report.better} is better)", box=None, title_justify="left"
    )
    for column in ("", "P50", "P95", "P99", "N", "OURS/REFERENCE"):
        table.add_column(column, justify="left" if not column else "right")
    for name, value in {"ours": report.ours, **report.references}.items():
        ratio = report.ratios.get(name)
        cells = (f"{value.p50:g}", f"{value.p95:g}", f"{value.p99:g}", str(value.n))
        table.add_row(name, *cells, "" if ratio is None else f"{ratio:g}")
    return table


def _text(value: Any) -> str:
    if isinstance(value, Distribution):
        return f"p50 {value.p50:g} p95 {value.p95:g} p99 {value.p99:g}"
    return f"{value:g}" if isinstance(value, float) else str(value)
