"""A rollout's sums on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dsec.base.units import format_duration, format_usd
from dsec.cli.output import note, print_json, print_table, printable
from dsec.verification.attempt_result import AttemptResult
from dsec.verification.outcome import Outcome
from dsec.verification.stages import Stage
from dsec.worker.layout import REPORT_NAME
from dsec.worker.report.lanes import OUTCOME_WORDS, STAGE_WORDS
from dsec.worker.summary import ModelSums, Summary

_MOST_PROBLEMS = 10


def print_summary(summary: Summary, results: Sequence[AttemptResult], *, as_json: bool) -> None:
    """Print the sums: outcomes, where the time went, and the first attempts that did not pass."""
    if as_json:
        print_json(summary)
        return
    total = sum(summary.outcomes.values())
    print_table(
        ["outcome", "attempts", "share"],
        [
            (
                OUTCOME_WORDS[outcome],
                str(summary.outcomes[outcome.value]),
                _share(summary.outcomes[outcome.value], total),
            )
            for outcome in Outcome
        ],
    )
    stages_s = sum(summary.stages_s.values())
    print_table(
        ["where the time went", "all attempts", "share"],
        [
            (STAGE_WORDS[stage], format_duration(seconds), _share(seconds, stages_s))
            for stage in Stage
            if (seconds := summary.stages_s[stage.value])
        ],
    )
    overhead = "" if summary.overhead_s is None else f"; {format_duration(summary.overhead_s)} overhead per attempt"
    note(f"{total} of {summary.attempts_planned} attempts in {format_duration(summary.wall_s)}{overhead}")
    if summary.models is not None:
        _note_models(summary.models)
    _note_problems(results)


def _note_models(models: ModelSums) -> None:
    used = f"{models.rounds} rounds, {models.calls} calls of models"
    tokens = f"{models.input_tokens:,} tokens in ({models.cached_tokens:,} cached), {models.output_tokens:,} out"
    cost = "" if models.cost_usd is None else f"; {'' if models.is_whole else 'at least '}{format_usd(models.cost_usd)}"
    passed = "" if models.passed_usd is None else f", {format_usd(models.passed_usd)} for each that passed"
    note(f"{used}: {tokens}{cost}{passed}")


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"


def _note_problems(results: Sequence[AttemptResult]) -> None:
    problems = [result for result in results if result.outcome is not Outcome.PASSED]
    for result in problems[:_MOST_PROBLEMS]:
        reason = printable(result.verdict.reason.partition("\n")[0])
        note(f"  {printable(result.task)} #{result.attempt} {OUTCOME_WORDS[result.outcome]}: {reason}")
    if len(problems) > _MOST_PROBLEMS:
        note(f"  and {len(problems) - _MOST_PROBLEMS} more that did not pass; see the report")


def note_report(out: Path) -> None:
    """Say where the report is."""
    note(f"report: {out / REPORT_NAME}")
