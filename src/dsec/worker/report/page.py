"""One self-contained HTML page about a rollout.

Everything that a guest, a task or a policy could have written goes through `html.escape`, excerpts are bounded, and a
content security policy forbids whatever is not in the page itself: a report may be opened without a second thought.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from urllib.parse import quote

from dsec.base.units import format_count, format_duration, format_usd
from dsec.episode.operations import RoundRecord
from dsec.verification.attempt_result import EXCERPT_CHARACTERS, AttemptResult, EpisodeRecord, TestsRecord
from dsec.verification.outcome import Outcome
from dsec.verification.stages import Stage
from dsec.worker.layout import TESTS_OUTPUT_NAME, TRAJECTORY_NAME, WORKER_NAME, task_folder_name
from dsec.worker.report.lanes import OUTCOME_WORDS, STAGE_WORDS, timeline
from dsec.worker.report.picture import timeline_svg
from dsec.worker.report.rounds import render_rounds
from dsec.worker.summary import Summary

MAXIMUM_DETAILED_TASKS = 3_000
MAXIMUM_DETAILED_ATTEMPTS = 32
"""Per task. What is left out is in results.jsonl, and the page says so."""
MAXIMUM_EXCERPTED_ATTEMPTS = 1_000
"""Attempts whose output is in the page; those that did not pass come first. The others have their links."""
MAXIMUM_SHOWN_EPISODES = 200
"""Attempts whose rounds are in the page, of those whose output is."""
ReadRounds = Callable[[AttemptResult], Sequence[RoundRecord]]


def _asset(name: str) -> str:
    return importlib.resources.files("dsec.worker.report").joinpath(name).read_text(encoding="utf-8")


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "0%"


def _tile(number: str, label: str, *, tone: str = "", zero: bool = False) -> str:
    style = f' style="--tone: var(--{tone})"' if tone and not zero else ""
    return (
        f'<div class="tile{" zero" if zero else ""}"{style}><div class="n">{escape(number)}</div>'
        f'<div class="l">{escape(label)}</div></div>'
    )


def _tiles(summary: Summary) -> str:
    rate = "—" if summary.pass_rate is None else f"{100 * summary.pass_rate:.1f}%".replace("100.0%", "100%")
    tiles = [_tile(rate, "of verdicts passed", tone="passed" if summary.pass_rate else "failed")]
    for outcome, words in OUTCOME_WORDS.items():
        count = summary.outcomes[outcome.value]
        tiles.append(_tile(f"{count:,}", words, tone=outcome.value, zero=count == 0))
    if summary.overhead_s is not None:
        tiles.append(_tile(format_duration(summary.overhead_s), "overhead per attempt", tone="create"))
    if (models := summary.models) is not None:
        tiles.append(_tile(format_count(models.input_tokens + models.output_tokens), "tokens of models", tone="decide"))
        if models.cost_usd is not None:
            words = "of models" if models.is_whole else "of models, at least"
            tiles.append(_tile(format_usd(models.cost_usd), words, tone="decide"))
    return f'<section class="tiles">{"".join(tiles)}</section>'


def _time(summary: Summary) -> str:
    total = sum(summary.stages_s.values())
    stages = [(stage, summary.stages_s.get(stage.value, 0.0)) for stage in Stage]
    bar = "".join(
        f'<span style="flex: {seconds:.6f} 0 0; background: var(--{stage.value})"'
        f' title="{STAGE_WORDS[stage]}: {format_duration(seconds)}"></span>'
        for stage, seconds in stages
        if seconds > 0
    )
    legend = "".join(
        f'<div><span class="dot" style="background: var(--{stage.value})"></span>{STAGE_WORDS[stage]}'
        f"<b>{format_duration(seconds)}</b><em>{_share(seconds, total)}</em></div>"
        for stage, seconds in stages
    )
    note = (
        f"{format_duration(summary.attempt_s)} of attempts, of which commands in sandboxes ran"
        f" {format_duration(summary.guest_s)} ({_share(summary.guest_s, summary.attempt_s)})."
    )
    return (
        f'<section class="card"><h2>Where the time went</h2><div class="bar">{bar}</div>'
        f'<div class="legend">{legend}</div><p class="note">{note}</p></section>'
    )


def _timeline(results: Sequence[AttemptResult], indices: Mapping[str, int]) -> str:
    picture = timeline(results)
    if picture is None:
        return ""
    lanes = len(picture.rows)
    note = f"One row for each of {lanes} lanes." if lanes > 1 else "One lane."
    note += " A dot marks an attempt that did not pass. Hover for times, click for details."
    if picture.cuts_s:
        note += " Dashed lines: pauses in which nothing ran are cut out."
    return (
        f'<section class="card"><h2>Timeline</h2>{timeline_svg(picture, indices)}<p class="note">{note}</p></section>'
    )


def _output(caption: str, text: str) -> str:
    if not text.strip():
        return ""
    return f'<p class="cap">{caption}</p><pre>{escape(text[-EXCERPT_CHARACTERS - 1 :])}</pre>'


def excerpted(results: Sequence[AttemptResult]) -> list[AttemptResult]:
    """Return the attempts whose output is in the page, those that did not pass first."""
    in_order = sorted(results, key=lambda result: (result.outcome is Outcome.PASSED, result.key))
    return in_order[:MAXIMUM_EXCERPTED_ATTEMPTS]


def _outputs(result: AttemptResult) -> str:
    tests = result.tests or TestsRecord(exit_code=0)
    return (
        _output("End of the policy's last output", result.last_output)
        + _output("End of the tests' output", tests.stdout)
        + _output("End of the tests' errors", tests.stderr)
    )


def _trajectory(result: AttemptResult, folder: str) -> str:
    if result.episode is not None:
        return f'<a href="{WORKER_NAME}/episodes/{quote(result.episode.episode_id)}">log of the episode</a>'
    return f'<a href="{folder}/{TRAJECTORY_NAME}">trajectory</a>'


def _used(episode: EpisodeRecord | None) -> str:
    """Say what the models of an attempt used."""
    if episode is None or not episode.calls:
        return ""
    models = escape(", ".join(name[:100] for name in episode.models))
    cost = "" if episode.cost_usd is None else f" · {format_usd(episode.cost_usd)}"
    lives = f" · {episode.lives} lives" if episode.lives > 1 else ""
    return f" · {models} · {episode.input_tokens:,} tokens in, {episode.output_tokens:,} out{cost}{lives}"


def _attempt(result: AttemptResult, with_outputs: bool, rounds: ReadRounds) -> str:
    folder = f"attempts/{quote(task_folder_name(result.task))}/{result.attempt}"
    links = _trajectory(result, folder)
    if result.tests is not None:
        links += f'<a href="{folder}/{TESTS_OUTPUT_NAME}">output of the tests</a>'
    outputs = render_rounds(rounds(result)) + _outputs(result) if with_outputs else ""
    tries = f" · {result.tries} tries" if result.tries > 1 else ""
    broken = "".join(f'<p class="cap">an earlier try broke: {escape(text[:500])}</p>' for text in result.broken_tries)
    return (
        f'<div class="try" style="--tone: var(--{result.outcome.value})">'
        f"<p><b>Attempt {result.attempt}: {OUTCOME_WORDS[result.outcome]}</b>"
        f" — {escape(result.verdict.reason[:1000])}</p>"
        f'<p class="links">{links}{format_duration(result.duration_s)} · {result.rounds} rounds{tries}'
        f"{_used(result.episode)} · {escape(result.sandbox_id)}</p>{broken}{outputs}</div>"
    )


def _task(
    name: str,
    group: Sequence[AttemptResult],
    longest_s: float,
    shown: frozenset[tuple[str, int]],
    rounds: ReadRounds,
) -> str:
    marks = "".join(
        f'<span class="mark" style="background: var(--{result.outcome.value})"'
        f' title="attempt {result.attempt}: {OUTCOME_WORDS[result.outcome]}"></span>'
        for result in group[:MAXIMUM_DETAILED_ATTEMPTS]
    )
    scores = [result.score for result in group if result.score is not None]
    reward = f"{sum(scores) / len(scores):.3g}" if scores else "—"
    mean_s = sum(result.duration_s for result in group) / len(group)
    outcomes = " ".join(sorted({result.outcome.value for result in group}))
    more = len(group) - MAXIMUM_DETAILED_ATTEMPTS
    attempts = "".join(_attempt(result, result.key in shown, rounds) for result in group[:MAXIMUM_DETAILED_ATTEMPTS])
    rest = f'<p class="note">and {more} more attempts, in results.jsonl</p>' if more > 0 else ""
    return (
        f'<details class="task" data-name="{escape(name.lower())}" data-outcomes="{outcomes}"><summary>'
        f'<span class="name" title="{escape(name)}">{escape(name)}</span><span class="marks">{marks}</span>'
        f'<span class="num">{reward}</span><span class="took">'
        f'<i style="width: {80 * mean_s / longest_s:.1f}px"></i><span>{format_duration(mean_s)}</span></span></summary>'
        f"{attempts}{rest}</details>"
    )


def _tasks(groups: Mapping[str, Sequence[AttemptResult]], rounds: ReadRounds) -> str:
    if not groups:
        return ""
    present = {result.outcome for group in groups.values() for result in group}
    buttons = "".join(
        f'<button data-outcome="{outcome.value}" aria-pressed="false">'
        f'<span class="dot" style="background: var(--{outcome.value})"></span> {words}</button>'
        for outcome, words in OUTCOME_WORDS.items()
        if outcome in present
    )
    longest_s = max(sum(r.duration_s for r in group) / len(group) for group in groups.values()) or 1.0
    names = list(groups)
    shown = frozenset(result.key for result in excerpted([result for group in groups.values() for result in group]))
    rows = "".join(_task(name, groups[name], longest_s, shown, rounds) for name in names[:MAXIMUM_DETAILED_TASKS])
    more = len(names) - MAXIMUM_DETAILED_TASKS
    rest = f'<p class="note">and {more} more tasks, in results.jsonl</p>' if more > 0 else ""
    return (
        f'<section class="card"><div class="tools"><h2>Tasks</h2>{buttons}'
        '<input id="search" type="search" placeholder="find a task" aria-label="find a task"></div>'
        '<div class="head"><span>task</span><span>attempts</span><span class="num">reward</span>'
        f"<span>mean time</span></div>{rows}{rest}</section>"
    )


def _skipped(summary: Summary) -> str:
    if not summary.skipped:
        return ""
    items = "".join(
        f'<p class="note"><b>{escape(name)}</b>: {escape(reason[:500])}</p>'
        for name, reason in list(summary.skipped.items())[:100]
    )
    return f'<section class="card"><h2>Left out: {len(summary.skipped)}</h2>{items}</section>'


def _header(summary: Summary, results: Sequence[AttemptResult]) -> str:
    started = ""
    if results:
        when = datetime.fromtimestamp(min(result.started_at_s for result in results), UTC)
        started = f" · started {when:%Y-%m-%d %H:%M} UTC"
    rate = 60 * len(results) / summary.wall_s if summary.wall_s else 0.0
    pass_at = "".join(f" · pass@{k} {100 * value:.1f}%" for k, value in summary.pass_at.items() if k != "1")
    return (
        f"<header><div><h1>Rollout with {escape(summary.policy)}</h1>"
        f'<div class="sub"><b>{len(results):,}</b> of {summary.attempts_planned:,} attempts'
        f" at <b>{len(summary.tasks):,}</b> tasks in <b>{format_duration(summary.wall_s)}</b>"
        f" ({rate:,.0f} a minute){pass_at}{started} · {escape(summary.rollout_id)}</div></div>"
        '<button id="theme" aria-label="light or dark">◐</button></header>'
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _no_rounds(result: AttemptResult) -> Sequence[RoundRecord]:
    del result
    return ()


def _bounded(rounds: ReadRounds) -> ReadRounds:
    """Return a reader that reads the rounds of so many attempts, and none of the others."""
    left = MAXIMUM_SHOWN_EPISODES

    def read(result: AttemptResult) -> Sequence[RoundRecord]:
        nonlocal left
        if result.episode is None or not left:
            return ()
        left -= 1
        return rounds(result)

    return read


def render_report(summary: Summary, results: Sequence[AttemptResult], *, rounds: ReadRounds = _no_rounds) -> str:
    """Return the whole page.

    Args:
        summary: the sums.
        results: every finished attempt.
        rounds: returns those of an attempt that was an episode.
    """
    groups: dict[str, list[AttemptResult]] = {}
    for result in sorted(results, key=lambda item: item.key):
        groups.setdefault(result.task, []).append(result)
    indices = {name: index for index, name in enumerate(groups) if index < MAXIMUM_DETAILED_TASKS}
    script = _asset("report.js")
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_digest(script)}'; base-uri 'none'"
    body = "".join(
        [
            _header(summary, results),
            _tiles(summary),
            _time(summary),
            _timeline(results, indices),
            _skipped(summary),
            _tasks(groups, _bounded(rounds)),
        ]
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Rollout {escape(summary.rollout_id)}</title><style>{_asset('report.css')}</style></head>"
        f"<body><main>{body}</main><script>{script}</script></body></html>\n"
    )
