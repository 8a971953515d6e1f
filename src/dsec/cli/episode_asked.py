"""The options of `dsec episode start` that stand in place of a spec: a chat model, with tools, at one task."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.cli.parameters import duration
from dsec.episode.spec import (
    AgentPolicy,
    EnvironmentMode,
    EpisodeCheck,
    EpisodeEnvironment,
    EpisodeLimits,
    EpisodeSpec,
    ModelEndpoint,
)
from dsec.model.sandbox import SandboxSpec

F = TypeVar("F", bound=Callable[..., Any])
_CONNECT_S = 2.0
_PRICE = click.FloatRange(min=0)
_OPTIONS = (
    click.option("--task", metavar="NAME", help="The task's name, instead of SPEC."),
    click.option("--instruction", metavar="TEXT", help="What is to be done; @FILE reads it from there."),
    click.option(
        "--model", metavar="URL", help="OpenAI-compatible endpoint that decides, such as http://m:8000/v1."
    ),
    click.option("--model-name", default="", metavar="NAME", help="Model there.  [the first it lists]"),
    click.option("--key-variable", default="", metavar="NAME", help="Variable of the worker with the endpoint's key."),
    click.option(
        "--stronger", multiple=True, metavar="URL[#NAME]", help="Model that takes over on failure; may be repeated."
    ),
    click.option(
        "--stronger-key-variable", default="", metavar="NAME", help="Variable of the worker with the key of these."
    ),
    click.option(
        "--check", metavar="COMMAND",
        help="Accepts a submission by exit code 0; else the agent is told its output and goes on.",
    ),
    click.option("--price-input", type=_PRICE, metavar="USD", help="Of a million input tokens of --model."),
    click.option("--price-cached", type=_PRICE, metavar="USD", help="Of those that were cached.  [as input]"),
    click.option("--price-output", type=_PRICE, metavar="USD", help="Of a million output tokens of --model."),
    click.option("--cost-limit", type=_PRICE, metavar="USD", help="What its models may cost; needs prices."),
    click.option("--image", default="python", show_default=True, help="Image of its sandbox."),
    click.option("--cwd", default="", metavar="DIRECTORY", help="Where commands run.  [the image's]"),
    click.option(
        "--environment",
        type=click.Choice([mode.value for mode in EnvironmentMode]),
        default=EnvironmentMode.RESIDENT.value,
        show_default=True,
        help="Where its sandbox is while the model thinks (docs/environments.md).",
    ),
    click.option("--rounds", type=click.IntRange(min=1), help="Most rounds it may have."),
    click.option("--deadline", type=duration, help="Time after which it ends, such as 30m."),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """As they were given; see the options' own help."""

    task: str | None
    instruction: str | None
    model: str | None
    model_name: str
    key_variable: str
    stronger: tuple[str, ...]
    stronger_key_variable: str
    check: str | None
    price_input: float | None
    price_cached: float | None
    price_output: float | None
    cost_limit: float | None
    image: str
    cwd: str
    environment: str
    rounds: int | None
    deadline: float | None


def asked_options(command: F) -> F:
    """Add the options, passed one by one under the names of `Asked`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def refuse_beside_spec(ctx: click.Context) -> None:
    """Refuse options that a file with specs would silently overrule.

    Raises:
        click.UsageError: one was given.
    """
    given = [
        "--" + field.name.replace("_", "-")
        for field in fields(Asked)
        if ctx.get_parameter_source(field.name) is not click.core.ParameterSource.DEFAULT
    ]
    if given:
        raise click.UsageError(f"{', '.join(given)} belong to --task; SPEC has its own.")


def asked_spec(asked: Asked) -> EpisodeSpec:
    """Return the spec that the options describe.

    Raises:
        click.UsageError: one is missing, or stands without what it needs.
        InvalidRequestError: the file with the instruction cannot be read.
    """
    instruction = _text(asked.instruction)
    if not asked.task or asked.model is None or not instruction:
        raise click.UsageError("--task needs --instruction and --model.")
    if asked.stronger_key_variable and not asked.stronger:
        raise click.UsageError("--stronger-key-variable belongs to --stronger.")
    if asked.cost_limit is not None and (asked.price_input is None or asked.price_output is None):
        raise click.UsageError("--cost-limit needs --price-input and --price-output: what has no price costs nothing.")
    limits = EpisodeLimits(deadline_s=asked.deadline, cost_usd=asked.cost_limit)
    return EpisodeSpec(
        task=asked.task,
        instruction=instruction,
        policy=AgentPolicy(model=_first(asked), stronger=tuple(_stronger(asked, one) for one in asked.stronger)),
        environment=EpisodeEnvironment(
            sandbox=SandboxSpec(image=asked.image), cwd=asked.cwd, mode=EnvironmentMode(asked.environment)
        ),
        limits=limits if asked.rounds is None else msgspec.structs.replace(limits, rounds=asked.rounds),
        check=None if asked.check is None else EpisodeCheck(command=asked.check),
    )


def not_heard(url: str) -> str:
    """Say what keeps us from connecting to a model; empty: nothing does, or the URL is for others to judge."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        socket.create_connection((parts.hostname or "", port), _CONNECT_S).close()
    except (ValueError, KeyError):
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _first(asked: Asked) -> ModelEndpoint:
    return ModelEndpoint(
        url=asked.model or "",
        name=asked.model_name,
        key_variable=asked.key_variable,
        input_usd=asked.price_input,
        cached_usd=asked.price_cached,
        output_usd=asked.price_output,
    )


def _stronger(asked: Asked, given: str) -> ModelEndpoint:
    """Return a stronger model; it has a key of its own, as it is often somebody else's, who must not see the first."""
    url, _, name = given.partition("#")
    return ModelEndpoint(url=url, name=name, key_variable=asked.stronger_key_variable)


def _text(given: str | None) -> str:
    """Return a text, or what the file holds that ``@FILE`` names.

    Raises:
        InvalidRequestError: the file cannot be read.
    """
    if given is None or not given.startswith("@"):
        return given or ""
    try:
        return Path(given[1:]).read_text(encoding="utf8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{given[1:]} cannot be read", detail=str(error)) from error
