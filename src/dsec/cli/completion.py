"""`dsec completion`: the script by which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(name="completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    For bash: add `eval "$(dsec completion bash)"` to ~/.bashrc.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"completion of {shell} is not known")
    click.echo(kind(ctx.find_root().command, {}, "dsec", "_DSEC_COMPLETE").source())
