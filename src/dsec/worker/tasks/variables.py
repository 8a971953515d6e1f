"""``${NAME}`` and ``${NAME:-default}`` in a task's variables stand for the runner's own."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dsec.base.errors import TaskFormatError

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def resolve_variables(variables: Mapping[str, str], environ: Mapping[str, str], *, task: str) -> dict[str, str]:
    """Return `variables` with every reference replaced.

    Raises:
        TaskFormatError: a variable is not set and has no default.
    """

    def value(match: re.Match[str]) -> str:
        found = environ.get(match.group(1), match.group(2))
        if found is None:
            raise TaskFormatError(
                f"task {task} needs the environment variable {match.group(1)}",
                resolution=f"set {match.group(1)}, or give it a default: ${{{match.group(1)}:-value}}",
            )
        return found

    return {name: _REFERENCE.sub(value, text) for name, text in variables.items()}
