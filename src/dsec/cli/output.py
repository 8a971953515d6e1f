"""What commands print: data to stdout, everything else to stderr.

Tables go through Rich. On a terminal they fit its width; into a pipe or file they are as wide as their content, so that
`grep`, `awk` and a diff see whole values.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from dsec.cli.bars import Bar

_PIPE_WIDTH = 10_000
_STEERING = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def console() -> Console:
    """Return a console on stdout."""
    from rich.console import Console

    return Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False, soft_wrap=False
    )


def note(text: str) -> None:
    """Say something to the person at the terminal (stderr)."""
    click.echo(text, err=True)


@asynccontextmanager
async def said_after(patience_s: float, text: str) -> AsyncIterator[None]:
    """Say `text` to the person at the terminal if what is done inside takes longer than that."""
    import anyio

    async def say() -> None:
        await anyio.sleep(patience_s)
        note(text)

    async with anyio.create_task_group() as group:
        group.start_soon(say)
        yield
        group.cancel_scope.cancel()


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show that something goes on, and for how long: on a terminal beside a spinner that goes when it is over."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as shown:
        shown.add_task(printable(what), total=None)
        yield


@contextmanager
def resumable() -> Iterator[None]:
    """Say to whoever interrupts what is done inside that it was not in vain."""
    try:
        yield
    except KeyboardInterrupt:
        note("interrupted: what is done so far stays, and the same command goes on from there")
        raise


def print_json(value: Any) -> None:
    """Print one value as JSON: values as their fields, enumerations by value, bytes as base64."""
    import msgspec

    click.echo(_harmless(msgspec.json.format(msgspec.json.encode(value), indent=2)))


def print_json_line(value: Any) -> None:
    """Print one value as one line of JSON, at once."""
    import msgspec

    click.echo(_harmless(msgspec.json.encode(value)))


def _harmless(document: bytes) -> str:
    """Escape what JSON may hold as it is and a terminal may obey: DEL, C1 controls, changes of direction."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", document.decode())


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Bar]]) -> Table:
    """Return a plain table; the text of cells is not markup."""
    from rich.table import Table
    from rich.text import Text

    result = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        result.add_column(column.upper(), no_wrap=not sys.stdout.isatty(), overflow="fold")
    for row in rows:
        result.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in row))
    return result


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | Bar]]) -> None:
    """Print a plain table."""
    console().print(table(columns, rows))


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair a line."""
    pairs = list(fields)
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        click.echo(f"{name:<{width}}  {printable(value)}")


def printable(text: str) -> str:
    """Return `text` without control characters: names that a guest chose must not steer the terminal."""
    safe = text.encode("utf8", errors="replace").decode()
    return "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in safe)


def age(since_s: float) -> str:
    """Return how long ago a wall-clock time was."""
    from dsec.base.units import format_duration

    return format_duration(max(0.0, time.time() - since_s))


def or_dash(value: object) -> str:
    """Return a dash for what is not known."""
    return "-" if value is None or value == "" else str(value)


def size_or_dash(size_bytes: int | None) -> str:
    """Return a size for people, or a dash."""
    from dsec.base.units import format_size

    return "-" if size_bytes is None else format_size(size_bytes)
