"""The tools that a model is offered: shell, read, search, edit, submit. Names, schemas, and what their calls declare.

Few and plain on purpose: a model that has a shell needs little else, and what it needs beside it (a part of a long
file, a change of one place in it) is what shells make it do badly. Whatever a model writes as a call becomes a call:
one that does not fit becomes an `UnusableCall`, which is answered with what is wrong with it.

All of them touch the sandbox's own files only, so that a round can be done again once these are put back. That is true
of a shell as long as its sandbox reaches nothing outside; where it does, offer `standard_tools(shell=Effect.ONCE)`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.base.units import KIB, MIB
from dsec.episode.agent_calls import (
    DEFAULT_LINES,
    AgentCall,
    EditFile,
    OutsideCall,
    ReadLines,
    Search,
    Submit,
    UnusableCall,
)
from dsec.episode.content import recordable
from dsec.episode.operations import Effect
from dsec.episode.tools import DEFAULT_CALL_TIMEOUT_S, ReadFile, Run
from dsec.model.value import Value
from dsec.worker.episodes.ports import Declared

MAXIMUM_ARGUMENTS_BYTES = 1 * MIB
MAXIMUM_COMMAND_S = 3600.0
SHELL_OUTPUT_BYTES = 32 * KIB
"""Kept of each stream of a shell command: the first and the last half. Some 8,000 tokens."""
_NAME_SHOWN = 64


class ShellArguments(Value, frozen=True):
    command: str
    timeout_s: float = DEFAULT_CALL_TIMEOUT_S


class ReadArguments(Value, frozen=True):
    path: str
    first_line: int = 1
    lines: int = DEFAULT_LINES


class SearchArguments(Value, frozen=True):
    pattern: str
    path: str = "."


class EditArguments(Value, frozen=True):
    path: str
    old: str
    new: str


class SubmitArguments(Value, frozen=True):
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that a model can call.

    Attributes:
        name: as the model writes it.
        description: for the model.
        arguments: type of its arguments.
        make: makes the call; raises `InvalidRequestError` for arguments that cannot be.
    """

    name: str
    description: str
    arguments: type[Value]
    make: Callable[[Any], AgentCall]

    @property
    def schema(self) -> Mapping[str, Any]:
        """The JSON schema of its arguments."""
        return _schema(self.arguments)


@functools.lru_cache(maxsize=256)
def _schema(arguments: type[Any]) -> Mapping[str, Any]:
    """Made once for each type: a model is shown it with every decision of every episode."""
    _, components = msgspec.json.schema_components([arguments])
    schema = dict(components[arguments.__name__])
    schema.pop("title", None)
    return schema


class ToolSet:
    """The tools of an episode.

    Args:
        tools: on offer.
        shell: what a command may do to the world.
        outside: what a call of a system outside may do, by the name of its tool.
    """

    def __init__(
        self, tools: Sequence[Tool], *, shell: Effect = Effect.WORKSPACE, outside: Mapping[str, Effect] = {}
    ) -> None:
        self.tools = tuple(tools)
        self._by_name = {tool.name: tool for tool in tools}
        self._shell = shell
        self._outside = outside

    def only(self, names: Collection[str]) -> ToolSet:
        """Return the set without the tools that are not named; those of systems outside stay."""
        kept = [tool for tool in self.tools if tool.name in names or tool.name in self._outside]
        return ToolSet(kept, shell=self._shell, outside=self._outside)

    def with_outside(self, tools: Sequence[Tool], effects: Mapping[str, Effect]) -> ToolSet:
        """Return the set with tools of systems outside, each with its kind of effect by its name."""
        return ToolSet([*self.tools, *tools], shell=self._shell, outside={**self._outside, **effects})

    def call(self, name: str, arguments: str) -> AgentCall:
        """Return the call that a model wrote, whatever it wrote; never fails.

        Args:
            name: of the tool, as it came.
            arguments: JSON text, as it came.
        """
        shown = recordable(name[:_NAME_SHOWN])
        tool = self._by_name.get(name)
        if tool is None:
            return UnusableCall(name=shown, problem=f"there is no tool {shown!r}; there are {', '.join(self._by_name)}")
        if len(arguments) > MAXIMUM_ARGUMENTS_BYTES:
            return UnusableCall(name=shown, problem=f"its arguments are longer than {MAXIMUM_ARGUMENTS_BYTES} bytes")
        try:
            return tool.make(msgspec.json.decode(arguments.encode() or b"{}", type=tool.arguments))
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            return UnusableCall(name=shown, problem=f"its arguments do not fit: {recordable(str(error))}")
        except InvalidRequestError as error:
            return UnusableCall(name=shown, problem=error.brief)

    def declare(self, call: AgentCall) -> Declared:
        """Return what a call declares."""
        match call:
            case Run():
                return Declared(effect=self._shell)
            case OutsideCall():
                return Declared(effect=self._outside.get(call.name, Effect.ONCE))
            case ReadLines() | ReadFile() | Search():
                return Declared(effect=Effect.NONE, parallel=True)
            case Submit() | UnusableCall():
                return Declared(effect=Effect.NONE)
            case _:
                return Declared(effect=Effect.WORKSPACE)


def _shell(arguments: ShellArguments) -> AgentCall:
    if not arguments.command.strip():
        raise InvalidRequestError("the command is empty")
    if not 0 < arguments.timeout_s <= MAXIMUM_COMMAND_S:
        raise InvalidRequestError(f"timeout_s is to be above 0 and at most {MAXIMUM_COMMAND_S:.0f}")
    _check_text(arguments.command, "the command")
    return Run(script=arguments.command, timeout_s=arguments.timeout_s, output_limit_bytes=SHELL_OUTPUT_BYTES)


def _read(arguments: ReadArguments) -> AgentCall:
    _check_path(arguments.path)
    if arguments.first_line < 1 or not 1 <= arguments.lines <= 10_000:
        raise InvalidRequestError("lines count from 1, and at most 10000 are read at once")
    return ReadLines(path=arguments.path, first=arguments.first_line, count=arguments.lines)


def _search(arguments: SearchArguments) -> AgentCall:
    _check_path(arguments.path)
    _check_text(arguments.pattern, "the pattern")
    if not arguments.pattern:
        raise InvalidRequestError("the pattern is empty")
    return Search(pattern=arguments.pattern, path=arguments.path)


def _edit(arguments: EditArguments) -> AgentCall:
    _check_path(arguments.path)
    if arguments.old == arguments.new:
        raise InvalidRequestError("old and new are the same, so that nothing would change")
    return EditFile(path=arguments.path, old=arguments.old, new=arguments.new)


def _submit(arguments: SubmitArguments) -> AgentCall:
    return Submit(summary=arguments.summary)


def _check_path(path: str) -> None:
    if not path:
        raise InvalidRequestError("the path is empty")
    _check_text(path, "the path")


def _check_text(text: str, what: str) -> None:
    if "\0" in text:
        raise InvalidRequestError(f"{what} holds a NUL, which no program can be given")


def _tool(name: str, arguments: type[Value], make: Callable[[Any], AgentCall], description: str) -> Tool:
    return Tool(name=name, description=description, arguments=arguments, make=make)


def standard_tools(*, shell: Effect = Effect.WORKSPACE) -> ToolSet:
    """Return the tools that ship.

    Args:
        shell: what commands may do; `Effect.ONCE` where their sandbox reaches systems outside.
    """
    tools = [
        _tool("shell", ShellArguments, _shell, "Run a command with /bin/sh. Long output is cut in the middle."),
        _tool("read", ReadArguments, _read, "Read lines of a text file, with their numbers."),
        _tool("search", SearchArguments, _search, "Find lines that match an extended regular expression."),
        _tool(
            "edit",
            EditArguments,
            _edit,
            "Replace the one place where `old` stands in a text file by `new`. An empty `old` makes a new file.",
        ),
        _tool("submit", SubmitArguments, _submit, "Say that the work is done, with a summary. It ends here."),
    ]
    return ToolSet(cast(Sequence[Tool], tools), shell=shell)
