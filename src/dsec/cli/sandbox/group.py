"""The table of `dsec sandbox` commands."""

from __future__ import annotations

import click

from dsec.cli.lazy import Lazy, LazyGroup

_HERE = "dsec.cli.sandbox"
_COMMANDS = {
    "create": Lazy(f"{_HERE}.create:create", "Create a sandbox and print its id."),
    "ls": Lazy(f"{_HERE}.listing:ls", "List sandboxes."),
    "inspect": Lazy(f"{_HERE}.listing:inspect", "Show what a sandbox is."),
    "exec": Lazy(f"{_HERE}.execute:execute", "Run a command in a sandbox."),
    "shell": Lazy(f"{_HERE}.execute:shell", "Open a shell in a sandbox."),
    "cp": Lazy(f"{_HERE}.copy:copy", "Copy files in or out."),
    "files": Lazy(f"{_HERE}.files:files", "List files of a sandbox."),
    "ps": Lazy(f"{_HERE}.processes:ps", "List background processes."),
    "logs": Lazy(f"{_HERE}.processes:logs", "Print what a background process wrote."),
    "kill": Lazy(f"{_HERE}.processes:kill", "Signal a background process."),
    "stats": Lazy(f"{_HERE}.stats:stats", "Show what sandboxes use."),
    "rollback": Lazy(f"{_HERE}.life:rollback", "Return to the clean state or to a checkpoint."),
    "checkpoint": Lazy(f"{_HERE}.saving:checkpoint", "Save the present state on the node."),
    "checkpoints": Lazy(f"{_HERE}.saving:checkpoints", "Draw the checkpoints as a tree."),
    "fork": Lazy(f"{_HERE}.saving:fork", "Make children that begin with the same files."),
    "snapshot": Lazy(f"{_HERE}.saving:snapshot", "Make a state durable in the store."),
    "pack": Lazy(f"{_HERE}.saving:pack", "Make an image of what a session changed."),
    "migrate": Lazy(f"{_HERE}.saving:migrate", "Move a sandbox to another node."),
    "fingerprint": Lazy(f"{_HERE}.saving:fingerprint", "Compare a sandbox with its clean state."),
    "pause": Lazy(f"{_HERE}.life:pause", "Freeze a sandbox and give its memory back."),
    "resume": Lazy(f"{_HERE}.life:resume", "Let a paused sandbox go on."),
    "extend": Lazy(f"{_HERE}.life:extend", "Give a sandbox more time."),
    "stop": Lazy(f"{_HERE}.life:stop", "Destroy sandboxes; their records stay."),
    "rm": Lazy(f"{_HERE}.life:rm", "Destroy sandboxes and forget them."),
}


@click.group(name="sandbox", cls=LazyGroup, lazy=_COMMANDS)
def sandbox() -> None:
    """Create and operate sandboxes.

    A sandbox is named in place or with --id: `dsec sandbox inspect sbx-12345` and
    `dsec sandbox inspect --id sbx-12345` are the same.
    """
