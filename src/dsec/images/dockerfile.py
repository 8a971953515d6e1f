"""Find the images that a Dockerfile stands on, and rewrite it to stand on others.

Only what names images is understood: ``ARG`` before the first ``FROM``, ``FROM``, ``COPY --from`` and
``RUN --mount=...,from=``. Everything else is for the builder. Source: the Dockerfile reference, "FROM", "ARG", "COPY".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

_FROM = re.compile(r"\s*FROM\s+(?:--platform=\S+\s+)?(\S+)(\s+AS\s+(\S+))?\s*", re.IGNORECASE)
_ARG = re.compile(r"\s*ARG\s+(\w+)(?:=(.*))?\s*", re.IGNORECASE)
_COPY_FROM = re.compile(r"(\s*(?:COPY|ADD)\s.*?--from=)(\S+)(.*)", re.IGNORECASE | re.DOTALL)
_MOUNT_FROM = re.compile(r"(--mount=\S*?\bfrom=)([^\s,]+)")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")

SCRATCH = "scratch"

Resolve = Callable[[str], str]
"""Takes the name of an image as written and returns the one to use instead."""


@dataclass(slots=True)
class _State:
    """What the lines so far have said."""

    arguments: dict[str, str]
    given: Mapping[str, str]
    stages: list[str] = field(default_factory=list)
    begun: bool = False


def rewrite(text: str, *, resolve: Resolve, arguments: Mapping[str, str], added: Sequence[str]) -> str:
    """Return the Dockerfile with every image replaced by what `resolve` says.

    Args:
        text: the Dockerfile.
        resolve: called for each image that is neither a stage nor ``scratch``; its errors pass through.
        arguments: values of build arguments.
        added: lines put after each ``FROM``.
    """
    state = _State(arguments={}, given=arguments)
    lines = [_rewrite_instruction(line, state, resolve, added) for line in _instructions(text)]
    return "\n".join(lines) + "\n"


def images_of(text: str, arguments: Mapping[str, str] = {}) -> tuple[str, ...]:
    """Return the images that a Dockerfile stands on, as it names them, each once."""
    found: dict[str, None] = {}

    def note(name: str) -> str:
        found[name] = None
        return name

    rewrite(text, resolve=note, arguments=arguments, added=())
    return tuple(found)


def _instructions(text: str) -> list[str]:
    """Split into instructions, each with its continuation lines, and comments and empty lines."""
    found: list[str] = []
    continued = False
    for line in text.splitlines():
        is_comment = line.lstrip().startswith("#")
        if continued:
            found[-1] += "\n" + line
        else:
            found.append(line)
        # Comments and empty lines inside a continued instruction do not end it.
        if not (is_comment or (continued and not line.strip())):
            continued = line.rstrip().endswith("\\")
    return found


def _rewrite_instruction(line: str, state: _State, resolve: Resolve, added: Sequence[str]) -> str:
    argument = _ARG.fullmatch(line)
    if argument and not state.begun:
        name, default = argument.group(1), (argument.group(2) or "").strip("\"'")
        state.arguments[name] = state.given.get(name, _substitute(default, state.arguments))
        return line
    start = _FROM.fullmatch(line.replace("\\\n", " "))
    if start:
        return _rewrite_from(start, state, resolve, added)
    copy = _COPY_FROM.fullmatch(line)
    if copy:
        return copy.group(1) + _other_image(copy.group(2), state, resolve) + copy.group(3)
    if line.lstrip()[:4].upper() == "RUN ":
        return _MOUNT_FROM.sub(lambda match: match.group(1) + _other_image(match.group(2), state, resolve), line)
    return line


def _rewrite_from(match: re.Match[str], state: _State, resolve: Resolve, added: Sequence[str]) -> str:
    state.begun = True
    name = _substitute(match.group(1), state.arguments)
    is_own = name.lower() in state.stages or name == SCRATCH
    state.stages.append((match.group(3) or "").lower())
    return "\n".join([f"FROM {name if is_own else resolve(name)}{match.group(2) or ''}", *added])


def _other_image(name: str, state: _State, resolve: Resolve) -> str:
    name = _substitute(name, state.arguments)
    return name if name.isdigit() or name.lower() in state.stages or name == SCRATCH else resolve(name)


def _substitute(text: str, values: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: values.get(match[1] or match[2]) or match[3] or "", text)
