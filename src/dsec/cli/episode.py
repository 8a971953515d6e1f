"""`dsec episode`: start, watch, steer and settle episodes of a worker."""

from __future__ import annotations

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.lazy import Lazy, LazyGroup

_COMMANDS = {
    "start": Lazy("dsec.cli.episode_start:start", "Begin an episode, or a batch of them."),
    "ls": Lazy("dsec.cli.episode_listing:ls", "List episodes."),
    "show": Lazy("dsec.cli.episode_show:show", "Show an episode: its rounds, what it used, and what it waits for."),
    "watch": Lazy("dsec.cli.episode_watch:watch", "Hear an episode as it goes, from any event on."),
    "steer": Lazy("dsec.cli.episode_acting:steer", "Tell an episode something that is seen with the next decision."),
    "pause": Lazy("dsec.cli.episode_acting:pause", "Let an episode, or a job, stand still; loops are kept."),
    "resume": Lazy("dsec.cli.episode_acting:resume", "Let an episode, or a job, go on."),
    "decide": Lazy("dsec.cli.episode_deciding:decide", "Say what became of an operation that nobody knows of."),
    "grade": Lazy("dsec.cli.episode_acting:grade", "Keep what an ended episode is worth."),
    "jobs": Lazy("dsec.cli.episode_jobs:jobs", "List the jobs of episodes."),
    "collect": Lazy("dsec.cli.episode_jobs:collect_job", "Print the episodes of a job as they end."),
    "cancel": Lazy("dsec.cli.episode_acting:cancel", "End an episode; its sandbox goes."),
}


@click.group(name="episode", cls=LazyGroup, lazy=_COMMANDS)
@click.option(
    "--worker", "worker_url", envvar="DSEC_WORKER_URL", metavar="URL",
    help="Worker to talk to.  [DSEC_WORKER_URL; none: this host's]",
)  # fmt: skip
@click.option(
    "--worker-token", envvar="DSEC_WORKER_TOKEN", metavar="TOKEN", help="Bearer token of it.  [DSEC_WORKER_TOKEN]"
)
@pass_options
def episode(options: Options, worker_url: str | None, worker_token: str | None) -> None:
    """Loops of agents that a worker drives, and that outlive whoever started them.

    Without --worker, commands talk to this host's worker and start one in the background when there is none.
    """
    options.worker_url = worker_url
    options.worker_token = worker_token
