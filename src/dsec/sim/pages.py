"""The page of one scenario: what was asked, what came out, which claims hold."""

from __future__ import annotations

from collections.abc import Sequence

from dsec.sim.numbers import Finding, number_of
from dsec.sim.result import Result
from dsec.sim.scenario_file import ScenarioFile


def columns_of(file: ScenarioFile) -> tuple[str, ...]:
    """Return the numbers that the table of a scenario shows: its own choice, or the most telling ones of its model."""
    if file.columns:
        return file.columns
    return {
        "rounds": ("counts.completed", "levels.tasks.mean", "figures.task_s.mean", "figures.task_s.p99"),
        "levels": ("figures.wait_s.mean", "figures.wait_s.p99", "levels.sandboxes.mean"),
        "fleet": ("counts.created", "figures.create_s.p50", "figures.create_s.p99", "levels.running.maximum"),
    }[file.base.__struct_config__.tag]  # type: ignore[index]


def heading(name: str) -> str:
    """Return how a number's name stands above a column: ``create_s.p99``."""
    return name.partition(".")[2] or name


def shown(value: float) -> str:
    """Return a number for people: four digits that count, no more."""
    if value == round(value) and abs(value) < 1e6:
        return f"{value:,.0f}"
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table_rows(file: ScenarioFile, results: Sequence[Result]) -> list[list[str]]:
    """Return the cells of the table of results, the case's name first."""
    names = columns_of(file)
    return [[result.case or "-", *(shown(number_of(result, name)) for name in names)] for result in results]


def claim_rows(findings: Sequence[Finding]) -> list[list[str]]:
    """Return the cells of the table of claims."""
    return [
        [
            finding.claim.text,
            finding.claim.source,
            "-" if finding.claim.published is None else shown(finding.claim.published),
            shown(finding.measured),
            "holds" if finding.holds else "**differs**",
            finding.claim.remark,
        ]
        for finding in findings
    ]


CLAIM_COLUMNS = ("claim", "source", "published", "here", "verdict", "remark")


def markdown(
    file: ScenarioFile, results: Sequence[Result], findings: Sequence[Finding], pictures: Sequence[str]
) -> str:
    """Return the page of a scenario."""
    parts = [
        f"# {file.base.title or file.name}",
        file.base.question.strip(),
        f"Scenario `{file.name}`, seed {results[0].seed}.",
    ]
    parts.append(_table(["case", *map(heading, columns_of(file))], table_rows(file, results)))
    if findings:
        parts += ["## Claims", _table(list(CLAIM_COLUMNS), claim_rows(findings))]
    if file.remarks.strip():
        parts += ["## What it says", file.remarks.strip()]
    if pictures:
        parts += ["## Pictures", *(f"![{name}]({name}.svg)" for name in pictures)]
    parts.append(f"Made again by `dsec sim report`, or alone by `dsec sim run {file.name} --plot DIR`.")
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
