"""One self-contained page about a plan: the answer, the table, pictures, checks, and where figures come from.

Whatever stands in a workload's file goes through `html.escape`, and a content security policy forbids all that is not
in the page itself. There is no script: light and dark follow the reader's setting.
"""

from __future__ import annotations

import base64
import importlib.resources
import itertools
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from dsec.planner.combination import Combination
from dsec.planner.decision import Decision, Option
from dsec.planner.figure import Figure, explain
from dsec.planner.picture import Picture
from dsec.planner.pictures.drawing import draw
from dsec.planner.pictures.theme import DARK, LIGHT, Theme
from dsec.planner.plan import Plan

MAXIMUM_LINES = 200
"""Lines of a table; the page says what it leaves out, and `--json` has all."""
MAXIMUM_EXPLAINED = 400
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"


def write_page(plan: Plan, path: Path) -> None:
    """Write the page.

    Raises:
        CapabilityMissingError: matplotlib is not installed.
        OSError: the file could not be written.
    """
    path.write_text(render_page(plan), encoding="utf-8")


def render_page(plan: Plan) -> str:
    """Return the page as HTML; the same plan gives the same page."""
    parts = [_heading(plan)]
    if plan.decision is not None:
        parts += _decision(plan.decision)
    parts += [_pictures(plan.pictures), _checks(plan), _figures(plan)]
    style = importlib.resources.files("dsec.planner.pictures").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(plan.heading.title)}</title><style>{style}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _heading(plan: Plan) -> str:
    heading = plan.heading
    notes = [heading.where, f"assumed: {heading.assumed}" if heading.assumed else "", f"from {Path(heading.file).name}"]
    return f'<h1>{escape(heading.title)}</h1><p class="sub">{escape(". ".join(note for note in notes if note))}</p>'


def _decision(decision: Decision) -> list[str]:
    return [
        _answer(decision),
        _tiles(decision.chosen),
        _options(decision),
        _lacks(decision.options),
        _levers(decision),
        _lines("Where two ways cost the same", decision.break_evens),
        _lines("What the formulas assume", decision.warnings),
    ]


def _answer(decision: Decision) -> str:
    first, *rest = decision.reasons or ("nothing was compared",)
    items = "".join(f"<li>{escape(reason)}</li>" for reason in rest)
    return f'<section class="card answer"><h2>Answer</h2><p>{escape(_sentence(first))}</p><ul>{items}</ul></section>'


def _tiles(option: Option | None) -> str:
    if option is None or not option.is_possible:
        return ""
    best = option.best
    in_time = best.usd_per_thousand_in_time
    tiles = [
        (f"{best.completion_s:.4g} s", "from arrival to result"),
        (f"{best.share_in_time:.1%}", "pass in time"),
        (f"{best.usd_per_thousand:.3f} USD", "per thousand tasks"),
        ("—" if in_time is None else f"{in_time:.3f} USD", "per thousand in time"),
        (f"{best.memory_peak_gib:.4g} GiB", "memory at peak"),
        (f"{best.cores_mean:.4g}", "cores on average"),
        (f"{best.slots_mean:.4g}", "model calls at once"),
    ]
    return '<section class="tiles">' + "".join(_tile(*tile) for tile in tiles) + "</section>"


def _tile(number: str, label: str) -> str:
    return f'<div class="tile"><b>{escape(number)}</b><span>{escape(label)}</span></div>'


_OPTION_COLUMNS = (
    "combination", "units", "hosts", "time", "CPU·s", "GiB·s", "mean GiB", "peak GiB", "cores", "calls", "USD/1000",
    "in time", "feasible", "lacks most",
)  # fmt: skip


def _options(decision: Decision) -> str:
    option = decision.chosen
    chosen = option.combination if option is not None and option.extended is None else None
    every = decision.combinations
    lines = every if len(every) <= MAXIMUM_LINES else tuple(option.combination for option in decision.options)
    rows = [_option_row(line, line == chosen) for line in lines[:MAXIMUM_LINES]]
    left_out = decision.size.combinations - len(rows)
    if option is not None and option.extended is not None and option.addition is not None:
        extended = _option_row(option.extended, True)
        rows.insert(0, (extended[0], (f"{escape(option.extended.name)}, with the addition", *extended[1][1:])))
    note = f"{left_out:,} further combinations are compared and not listed." if left_out > 0 else ""
    return _card("What was compared", _table(_OPTION_COLUMNS, rows, numbers=range(1, 12)), note)


def _option_row(line: Combination, chosen: bool) -> tuple[str, Sequence[str]]:
    cells = (
        escape(line.name),
        f"{line.units:,}",
        f"{line.hosts:,}",
        f"{line.completion_s:.4g} s",
        *(f"{value:.4g}" for value in (line.cpu_s, line.memory_gib_s, line.memory_mean_gib, line.memory_peak_gib)),
        f"{line.cores_mean:.4g}",
        f"{line.slots_mean:.4g}",
        f"{line.usd_per_thousand:.2f}",
        f"{line.share_in_time:.1%}",
        _verdict(line.feasible),
        escape(line.binding or "—"),
    )
    return "chosen" if chosen else "", cells


def _verdict(holds: bool) -> str:
    return '<span class="yes">yes</span>' if holds else '<span class="no">no</span>'


def _lacks(options: Iterable[Option]) -> str:
    lacking = [option for option in options if option.shortfalls][:MAXIMUM_LINES]
    items = []
    for option in lacking:
        lines = [shortfall.text for shortfall in option.shortfalls]
        if option.addition is not None:
            lines.append(f"enough would be: {option.addition.text}")
        elif not option.is_possible:
            lines.append("nothing that could be added makes it enough")
        inner = "".join(f"<li>{escape(line)}</li>" for line in lines)
        items.append(f'<p><b>{escape(option.combination.name)}</b></p><ul class="lacks">{inner}</ul>')
    return _card("What the others lack, and by how much", "".join(items)) if items else ""


def _levers(decision: Decision) -> str:
    moving = [lever for lever in decision.levers if lever.down or lever.up or lever.usd_per_ten_percent]
    if not moving:
        return ""
    rows = [
        (
            "",
            (
                escape(lever.name),
                escape(lever.value),
                escape(lever.down or "—"),
                escape(lever.up or "—"),
                f"{lever.usd_per_ten_percent:+.3g}",
            ),
        )
        for lever in moving[:MAXIMUM_LINES]
    ]
    columns = ("input", "now", "down to", "up to", "USD/1000 for +10 %")
    return _card("What would change the answer, each alone", _table(columns, rows, numbers=(4,)))


def _lines(title: str, lines: Sequence[str]) -> str:
    return _card(title, "".join(f'<p class="note">{escape(line)}</p>' for line in lines)) if lines else ""


def _pictures(pictures: Sequence[Picture]) -> str:
    if not pictures:
        return ""
    return _card("Pictures", "".join(f"<figure>{_image(picture)}</figure>" for picture in pictures))


def _image(picture: Picture) -> str:
    text = ". ".join(part for part in (picture.caption.title, picture.caption.text) if part)
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{_data(picture, DARK)}">'
        f'<img src="{_data(picture, LIGHT)}" alt="{escape(text)}"></picture>'
    )


def _data(picture: Picture, theme: Theme) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(draw(picture, theme, "svg")).decode("ascii")


def _checks(plan: Plan) -> str:
    if not plan.checks:
        return ""
    failed = sum(not check.holds for check in plan.checks)
    rows = [
        (
            "",
            (
                _verdict(check.holds),
                escape(check.name),
                escape(check.expected),
                escape(check.computed),
                escape(check.where),
                escape(check.assumed),
            ),
        )
        for check in plan.checks
    ]
    columns = ("holds", "figure", "expected", "computed", "where", "assumed")
    return _card(
        f"Expected and computed: {len(rows) - failed} of {len(rows)} hold", _table(columns, rows, numbers=(2, 3))
    )


def _figures(plan: Plan) -> str:
    """Every figure that was computed, with its formula, inputs and sources to unfold."""
    computed = [figure for figure in plan.figures.values() if not figure.is_given]
    if not computed:
        return ""
    items = "".join(map(_figure, itertools.islice(computed, MAXIMUM_EXPLAINED)))
    left_out = len(computed) - MAXIMUM_EXPLAINED
    note = f"{left_out:,} more: dsec plan FILE --explain NAME." if left_out > 0 else ""
    return _card("Where the figures come from", items, note)


def _figure(figure: Figure) -> str:
    lines = "\n".join(explain(figure))
    return (
        f"<details><summary><b>{escape(figure.name)}</b> = {escape(str(figure))}</summary>"
        f"<pre>{escape(lines)}</pre></details>"
    )


def _table(columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], *, numbers: Iterable[int]) -> str:
    right = set(numbers)
    head = "".join(f"<th{_right(index in right)}>{escape(column)}</th>" for index, column in enumerate(columns))
    body = "".join(
        f"<tr{f' class={name}' if name else ''}>"
        + "".join(f"<td{_right(index in right)}>{cell}</td>" for index, cell in enumerate(cells))
        + "</tr>"
        for name, cells in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _right(is_number: bool) -> str:
    return ' class="n"' if is_number else ""


def _card(title: str, inner: str, note: str = "") -> str:
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section class="card"><h2>{escape(title)}</h2>{inner}{below}</section>'


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
