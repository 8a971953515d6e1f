"""`dsec recovery`: what was learned of episodes that failed, and what would be tried."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.lazy import HELP_OPTIONS
from dsec.cli.parameters import duration, json_option

if TYPE_CHECKING:
    from dsec.episode.recovery_experience import Experience
    from dsec.episode.recovery_tree import RecoveryRules

_STEPS = ("step", "after", "model", "tries", "passes", "within", "usd")
_DECISIONS = ("after", "tried", "passes", "because")


@click.command(name="recovery", context_settings=HELP_OPTIONS)
@click.option("--worker", type=click.Path(path_type=Path, file_okay=False), help="Its directory.  [this host's]")
@click.option("--model", "models", multiple=True, metavar="NAME", help="Model that may decide; the strongest last.")
@click.option("--repairs", type=click.IntRange(min=0), default=2, show_default=True, help="Of one model.")
@click.option("--deadline", type=duration, metavar="TIME", help="By which an episode has to pass.")
@click.option("--evaluate", is_flag=True, help="What is late is only counted.")
@click.option("--worth", type=click.FloatRange(min=0), metavar="USD", help="What success is worth.")
@click.option("--enough", type=click.IntRange(min=0), default=20, show_default=True, help="Tries that are believed.")
@json_option
@pass_options
def recovery(
    options: Options,
    worker: Path | None,
    models: tuple[str, ...],
    repairs: int,
    deadline: float | None,
    evaluate: bool,
    worth: float | None,
    enough: int,
    as_json: bool,
) -> None:
    """Say what repairs and stronger models came to, by how an episode had failed, and what would be tried first.

    The worker learns from its own episodes, once it is known whether they passed. Without --model, the models are those
    that were seen, in the order of their use.
    """
    from dsec.cli.output import note, print_json, print_table
    from dsec.episode.recovery_tree import RecoveryRules
    from dsec.sdk.workers import worker_state_dir
    from dsec.worker.experience import EXPERIENCE_NAME, read_experience

    place = worker or worker_state_dir(options.state_dir)
    experience = read_experience(place / EXPERIENCE_NAME)
    rules = RecoveryRules(
        models=models or _seen(experience),
        repairs=repairs,
        deadline_s=deadline,
        enforce=not evaluate,
        worth_usd=worth,
        enough=enough,
    )
    steps, decisions, expected = _steps(experience), _decisions(experience, rules), _expected(experience, rules)
    if as_json:
        document = {"version": 1, "models": rules.models, "steps": steps, "decisions": decisions, "expected": expected}
        print_json(document)
        return
    if steps:
        print_table(_STEPS, [_step_row(one) for one in steps])
        print()
    print_table(_DECISIONS, [_decision_row(one) for one in decisions])
    if expected is not None:
        note(_told(expected))
    if not steps:
        note("nothing was learned yet: no episode of this worker has ended and is known to have passed or failed")


def _seen(experience: Experience) -> tuple[str, ...]:
    """Return the models that were seen: those that begin, then those that take over."""
    from dsec.episode.recovery_experience import Step

    ordered = sorted(experience.known(), key=lambda key: key[0] is not Step.FIRST)
    return tuple(dict.fromkeys(model for _, _, model in ordered)) or ("",)


def _steps(experience: Experience) -> list[dict[str, Any]]:
    found = []
    for step, after, model in experience.known():
        estimate = experience.estimate(step, after, model)
        found.append(
            {
                "step": step.value,
                "after": after.value if after is not None else None,
                "model": model,
                "tries": estimate.tries,
                "passes": estimate.passes,
                "within_s": estimate.time_s,
                "cost_usd": estimate.cost_usd,
            }
        )
    return found


def _decisions(experience: Experience, rules: RecoveryRules) -> list[dict[str, Any]]:
    from dsec.episode.failure_kinds import FailureKind
    from dsec.episode.recovery_tree import RecoveryState, decide_recovery

    found = []
    for kind in FailureKind:
        if kind.is_final:
            continue
        decision = decide_recovery(RecoveryState(after=kind), rules, experience)
        found.append(
            {
                "after": kind.value,
                "step": decision.step.value,
                "model": rules.models[decision.model],
                "passes": decision.success,
                "because": decision.reason,
            }
        )
    return found


def _expected(experience: Experience, rules: RecoveryRules) -> dict[str, float | None] | None:
    """Return what the rules make of a submitted task; None: no beginning of one was seen, or none can be in time."""
    from dsec.base.errors import InvalidRequestError
    from dsec.episode.recovery_experience import Step
    from dsec.episode.recovery_tree import expected_recovery

    if not experience.tries(Step.FIRST, None):
        return None
    try:
        outcome = expected_recovery(rules, experience)
    except InvalidRequestError:
        return None
    priced = any(experience.estimate(*key).cost_usd is not None for key in experience.known())
    return {
        "passes": outcome.success_share,
        "in_time": outcome.timely_share,
        "cost_usd": outcome.cost_usd if priced else None,
        "time_s": outcome.time_s,
    }


def _told(expected: dict[str, float | None]) -> str:
    from dsec.base.units import format_duration
    from dsec.cli.cost_output import money

    passes, timely = (f"{100 * (expected[name] or 0.0):.1f}%" for name in ("passes", "in_time"))
    in_time = "" if passes == timely else f", in time with {timely}"
    time, usd = format_duration(expected["time_s"] or 0.0), expected["cost_usd"]
    cost = "at a cost that nobody knows" if usd is None else f"and {money(usd)} USD"
    return f"a submitted task passes with {passes}{in_time}, and takes {time} {cost} on average"


def _step_row(one: dict[str, Any]) -> tuple[str, ...]:
    from dsec.base.units import format_duration
    from dsec.cli.cost_output import money
    from dsec.cli.output import or_dash

    within = "-" if one["within_s"] is None else format_duration(one["within_s"])
    return (
        one["step"],
        or_dash(one["after"]),
        or_dash(one["model"]),
        str(one["tries"]),
        f"{100 * one['passes']:.1f}%",
        within,
        money(one["cost_usd"]),
    )


def _decision_row(one: dict[str, Any]) -> tuple[str, ...]:
    tried = f"{one['step']} ({one['model']})" if one["model"] else one["step"]
    passes = "-" if one["passes"] is None else f"{100 * one['passes']:.1f}%"
    return one["after"], tried, passes, one["because"]
