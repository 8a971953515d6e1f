"""`dsec episode steer|pause|resume|grade|cancel`: what is told to an episode, or to all of a job."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.episode_listing import why
from dsec.cli.episode_parameters import by_option, check_one_or_job, complete_episode, episode_argument, one_or_job
from dsec.cli.output import print_json, printable
from dsec.cli.parameters import json_option, keep_memory_option
from dsec.cli.worker_connection import run_episodes
from dsec.episode.spec import EpisodeGrade, EpisodeInfo, ModelEndpoint
from dsec.service.episodes import EpisodeService


@click.command(name="steer")
@episode_argument
@click.argument("message")
@by_option
@json_option
@pass_options
def steer(options: Options, episode_id: str, message: str, by: str, as_json: bool) -> None:
    """Tell an episode something, which its policy sees with its next decision. It is saved when this returns.

    MESSAGE is a text, or - for standard input.
    """
    text = sys.stdin.read() if message == "-" else message
    tell([run_episodes(options, lambda episodes: episodes.steer(episode_id, text, by=by))], as_json=as_json)


@click.command(name="pause")
@one_or_job
@keep_memory_option
@json_option
@pass_options
def pause(options: Options, episode_id: str | None, job: str | None, keep_memory: bool, as_json: bool) -> None:
    """Let an episode, or all of a job, stand still; sandboxes are paused, loops are kept. Asking again is harmless."""
    check_one_or_job(episode_id, job)

    async def act(episodes: EpisodeService) -> Sequence[EpisodeInfo]:
        if job is not None:
            return await episodes.pause_job(job, keep_memory=keep_memory)
        return [await episodes.pause(episode_id or "", keep_memory=keep_memory)]

    tell(run_episodes(options, act), as_json=as_json)


@click.command(name="resume")
@one_or_job
@click.option("--model", "url", metavar="URL", help="OpenAI-compatible endpoint that decides from now on.")
@click.option("--model-name", default="", metavar="NAME", help="Model there.  [the first it lists]")
@click.option("--key-variable", default="", metavar="NAME", help="Variable of the worker with the endpoint's key.")
@json_option
@pass_options
def resume(
    options: Options,
    episode_id: str | None,
    job: str | None,
    url: str | None,
    model_name: str,
    key_variable: str,
    as_json: bool,
) -> None:
    """Let an episode that is paused or stopped, or all paused ones of a job, go on from the last committed round."""
    check_one_or_job(episode_id, job)
    if url is None and (model_name or key_variable):
        raise click.UsageError("--model-name and --key-variable belong to --model.")
    if url is not None and job is not None:
        raise click.UsageError("--model is given to one episode.")
    model = None if url is None else ModelEndpoint(url=url, name=model_name, key_variable=key_variable)

    async def act(episodes: EpisodeService) -> Sequence[EpisodeInfo]:
        if job is not None:
            return await episodes.resume_job(job)
        return [await episodes.resume(episode_id or "", model=model)]

    tell(run_episodes(options, act), as_json=as_json)


@click.command(name="grade")
@episode_argument
@click.argument("outcome", type=click.Choice(["passed", "failed"]))
@click.option("--reward", type=float, help="On your own scale.")
@by_option
@json_option
@pass_options
def grade(options: Options, episode_id: str, outcome: str, reward: float | None, by: str, as_json: bool) -> None:
    """Keep what an ended episode's result is worth; a later grade takes the place of an earlier one."""
    value = EpisodeGrade(passed=outcome == "passed", reward=reward, by=by)
    tell([run_episodes(options, lambda episodes: episodes.grade(episode_id, value))], as_json=as_json)


@click.command(name="cancel")
@click.argument("episode_ids", metavar="EPISODE...", nargs=-1, required=True, shell_complete=complete_episode)
@click.option("--reason", default="", help="Why; it is kept.")
@json_option
@pass_options
def cancel(options: Options, episode_ids: tuple[str, ...], reason: str, as_json: bool) -> None:
    """End episodes: what is under way is given up, sandboxes go. Asking again is harmless."""

    async def act(episodes: EpisodeService) -> Sequence[EpisodeInfo]:
        return [await episodes.cancel(each, reason=reason) for each in dict.fromkeys(episode_ids)]

    tell(run_episodes(options, act), as_json=as_json)


def tell(infos: Sequence[EpisodeInfo], *, as_json: bool) -> None:
    """Print where episodes are now: a line each, or JSON."""
    if as_json:
        print_json(list(infos))
        return
    for info in infos:
        reason = why(info)
        said = "" if reason == "-" else f"  {printable(reason)}"
        click.echo(f"{info.episode_id}  {info.state.value}, {info.rounds} rounds{said}")
