"""How a task's script is started in the sandbox."""

from __future__ import annotations

from pathlib import Path

SHELL = "/bin/bash"
"""What a script without an interpreter line is run by, as a shell would do."""


def script_argv(script: Path, path: str) -> tuple[str, ...]:
    """Return the arguments that run the script at `path` in the sandbox; `script` is the same file here."""
    with script.open("rb") as content:
        has_interpreter = content.read(2) == b"#!"
    return (path,) if has_interpreter else (SHELL, path)
