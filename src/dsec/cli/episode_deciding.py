"""`dsec episode decide`: a verdict for what nobody can know."""

from __future__ import annotations

import click
import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.cli.context import Options, pass_options
from dsec.cli.episode_acting import tell
from dsec.cli.episode_parameters import by_option, episode_argument
from dsec.cli.parameters import json_option
from dsec.cli.worker_connection import run_episodes
from dsec.episode.content import Content
from dsec.episode.log_events import Verdict
from dsec.episode.tools import CommandOutput, ToolResult

_VERDICTS = {"happened": Verdict.HAPPENED, "did-not-happen": Verdict.DID_NOT_HAPPEN}


@click.command(name="decide")
@episode_argument
@click.argument("operation_id", metavar="OPERATION")
@click.argument("verdict", type=click.Choice(list(_VERDICTS)))
@click.option("--output", metavar="TEXT", help="What it answered, if it happened.")
@click.option("--exit-code", type=click.IntRange(0, 255), help="With which status it ended.  [0]")
@click.option("--result", "document", metavar="JSON", help="The whole result instead, as `show --json` prints them.")
@by_option
@json_option
@pass_options
def decide(
    options: Options,
    episode_id: str,
    operation_id: str,
    verdict: str,
    output: str | None,
    exit_code: int | None,
    document: str | None,
    by: str,
    as_json: bool,
) -> None:
    """Say what became of an operation that began, must not run twice, and has no recorded result.

    What happened gets its answer from you, and is not run again. What did not happen is run. The episode goes on once
    nothing of it is unknown; `dsec episode show` lists what is.
    """
    result = _result(verdict, output, exit_code, document)
    settled = run_episodes(
        options,
        lambda episodes: episodes.settle(episode_id, operation_id, _VERDICTS[verdict], result=result, by=by),
    )
    tell([settled], as_json=as_json)


def _result(verdict: str, output: str | None, exit_code: int | None, document: str | None) -> ToolResult | None:
    """Return what the operation answered.

    Raises:
        InvalidRequestError: it is missing, too much, or no result.
    """
    given = output is not None or exit_code is not None
    if verdict == "did-not-happen":
        if given or document is not None:
            raise InvalidRequestError("what did not happen has answered nothing", resolution="leave the result out")
        return None
    if document is not None and not given:
        try:
            return msgspec.json.decode(document, type=ToolResult)
        except msgspec.MsgspecError as error:
            raise InvalidRequestError(
                "--result holds no result", detail=str(error), resolution="`dsec episode show --json` has examples"
            ) from error
    if document is not None:
        raise InvalidRequestError("--result is the whole result", resolution="give it without --output and --exit-code")
    if not given:
        raise InvalidRequestError(
            "what happened has answered something, which the episode needs to go on",
            resolution="say it with --output 'TEXT' (and --exit-code N), or with --result JSON",
        )
    return CommandOutput(exit_code=exit_code or 0, stdout=Content(text=output or ""))
