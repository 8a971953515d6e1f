"""The options of `dsec rollout run` for policies that are played as episodes: models, environment, durability."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dsec.base.errors import InvalidRequestError

if TYPE_CHECKING:
    from dsec.episode.durability import Durability
    from dsec.episode.endpoint import ModelEndpoint
    from dsec.worker.policies.episodes import EpisodeOptions

F = TypeVar("F", bound=Callable[..., Any])
_PRICE = click.FloatRange(min=0)
_MODES = ("resident", "rebuilt", "paused", "automatic")
_OPTIONS = (
    click.option("--model", metavar="URL", help="Chat model of an agent, such as http://127.0.0.1:8000/v1."),
    click.option("--model-name", default="", metavar="NAME", help="Of the model there.  [the first that it lists]"),
    click.option(
        "--key-variable", default="", metavar="NAME", help="Environment variable with the model's key.  [none]"
    ),
    click.option(
        "--stronger", multiple=True, metavar="URL[#NAME]", help="Model that takes over on failure; may be given again."
    ),
    click.option(
        "--stronger-key-variable",
        default="",
        metavar="NAME",
        help="Environment variable with the key of these, which are not sent the first one's.  [none]",
    ),
    click.option(
        "--max-rounds",
        type=click.IntRange(min=1),
        default=10_000,
        show_default=True,
        help="Of one attempt; then it ends.",
    ),
    click.option("--temperature", type=click.FloatRange(min=0), help="Of the models.  [their own]"),
    click.option("--max-tokens", type=click.IntRange(min=1), default=8192, show_default=True, help="Of an answer."),
    click.option("--price-input", type=_PRICE, metavar="USD", help="Of a million input tokens.  [not known]"),
    click.option("--price-cached", type=_PRICE, metavar="USD", help="Of those that were cached.  [as input]"),
    click.option("--price-output", type=_PRICE, metavar="USD", help="Of a million output tokens.  [not known]"),
    click.option("--prices", metavar="FILE", help="Price table for models without these: a file, or `chapter`."),
    click.option("--cost-limit", type=_PRICE, metavar="USD", help="What the models of one attempt may cost.  [none]"),
    click.option(
        "--environment",
        type=click.Choice(_MODES),
        default="resident",
        show_default=True,
        help="Where an agent's sandbox is while the model thinks.",
    ),
    click.option(
        "--durability",
        default="round",
        show_default=True,
        metavar="round|N|async[:N]",
        help="Save each round, each N rounds, or beside the loop, at most N behind.",
    ),
    click.option(
        "--commands",
        type=click.Choice(("workspace", "once")),
        help="What commands may do: change files, or things outside; then one that was cut off is never repeated by "
        "itself.  [once where a task has a network]",
    ),
    click.option(
        "--worker",
        metavar="URL",
        help="Worker that drives the episodes, over the same node; they go on without this command.  [one in here]",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="From which the attempts' own follow."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """As they were given; see the options' own help."""

    model: str | None
    model_name: str
    key_variable: str
    stronger: tuple[str, ...]
    stronger_key_variable: str
    max_rounds: int
    temperature: float | None
    max_tokens: int
    price_input: float | None
    price_cached: float | None
    price_output: float | None
    prices: str | None
    cost_limit: float | None
    environment: str
    durability: str
    commands: str | None
    worker: str | None
    seed: int


def agent_options(command: F) -> F:
    """Add the options, passed one by one under the names of `AgentOptions`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


async def episode_options(given: AgentOptions) -> EpisodeOptions:
    """Return how attempts are played that are episodes; models without a name are asked for it.

    Raises:
        InvalidRequestError: an option contradicts another, or the key is not where it was said to be.
        BackendFailedError: an endpoint cannot be asked for its models.
    """
    from dsec.cli.prices import read_price_table
    from dsec.episode.operations import Effect
    from dsec.episode.spec import EnvironmentMode
    from dsec.worker.ledger_pricing import priced_endpoint
    from dsec.worker.policies.episodes import EpisodeOptions

    if given.stronger_key_variable and not given.stronger:
        raise InvalidRequestError("--stronger-key-variable stands without --stronger", resolution="give the model, too")
    table = read_price_table(given.prices)
    stronger = [await _endpoint(given, *_split(url), is_first=False) for url in given.stronger]
    model = None
    if given.model is not None:
        url, name = _split(given.model)
        model = await _endpoint(given, url, given.model_name or name, is_first=True)
    elif stronger:
        raise InvalidRequestError("--stronger stands without --model", resolution="give the first model, too")
    return EpisodeOptions(
        model=priced_endpoint(model, table) if model is not None else None,
        stronger=tuple(priced_endpoint(one, table) for one in stronger),
        mode=EnvironmentMode(given.environment),
        durability=read_durability(given.durability),
        cost_usd=given.cost_limit,
        seed=given.seed,
        commands=Effect(given.commands) if given.commands else None,
    )


def _split(url: str) -> tuple[str, str]:
    address, _, name = url.partition("#")
    return address, name


async def _endpoint(given: AgentOptions, url: str, name: str, *, is_first: bool) -> ModelEndpoint:
    import os

    from msgspec.structs import replace

    from dsec.episode.endpoint import ModelEndpoint
    from dsec.worker.chat.http import HttpChatModel
    from dsec.worker.episodes.policies.registry import chat_settings

    endpoint = ModelEndpoint(
        url=url,
        name=name,
        # The stronger ones are often somebody else's, who must not see the first one's key.
        key_variable=given.key_variable if is_first else given.stronger_key_variable,
        maximum_tokens=given.max_tokens,
        temperature=given.temperature,
        input_usd=given.price_input if is_first else None,
        cached_usd=given.price_cached if is_first else None,
        output_usd=given.price_output if is_first else None,
    )
    asked = HttpChatModel(chat_settings(endpoint, os.environ))
    return endpoint if name else replace(endpoint, name=await asked.first_listed())


def read_durability(text: str) -> Durability:
    """Return the durability that a text names.

    Raises:
        InvalidRequestError: it names none.
    """
    from dsec.episode.durability import DEFAULT_BOUND, EVERY_ROUND, asynchronous, every_n_rounds

    kind, colon, bound = text.partition(":")
    if text == "round":
        return EVERY_ROUND
    if text.isascii() and text.isdecimal():
        return every_n_rounds(int(text))
    if kind == "async" and (not colon or (bound.isascii() and bound.isdecimal())):
        return asynchronous(int(bound) if bound else DEFAULT_BOUND)
    raise InvalidRequestError(f"--durability: {text!r} is none", resolution="write round, a number, async or async:N")
