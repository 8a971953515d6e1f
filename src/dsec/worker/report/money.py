"""Where the money went, as an SVG that stands alone: one bar for each group, cut by what was paid for.

Bars are in proportion to what is known of their cost. What has no known price has no length, so that it is said in
words beside the bar: a picture that leaves it out would show it as free.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dsec.episode.prices import CostKind, CostLine
from dsec.worker.ledger_report import CostReport, CostRow

MOST_ROWS = 30
_WIDTH, _LEFT, _RIGHT, _TOP, _BAR, _STEP, _LEGEND = 960, 230, 150, 78, 18, 26, 20
_BAR_WIDTH = _WIDTH - _LEFT - _RIGHT
_COLOURS = {
    "input": "#1f6fb4",
    "cached input": "#6cb4ee",
    "output": "#0b8f6a",
    "as the service told": "#1f6fb4",
    "useless rounds": "#c9a27a",
    "given-up decisions": "#b8578f",
    "failed calls": "#c0392b",
    "environment": "#d9730d",
    "environment, paused": "#f5a04c",
    "environment, unused": "#8a8f98",
}
"""In the order of the legend and of each bar; the hues are those of the planner's pictures."""
_PURPOSES = {"useless": "useless rounds", "abandoned": "given-up decisions", "failed": "failed calls"}
_ENVIRONMENTS = {"paused": "environment, paused", "wasted": "environment, unused"}
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1c2024}.faint{fill:#646b75}.title{font-size:17px;font-weight:600}"
    "@media(prefers-color-scheme:dark){svg{background:#14171a}text{fill:#e6e8eb}.faint{fill:#9aa1ab}}"
)


def paid_for(line: CostLine) -> str:
    """Return what a line belongs to in the picture."""
    if line.kind in (CostKind.MEMORY, CostKind.CPU, CostKind.UNMEASURED):
        return _ENVIRONMENTS.get(line.name, "environment")
    kind: str = line.kind.value
    return _PURPOSES.get(line.purpose, kind)


def money_svg(report: CostReport) -> str:
    """Return the picture of a report; of many rows, the dearest."""
    sums = [row for row in (report.total, report.passed, report.lost) if row is not None]
    rows = report.rows[:MOST_ROWS]
    paid = {paid_for(line) for row in (*sums, *rows) for line in row.lines if line.usd}
    used = [what for what in _COLOURS if what in paid]
    top = _TOP + _LEGEND * (1 + max(0, len(used) - 1) // 4)
    parts = [
        f'<text class="title" x="12" y="26">Where the money went: {escape(_short(report.run, 70))}</text>',
        f'<text class="faint" x="12" y="48">{escape(_headline(report.total))}</text>',
        *_legend(used),
        *_bars(sums, top, used),
    ]
    below = top + _STEP * len(sums) + 2 * _LEGEND
    left_out = len(report.rows) - len(rows)
    more = f"; {left_out} more are not shown" if left_out else ""
    parts.append(f'<text class="faint" x="12" y="{below - 8}">by {report.by.value}, on a scale of its own{more}</text>')
    parts += _bars(rows, below, used)
    height = below + _STEP * len(rows) + _LEGEND
    parts.append(f'<text class="faint" x="12" y="{height}">{escape(_short("prices: " + report.prices, 130))}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height + 12}" role="img" width="{_WIDTH}">'
    return "\n".join([head, f"<style>{_STYLE}</style>", *parts, "</svg>\n"])


def _headline(total: CostRow) -> str:
    """Return the costs of a task, in words."""
    costs = (("was submitted", total.submitted_usd), ("passed", total.passed_usd), ("passed in time", total.timely_usd))
    known = [f"${usd:.4f} for one that {what}" for what, usd in costs if usd is not None]
    least = "" if total.is_whole else "at least "
    return f"{total.tasks} tasks, {total.attempts} attempts" + (f": {least}{', '.join(known)}" if known else "")


def _bars(rows: Sequence[CostRow], top: int, used: Sequence[str]) -> list[str]:
    scale = max((row.usd or 0.0 for row in rows), default=0.0)
    return [part for place, row in enumerate(rows) for part in _bar(row, top + _STEP * place, scale, used)]


def _legend(used: Sequence[str]) -> list[str]:
    parts = []
    for place, what in enumerate(used):
        x, y = 12 + (place % 4) * 230, _TOP + _LEGEND * (place // 4)
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" rx="2" fill="{_COLOURS[what]}"/>')
        parts.append(f'<text x="{x + 18}" y="{y}">{what}</text>')
    return parts


def _bar(row: CostRow, y: int, scale: float, used: Sequence[str]) -> list[str]:
    parts = [f'<text x="{_LEFT - 10}" y="{y + 13}" text-anchor="end">{escape(_short(row.name, 30))}</text>']
    x = float(_LEFT)
    for what in used:
        lines = [line for line in row.lines if paid_for(line) == what and line.usd]
        usd = sum(line.usd or 0.0 for line in lines)
        if not usd or not scale:
            continue
        width = usd / scale * _BAR_WIDTH
        title = f"<title>{escape(_short(row.name, 200))}: {what}, {usd:.6f} USD</title>"
        parts.append(
            f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_BAR}" fill="{_COLOURS[what]}">{title}</rect>'
        )
        x += width
    parts.append(f'<text class="faint" x="{x + 8:.2f}" y="{y + 13}">{_amount(row)}</text>')
    return parts


def _amount(row: CostRow) -> str:
    if row.usd is None:
        return "no known price"
    return f"${row.usd:.4f}" if row.is_whole else f"at least ${row.usd:.4f}"


def _short(text: str, most: int) -> str:
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= most else text[: most - 1] + "…"
