"""What a run cost, on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from dsec.base.units import format_duration
from dsec.cli.output import note, print_table, printable
from dsec.episode.prices import CostKind, CostLine
from dsec.episode.use import SCAFFOLD
from dsec.worker.ledger_report import By, CostReport, CostRow

_MOST_NOTES = 10
_BAR_WIDTH = 20
_UNITS = {CostKind.MEMORY: "GiB*s", CostKind.CPU: "CPU*s", CostKind.UNMEASURED: "s"}
_WORDS = {
    "decided": "decided rounds",
    "useless": "rounds that did nothing",
    "abandoned": "given-up decisions",
    "failed": "failed calls",
    "resident": "standing",
    "paused": "paused",
    "prepared": "made ahead",
    "wasted": "made ahead in vain",
    "created": "being created",
    "restored": "being restored",
}


def print_cost(report: CostReport) -> None:
    """Print what tasks cost, where it went, and the rows; say on stderr what is not in it."""
    total = report.total
    print_table(["cost of", "number", "usd"], _unit_costs(report))
    print()
    print_table(["what", "for", "amount", "usd", "share", ""], [_line(line, total) for line in _sorted(total.lines)])
    print()
    if report.by is By.MODEL:
        print_table(_MODEL_COLUMNS, [_model_row(row) for row in report.rows])
    else:
        print_table((report.by.value, *_COLUMNS), [_group_row(row) for row in report.rows])
    _say_what_is_missing(report)


def money(usd: float | None, *, is_whole: bool = True) -> str:
    """Return a cost for people: a dash where nothing is known, and a word where more may come."""
    if usd is None:
        return "-"
    if 0 < usd < 0.5e-6:
        return "< 0.000001"
    text = f"{usd:.6f}" if abs(usd) < 1 else f"{usd:.4f}" if abs(usd) < 100 else f"{usd:,.2f}"
    return text if is_whole else f"≥ {text}"


def _unit_costs(report: CostReport) -> list[tuple[str, str, str]]:
    total = report.total
    rows = [
        ("all attempts", str(total.attempts), money(total.usd, is_whole=total.is_whole)),
        ("a submitted task", str(total.tasks), money(total.submitted_usd, is_whole=total.is_whole)),
        ("a passed task", str(total.passed), money(total.passed_usd, is_whole=total.is_whole)),
        ("a task passed in time", str(total.timely), money(total.timely_usd, is_whole=total.is_whole)),
    ]
    if report.lost is not None:
        lost = report.lost
        rows.append(("attempts that did not pass", str(lost.attempts), money(lost.usd, is_whole=lost.is_whole)))
    return rows


def _sorted(lines: Sequence[CostLine]) -> list[CostLine]:
    return sorted(lines, key=lambda line: (line.usd is None, -(line.usd or 0.0), line.name, line.kind.value))


def _line(line: CostLine, total: CostRow) -> tuple[str, ...]:
    is_environment = line.kind in _UNITS and line.name != SCAFFOLD
    name = "environment" if is_environment else "models of a scaffold" if line.name == SCAFFOLD else line.name
    what = f"{name or '(unnamed)'} {line.kind.value}"
    unit = _UNITS.get(line.kind, "tokens")
    amount = f"{line.amount:,.0f} {unit}" if unit == "tokens" or line.amount >= 100 else f"{line.amount:.3g} {unit}"
    share = line.usd / total.usd if line.usd is not None and total.usd else None
    return (
        what,
        _WORDS.get(line.purpose, line.purpose),
        amount,
        money(line.usd),
        "-" if share is None else f"{100 * share:.1f}%",
        "" if share is None else "█" * round(_BAR_WIDTH * share),
    )


_COLUMNS = (
    "attempts", "passed", "in time", "rounds", "calls", "failed", "input", "output", "thinking", "tools", "waiting",
    "repeated", "usd",
)  # fmt: skip
_MODEL_COLUMNS = (
    "model", "calls", "failed", "useless", "given up", "input", "cached", "output", "thinking tokens", "time", "usd",
)  # fmt: skip


def _group_row(row: CostRow) -> tuple[str, ...]:
    counts = (row.rounds, row.calls, row.failed_calls)
    return (
        row.name,
        str(row.attempts),
        _judged(row, row.passed),
        _judged(row, row.timely),
        *(str(count) for count in counts),
        f"{row.input_tokens:,}",
        f"{row.output_tokens:,}",
        *(format_duration(seconds) for seconds in (row.thinking_s, row.tools_s, row.waiting_s)),
        str(row.repeated),
        money(row.usd, is_whole=row.is_whole),
    )


def _judged(row: CostRow, count: int) -> str:
    """Return how many tasks passed: a row of one task says yes, no, or that nobody judged it."""
    if row.ungraded == row.attempts:
        return "-"
    return ("yes" if count else "no") if row.tasks == 1 else str(count)


def _model_row(row: CostRow) -> tuple[str, ...]:
    counts = (row.calls, row.failed_calls, row.useless_calls, row.abandoned_calls)
    tokens = (row.input_tokens, row.cached_tokens, row.output_tokens, row.thinking_tokens)
    return (
        row.name,
        *(str(count) for count in counts),
        *(f"{count:,}" for count in tokens),
        format_duration(row.thinking_s),
        money(row.usd, is_whole=row.is_whole),
    )


def _say_what_is_missing(report: CostReport) -> None:
    note(f"prices: {report.prices}")
    if report.total.ungraded:
        note(f"{report.total.ungraded} of {report.total.attempts} attempts are not graded, and count as not passed")
    unpriced = [line for line in report.total.lines if line.usd is None and line.amount]
    if unpriced:
        names = sorted({_line(line, report.total)[0] for line in unpriced})
        note(f"≥: no price is known of {', '.join(map(printable, names))}; --prices FILE gives some, and is described "
             "in docs/formats/price-table.md")  # fmt: skip
    for text, count in report.missing[:_MOST_NOTES]:
        note(f"{count} of {report.total.attempts} attempts: {printable(text)}")
    for problem in report.problems[:_MOST_NOTES]:
        note(f"warning: {printable(problem)}")
