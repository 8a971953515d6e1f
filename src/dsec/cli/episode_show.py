"""`dsec episode show`: all that is known of one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import click

from dsec.base.units import format_duration
from dsec.cli.context import Options, pass_options
from dsec.cli.episode_listing import cost
from dsec.cli.episode_parameters import episode_argument
from dsec.cli.episode_picture import call_line, round_lines
from dsec.cli.output import age, or_dash, print_fields, print_json, printable
from dsec.cli.parameters import json_option
from dsec.cli.worker_connection import run_episodes
from dsec.episode.log_events import RoundCommitted, StateSaved
from dsec.episode.operations import RoundRecord
from dsec.episode.spec import EpisodeInfo, EpisodeSpec, EpisodeState, UnknownOperation
from dsec.service.episodes import EpisodeService

DEFAULT_ROUNDS = 10
_REMEDIES = {
    "image_not_found": "make the image on the node first: dsec image build, import or pull",
    "backend_failed": "see that the model answers where the worker runs: curl URL/models; or name another by --model",
    "state_corrupted": "its log is damaged or gone; `dsec episode resume` says what is missing, and what to do",
    "capability_missing": "`dsec doctor` says how to get what the node lacks",
}
"""What mends the errors that stop episodes most often."""
_EVENTS_OF_ROUND = 16
"""Events that a round is guessed to have, for where to begin to look."""


@click.command(name="show")
@episode_argument
@click.option(
    "--rounds", "count", type=click.IntRange(min=0), default=DEFAULT_ROUNDS, show_default=True,
    help="How many of the newest rounds to show.",
)  # fmt: skip
@click.option("--whole", is_flag=True, help="Show all that was said and printed, uncut.")
@json_option
@pass_options
def show(options: Options, episode_id: str, count: int, whole: bool, as_json: bool) -> None:
    """Show an episode: where it is, its newest rounds, what it used, and what it needs somebody for."""
    info, spec, rounds = run_episodes(options, lambda episodes: _look(episodes, episode_id, count))
    if as_json:
        print_json({"info": info, "spec": spec, "rounds": rounds})
        return
    print_fields(_fields(info, spec))
    for record in rounds:
        click.echo()
        click.echo("\n".join(round_lines(record, whole=whole)))
    for line in needs(info):
        click.echo(line)


async def _look(
    episodes: EpisodeService, episode_id: str, count: int
) -> tuple[EpisodeInfo, EpisodeSpec, list[RoundRecord]]:
    info, spec = await episodes.get(episode_id), await episodes.spec(episode_id)
    return info, spec, await newest_rounds(episodes, info, count) if count else []


async def newest_rounds(episodes: EpisodeService, info: EpisodeInfo, count: int) -> list[RoundRecord]:
    """Return the newest rounds of an episode, without reading all of a long log: it is looked at from its end, further
    back each time."""
    reach = _EVENTS_OF_ROUND * count
    while True:
        first = max(1, info.next_sequence - reach)
        rounds: deque[RoundRecord] = deque(maxlen=count)
        begins_later = False
        async with episodes.events(info.episode_id, first, follow=False) as events:
            async for each in events:
                if isinstance(each.event, RoundCommitted):
                    rounds.append(each.event.record)
                elif isinstance(each.event, StateSaved) and not rounds:
                    rounds.extend(each.event.recent)
                    begins_later = each.sequence > first
        if len(rounds) == count or first == 1 or begins_later:
            return list(rounds)
        reach *= 8


def _fields(info: EpisodeInfo, spec: EpisodeSpec) -> Iterator[tuple[str, str]]:
    yield "episode", info.episode_id
    yield "task", f"{info.task}, attempt {info.attempt}"
    yield "state", info.state.value + (f" [{info.error_code}]" if info.error_code else "")
    if info.reason:
        yield "reason", info.reason
    yield "job", or_dash(info.job)
    yield "policy", info.policy + (f", {info.model.name}" if info.model.name else "")
    yield "sandbox", or_dash(info.sandbox_id) + f" ({spec.environment.mode.value})"
    yield "rounds", f"{info.rounds} committed, {info.unsaved.rounds} of them not saved yet"
    yield "events", f"next {info.next_sequence}, in the store up to {info.uploaded_sequence}"
    used = info.usage
    tokens = f"{used.input_tokens:,} tokens in ({used.cached_tokens:,} cached), {used.output_tokens:,} out"
    yield "used", f"{used.calls} calls, {tokens}, cost {cost(used.cost_usd)}"
    lives = "1 life" if info.lives == 1 else f"{info.lives} lives"
    yield "begun", f"{age(info.created_at_s)} ago, {lives}" if info.created_at_s else "not yet"
    if info.ended_at_s:
        yield "took", format_duration(max(0.0, info.ended_at_s - info.created_at_s))
    if info.grade is not None:
        reward = "" if info.grade.reward is None else f", reward {info.grade.reward:g}"
        by = f", by {info.grade.by}" if info.grade.by else ""
        yield "grade", ("passed" if info.grade.passed else "failed") + reward + by


def needs(info: EpisodeInfo) -> Iterator[str]:
    """Yield what somebody has to do for an episode, if anything."""
    for unknown in info.unknown:
        yield ""
        yield from _question(info, unknown)
    if info.state is EpisodeState.STOPPED:
        yield ""
        if info.error_code in _REMEDIES:
            yield _REMEDIES[info.error_code]
        yield f"stopped by an error; to go on: dsec episode resume {info.episode_id} [--model URL]"
    elif info.state is EpisodeState.PAUSED:
        yield ""
        yield f"paused; to go on: dsec episode resume {info.episode_id}"


def _question(info: EpisodeInfo, unknown: UnknownOperation) -> Iterator[str]:
    decide = f"dsec episode decide {info.episode_id} {unknown.operation_id}"
    yield f"unknown: round {unknown.number}, {unknown.operation_id}: {printable(unknown.reason)}"
    yield f"  {call_line(unknown.call)}"
    yield f"  it happened:        {decide} happened --output 'WHAT IT ANSWERED'"
    yield f"  it did not happen:  {decide} did-not-happen"
