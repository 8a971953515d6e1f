"""`dsec episode watch`: an episode as it goes."""

from __future__ import annotations

from collections.abc import Callable

import click

from dsec.base.errors import PlatformError
from dsec.cli.context import Options, pass_options
from dsec.cli.episode_parameters import episode_argument
from dsec.cli.episode_picture import lines_of
from dsec.cli.output import note, print_json_line
from dsec.cli.worker_connection import run_episodes
from dsec.episode.log_events import EnvironmentUsed
from dsec.episode.spec import EpisodeEvent
from dsec.service.episodes import EpisodeService


@click.command(name="watch")
@episode_argument
@click.option("--from", "first", type=click.IntRange(min=1), default=1, show_default=True, help="First event wanted.")
@click.option("--no-follow", is_flag=True, help="Print what there is, and wait for no more.")
@click.option("--whole", is_flag=True, help="Show all that was said and printed, uncut.")
@click.option("-v", "--environment", is_flag=True, help="Show how the sandbox was kept, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each event, with its sequence.")
@pass_options
def watch(
    options: Options, episode_id: str, first: int, no_follow: bool, whole: bool, environment: bool, as_json: bool
) -> None:
    """Print the saved events of an episode from one on, then those that come, until it has ended.

    A worker that goes away is waited for and asked from the last event on: nothing is missed, nothing comes twice. Who
    interrupts it is told where to go on.
    """

    def show(event: EpisodeEvent) -> None:
        if as_json:
            print_json_line(event)
        else:
            show_event(event, whole=whole, environment=environment)

    follow(options, episode_id, show, first=first, wait=not no_follow)


def show_event(event: EpisodeEvent, *, whole: bool = False, environment: bool = False) -> None:
    """Print an event for people; how the sandbox was kept only where that is asked for."""
    if environment or not isinstance(event.event, EnvironmentUsed):
        click.echo("\n".join(lines_of(event.event, whole=whole)))


def follow(
    options: Options, episode_id: str, show: Callable[[EpisodeEvent], None], *, first: int = 1, wait: bool = True
) -> None:
    """Show the events of an episode from one on; whoever interrupts it is told where to go on."""
    offset = first

    async def hear(episodes: EpisodeService) -> None:
        nonlocal offset
        async with episodes.events(episode_id, first, follow=wait) as events:
            async for event in events:
                show(event)
                offset = event.sequence + 1

    try:
        run_episodes(options, hear)
    except (KeyboardInterrupt, PlatformError):
        note(f"the episode goes on; go on watching with: dsec episode watch {episode_id} --from {offset}")
        raise
