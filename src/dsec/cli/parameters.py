"""Parameters that several commands share.

Texts are parsed by plain functions that raise `InvalidRequestError`, so that a bad value looks and exits the same
wherever it is found.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, TypeVar

import click

from dsec.base.errors import InvalidRequestError
from dsec.base.units import parse_duration, parse_size

F = TypeVar("F", bound=Callable[..., Any])


def size(text: str) -> int:
    """Return the bytes of a size such as ``512M``."""
    return parse_size(text)


def duration(text: str) -> float:
    """Return the seconds of a duration such as ``90``, ``10m`` or ``1.5h``."""
    return parse_duration(text)


def duration_or_none(text: str) -> float:
    """Return the seconds of a duration; infinity for ``none``, which is no limit."""
    return float("inf") if text == "none" else parse_duration(text)


def words(text: str) -> tuple[str, ...]:
    """Return the words of a command, quoted as in a shell.

    Raises:
        InvalidRequestError: a quotation does not end.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise InvalidRequestError(f"{text!r} cannot be split into words: {error}") from error


def pair(text: str) -> tuple[str, str]:
    """Return key and value of ``KEY=VALUE``.

    Raises:
        InvalidRequestError: it is not of that form.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidRequestError(f"{text!r} is not KEY=VALUE", resolution="write a name, an equals sign and a value")
    return key, value


def pairs_option(*names: str, help: str) -> Callable[[F], F]:
    """An option of ``KEY=VALUE`` pairs that may be repeated."""
    return click.option(*names, type=pair, multiple=True, metavar="KEY=VALUE", help=help)


def finite(duration_s: float) -> float | None:
    """Return None for the duration that was written ``none``."""
    return None if duration_s == float("inf") else duration_s


def json_option(command: F) -> F:
    """Add ``--json``, passed as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def keep_memory_option(command: F) -> F:
    """Add ``--keep-memory``, passed as `keep_memory`."""
    return click.option("--keep-memory", is_flag=True, help="Freeze only, and leave the memory where it is.")(command)


def id_parameters(command: F) -> F:
    """Add the sandbox's id, as ``--id ID`` or in place, passed as `id_option` and `id_argument`."""
    command = click.option("--id", "id_option", metavar="ID", help="The sandbox (instead of naming it in place).")(
        command
    )
    return click.argument("id_argument", metavar="[ID]", required=False)(command)


def ids_parameters(command: F) -> F:
    """Add any number of ids, as ``--id ID`` or in place, passed as `id_options` and `id_arguments`."""
    command = click.option(
        "--id", "id_options", metavar="ID", multiple=True, help="A sandbox (instead of naming it in place)."
    )(command)
    return click.argument("id_arguments", metavar="[ID]...", nargs=-1)(command)


def one_id(option: str | None, argument: str | None) -> str:
    """Return the id that was given one way or the other.

    Raises:
        click.UsageError: none was given, or two.
        InvalidRequestError: it is not a sandbox id.
    """
    from dsec.base.ids import check_sandbox_id

    if option and argument and option != argument:
        raise click.UsageError(f"Two sandboxes were named: {option} and {argument}.")
    given = option or argument
    if not given:
        raise click.UsageError("Missing the sandbox's ID. `dsec sandbox ls` lists them.")
    return check_sandbox_id(given)


def all_ids(options: tuple[str, ...], arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return the ids given either way, in order, each once."""
    from dsec.base.ids import check_sandbox_id

    return tuple(check_sandbox_id(given) for given in dict.fromkeys([*options, *arguments]))


def stack_options(function: F) -> F:
    """Add ``--workspace`` and ``--toolkit``, which `stack_of` reads: the images above the base."""
    workspace = click.option("--workspace", metavar="IMAGE", help="Image of a workspace, stacked on the base.")
    toolkits = click.option(
        "--toolkit", "toolkits", multiple=True, metavar="IMAGE", help="Image of tools, stacked on top; may be repeated."
    )
    return workspace(toolkits(function))


def stack_of(workspace: str | None, toolkits: tuple[str, ...]) -> tuple[str, ...]:
    """Return the images above the base, in the order in which they are stacked."""
    return ((workspace,) if workspace else ()) + toolkits


def merge_options(function: F) -> F:
    """Add ``--merge-up-to`` and ``--keep-layers``: which neighbouring layers of an image become one."""
    threshold = click.option(
        "--merge-up-to",
        type=size,
        default="3GiB",
        show_default=True,
        metavar="SIZE",
        help="Merge neighbouring layers that nobody shares up to this size; 0 merges none.",
    )
    keep = click.option(
        "--keep-layers",
        type=click.IntRange(min=0),
        default=5,
        show_default=True,
        help="Merge nothing in an image of no more layers than these.",
    )
    return threshold(keep(function))
