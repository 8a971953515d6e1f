"""From what a spec says of a system outside to a tool that a model can call, and to hands that carry its calls out.

``http`` and ``postgresql`` ship; others are entry points in the group ``dsec.outside_systems`` (`OutsideFactory`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, TypeVar

import msgspec

from dsec.base.errors import DsecError, InvalidRequestError
from dsec.episode.agent_calls import AgentCall, OutsideCall
from dsec.episode.spec import EpisodeSpec, OutsideSpec
from dsec.model.value import Value
from dsec.worker.episodes.policies.registry import shipped_tools
from dsec.worker.episodes.policies.tools import Tool, ToolSet
from dsec.worker.episodes.ports import Hands, LifeContext
from dsec.worker.outside.hands import OutsideHands
from dsec.worker.outside.http import HttpOptions, HttpOutside
from dsec.worker.outside.parameters import arguments_type
from dsec.worker.outside.port import OutsideFactory, OutsideTool

GROUP = "dsec.outside_systems"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_Options = TypeVar("_Options")


def _options(name: str, options: Mapping[str, Any], kind: type[_Options]) -> _Options:
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(
            f"the options of the tool {name} do not fit", detail=str(error), resolution="see docs/outside.md"
        ) from error


def http_tool(name: str, options: Mapping[str, Any], environment: Mapping[str, str]) -> OutsideTool:
    """Return a tool that uses an HTTP service. An `OutsideFactory`."""
    known = _options(name, options, HttpOptions)
    system = HttpOutside(name, known, environment=environment)
    arguments = arguments_type(name, known.parameters)
    return OutsideTool(name=name, description=known.description, arguments=arguments, system=system)


def postgresql_tool(name: str, options: Mapping[str, Any], environment: Mapping[str, str]) -> OutsideTool:
    """Return a tool that acts on a PostgreSQL database. An `OutsideFactory`.

    Raises:
        CapabilityMissingError: psycopg is not installed.
    """
    from dsec.worker.outside.postgresql import PostgresqlOptions, PostgresqlOutside

    known = _options(name, options, PostgresqlOptions)
    system = PostgresqlOutside(name, known, environment=environment)
    arguments = arguments_type(name, known.parameters)
    return OutsideTool(name=name, description=known.description, arguments=arguments, system=system)


SHIPPED: Mapping[str, OutsideFactory] = {"http": http_tool, "postgresql": postgresql_tool}


def open_tool(spec: OutsideSpec, environment: Mapping[str, str]) -> OutsideTool:
    """Return the tool that a spec declares.

    Raises:
        InvalidRequestError: there is no such adapter, or its options are not what they can be.
        CapabilityMissingError: what the adapter needs is not installed.
    """
    if _NAME.fullmatch(spec.name) is None:
        raise InvalidRequestError(
            f"{spec.name[:80]!r} cannot be the name of a tool",
            resolution="use lower-case letters, digits and '_', beginning with a letter",
        )
    try:
        tool = _factory(spec.adapter)(spec.name, spec.options, environment)
    except DsecError:
        raise
    except Exception as error:  # Plug-ins are foreign code: what they raise refuses the episode, and ends no worker.
        raise InvalidRequestError(
            f"the tool {spec.name} cannot be made by the adapter {spec.adapter!r}",
            detail=f"{type(error).__name__}: {error}",
        ) from error
    if not tool.system.effect.is_announced:
        raise InvalidRequestError(
            f"the tool {spec.name} declares the effect {tool.system.effect.value!r}, which nothing outside has",
            resolution="an adapter declares asked, deduplicated, compensated or once",
        )
    return tool


def _factory(adapter: str) -> OutsideFactory:
    if adapter in SHIPPED:
        return SHIPPED[adapter]
    found = entry_points(group=GROUP, name=adapter)
    if not found:
        known = ", ".join([*SHIPPED, *sorted(entry_points(group=GROUP).names)])
        raise InvalidRequestError(
            f"there is no adapter {adapter[:80]!r} for systems outside", resolution=f"use one of: {known}"
        )
    factory: OutsideFactory = next(iter(found)).load()
    return factory


class OutsideSystems:
    """The systems outside that the episodes of a worker may use.

    Args:
        environment: where what is secret stands; None: this process's.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment

    def open(self, specs: Sequence[OutsideSpec]) -> dict[str, OutsideTool]:
        """Return the tools of a spec by their names.

        Raises:
            DsecError: as `open_tool`; or two have the same name.
        """
        tools = {spec.name: open_tool(spec, self._environment) for spec in specs}
        if len(tools) != len(specs):
            raise InvalidRequestError("two systems outside have the same name")
        return tools

    def tools(self, spec: EpisodeSpec) -> ToolSet:
        """Return what the agent of an episode is offered: the tools that ship, and those of its systems outside.

        Raises:
            DsecError: the spec asks for what cannot be.
        """
        shipped = shipped_tools(spec)
        opened = self.open(spec.outside)
        if taken := opened.keys() & {tool.name for tool in shipped.tools}:
            raise InvalidRequestError(f"{sorted(taken)[0]!r} is the name of a tool that ships; choose another one")
        return shipped.with_outside(
            [_offered(tool) for tool in opened.values()],
            {name: tool.system.effect for name, tool in opened.items()},
        )

    def hands(self, context: LifeContext, sandbox: Hands) -> Hands:
        """Put what acts outside beside what acts in the sandbox. A `HandsFactory`."""
        if not context.spec.outside:
            return sandbox
        return OutsideHands(sandbox, self.open(context.spec.outside), epoch=context.epoch)


def _offered(tool: OutsideTool) -> Tool:
    def make(arguments: Value) -> AgentCall:
        given = msgspec.to_builtins(arguments)
        return OutsideCall(
            name=tool.name, arguments={name: value for name, value in given.items() if value is not None}
        )

    return Tool(name=tool.name, description=tool.description, arguments=tool.arguments, make=make)
