"""Calls that a model makes, beside those of scripts: the tools of an agent, and a call that cannot be carried out.

What a model asks for is recorded before anybody judges it. A call of a tool that does not exist, or with arguments that
do not fit, is an operation too: its result says what was wrong, and the model reads that like any other result.
"""

from __future__ import annotations

from typing import Any

from dsec.episode.tools import ToolCall
from dsec.model.value import Value

DEFAULT_LINES = 400


class EditFile(Value, frozen=True, tag="edit", tag_field="tool", omit_defaults=True):
    """Replace the one place where `old` stands in a text file by `new`; with an empty `old`, make a file that is not
    there yet."""

    path: str
    old: str = ""
    new: str = ""


class ReadLines(Value, frozen=True, tag="read_lines", tag_field="tool", omit_defaults=True):
    """Read `count` lines of a text file from line `first` on, which counts from 1."""

    path: str
    first: int = 1
    count: int = DEFAULT_LINES


class Search(Value, frozen=True, tag="search", tag_field="tool", omit_defaults=True):
    """Find lines that match an extended regular expression, in a file or below a directory."""

    pattern: str
    path: str = "."


class Submit(Value, frozen=True, tag="submit", tag_field="tool", omit_defaults=True):
    """Say that the work is done; the episode ends with the round that holds this."""

    summary: str = ""


class OutsideCall(Value, frozen=True, tag="outside", tag_field="tool", omit_defaults=True):
    """Use a system outside the sandbox.

    Attributes:
        name: of the tool, which says what system that is and what is asked of it.
        arguments: by name; strings, numbers and booleans.
    """

    name: str
    arguments: dict[str, Any] = {}


class UnusableCall(Value, frozen=True, tag="unusable", tag_field="tool", omit_defaults=True):
    """A call that cannot be carried out.

    Attributes:
        problem: what is wrong, for the model to read.
        name: of the tool, as asked for; empty: the answer as a whole was of no use.
    """

    problem: str
    name: str = ""


AgentCall = ToolCall | EditFile | ReadLines | Search | Submit | OutsideCall | UnusableCall
