"""Parameters that the commands of `dsec episode` share."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import click
from click.shell_completion import CompletionItem

from dsec.base.errors import DsecError

if TYPE_CHECKING:
    from dsec.episode.spec import EpisodeInfo

F = TypeVar("F", bound=Callable[..., Any])
_COMPLETION_S = 1.0
"""A shell that completes does not wait longer for a worker."""


def complete_episode(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the episodes of a worker that runs; a shell starts none by asking."""
    try:
        infos = anyio.run(_known, ctx)
    except (DsecError, OSError, TimeoutError):
        return []
    return [
        CompletionItem(info.episode_id, help=f"{info.state.value} {info.task}")
        for info in infos
        if info.episode_id.startswith(incomplete)
    ]


async def _known(ctx: click.Context) -> list[EpisodeInfo]:
    from dsec.cli.context import Options
    from dsec.sdk.background import WORKER
    from dsec.sdk.episodes import HttpEpisodes
    from dsec.sdk.keepalive import Endpoint
    from dsec.sdk.workers import worker_endpoint, worker_state_dir

    # While a shell completes, groups are parsed and not run: what they were given stands in their contexts.
    given = {name: value for each in (ctx.find_root(), ctx.parent or ctx) for name, value in each.params.items()}
    endpoint = worker_endpoint(given.get("worker_url"), given.get("worker_token"))
    if endpoint is None:
        state_dir = Options(state_dir_option=given.get("state_dir")).state_dir
        endpoint = Endpoint(url=f"unix:{worker_state_dir(state_dir) / WORKER.socket}")
    episodes = HttpEpisodes(endpoint)
    try:
        with anyio.fail_after(_COMPLETION_S):
            return list(await episodes.list())
    finally:
        await episodes.aclose()


def episode_argument(command: F) -> F:
    """Add the episode's id, passed as `episode_id`."""
    return click.argument("episode_id", metavar="EPISODE", shell_complete=complete_episode)(command)


def one_or_job(command: F) -> F:
    """Add an episode's id or ``--job``, passed as `episode_id` and `job`."""
    command = click.option("--job", metavar="JOB", help="All episodes of a job, instead of one.")(command)
    return click.argument("episode_id", metavar="[EPISODE]", required=False, shell_complete=complete_episode)(command)


def check_one_or_job(episode_id: str | None, job: str | None) -> None:
    """Refuse both and neither."""
    if (episode_id is None) == (job is None):
        raise click.UsageError("Name an EPISODE, or a job with --job.")


def by_option(command: F) -> F:
    """Add ``--by``, passed as `by`: who says so."""
    return click.option("--by", default=_login, show_default="you", metavar="NAME", help="Who says so.")(command)


def _login() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
