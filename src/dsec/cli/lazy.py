"""Groups whose commands are imported when they run.

`dsec -h` must answer at once and a broken or absent part must not take the others with it, so a group holds names,
import paths and one-line helps, and imports a command only to run it or to show its own help.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from dsec.base.errors import DsecError
from dsec.cli.failures import fail

HELP_OPTIONS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command that is not imported yet.

    Attributes:
        where: ``module:attribute``.
        help: one line.
    """

    where: str
    help: str

    def load(self) -> click.Command:
        module, _, attribute = self.where.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.where} is not a command")
        return command


class LazyGroup(click.Group):
    """A group of commands by import path, which shows DSec's errors as they should be shown."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy] | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("context_settings", HELP_OPTIONS)
        super().__init__(*args, **kwargs)
        self._lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        # One that only points elsewhere says its own order; in one of both kinds nobody could find anything.
        others = super().list_commands(ctx)
        return sorted([*self._lazy, *others]) if others else list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self._lazy.get(cmd_name)
        if lazy is None:
            return super().get_command(ctx, cmd_name)
        try:
            return lazy.load()
        except ModuleNotFoundError as error:
            # Only the command's own module may be absent from an installation; a missing library is said as it is.
            raise click.ClickException(f"'{cmd_name}' is not part of this installation: {error}") from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self._help_of(ctx, name)) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def _help_of(self, ctx: click.Context, name: str) -> str:
        lazy = self._lazy.get(name)
        if lazy is not None:
            return lazy.help
        command = super().get_command(ctx, name)
        return command.get_short_help_str(100) if command else ""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise self._suggest(ctx, args, error) from error

    def _suggest(self, ctx: click.Context, args: list[str], error: click.UsageError) -> click.UsageError:
        from difflib import get_close_matches

        close = get_close_matches(args[0], self.list_commands(ctx), n=1)
        return click.UsageError(f"{error.message} Did you mean '{close[0]}'?", ctx) if close else error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DsecError as error:
            fail(ctx, error)
        except KeyboardInterrupt:
            ctx.exit(130)
