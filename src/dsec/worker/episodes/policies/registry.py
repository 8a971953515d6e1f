"""From the policy of a spec to who decides: an agent, a scaffold, a script, a replay, or a plug-in.

A plug-in is an entry point in the group ``dsec.episode_policies``, or ``module:attribute``: a callable, often a class,
that takes a `PluginContext` and returns an `EpisodePolicy` or, where its calls mean something of their own, a
`LoopPolicy`. What it raises is an error of the policy, and names it.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from dsec.base.errors import DsecError, InvalidRequestError
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.identity import ModelIdentity
from dsec.episode.operations import Effect
from dsec.episode.spec import AgentPolicy, EpisodeSpec, PluginPolicy, ReplayPolicy, ScaffoldPolicy, ScriptPolicy
from dsec.worker.chat.http import ChatSettings, HttpChatModel
from dsec.worker.episodes.policies.foreign import foreign_failure
from dsec.worker.episodes.policies.scaffold import ScaffoldCommand, check_scaffold, declare_scaffold
from dsec.worker.episodes.policies.scripted import ScriptedPolicy, replayed
from dsec.worker.episodes.policies.tool_calling import SYSTEM, ToolCallingPolicy
from dsec.worker.episodes.policies.tools import ToolSet, standard_tools
from dsec.worker.episodes.ports import EpisodePolicy, LifeContext, LoopPolicy, Proposal

GROUP = "dsec.episode_policies"

ToolsOf = Callable[[EpisodeSpec], ToolSet]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginContext:
    """What a plug-in makes its policy from.

    Attributes:
        life: of the episode; its spec holds the instruction.
        options: of the plug-in, as the spec gives them.
        tools: on offer, with what their calls declare.
        environ: the worker's environment variables.
    """

    life: LifeContext
    options: Mapping[str, Any]
    tools: ToolSet
    environ: Mapping[str, str]


def shell_effect(spec: EpisodeSpec) -> Effect:
    """Return what commands of an episode may do.

    Raises:
        InvalidRequestError: the spec names no kind of effect.
    """
    try:
        return Effect(spec.shell_effect)
    except ValueError as error:
        known = ", ".join(effect.value for effect in Effect)
        raise InvalidRequestError(
            f"{spec.shell_effect[:80]!r} is no kind of effect", resolution=f"use one of: {known}"
        ) from error


def shipped_tools(spec: EpisodeSpec) -> ToolSet:
    """Return the tools that ship, without systems outside.

    Raises:
        InvalidRequestError: the spec names a kind of effect that there is not.
    """
    return standard_tools(shell=shell_effect(spec))


def chat_settings(endpoint: ModelEndpoint, environ: Mapping[str, str]) -> ChatSettings:
    """Return how a model is asked.

    Raises:
        InvalidRequestError: its key is not in the environment.
    """
    key = ""
    if endpoint.key_variable:
        key = environ.get(endpoint.key_variable, "").strip()
        if not key:
            raise InvalidRequestError(
                f"the key of {endpoint.url} is not in the environment variable {endpoint.key_variable}",
                resolution="set it for the worker, which asks the model",
            )
    return ChatSettings(
        url=endpoint.url,
        model=endpoint.name,
        key=key,
        maximum_tokens=endpoint.maximum_tokens,
        temperature=endpoint.temperature,
        answer_s=endpoint.answer_s,
        silence_s=endpoint.silence_s,
    )


class Policies:
    """Makes who decides. Implements `dsec.worker.episodes.ports.PolicyFactory`.

    Args:
        environ: where keys of models are; None: this process's.
        tools: what an episode's agent is offered before its spec leaves some out.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, *, tools: ToolsOf = shipped_tools) -> None:
        self._environ = os.environ if environ is None else environ
        self._tools = tools

    async def __call__(self, context: LifeContext, endpoint: ModelEndpoint | None = None) -> LoopPolicy:
        """See the port."""
        spec = context.spec
        match spec.policy:
            case AgentPolicy():
                return self._agent(context, spec.policy, endpoint or spec.policy.model)
            case ScaffoldPolicy():
                return LoopPolicy(policy=ScaffoldCommand(spec), declare=declare_scaffold)
            case ScriptPolicy():
                rounds = [Proposal(calls=each.calls, message=each.message) for each in spec.policy.rounds]
                return self._scripted(spec, ScriptedPolicy(rounds))
            case ReplayPolicy():
                return self._scripted(spec, replayed(await context.recorded(spec.policy.episode_id)))
            case PluginPolicy():
                return self._plugin(context, spec.policy)

    def check(self, spec: EpisodeSpec) -> None:
        """Refuse a spec whose policy could never decide, before an episode begins.

        Raises:
            InvalidRequestError: it names what there is not.
        """
        self._tools(spec)
        match spec.policy:
            case AgentPolicy():
                for endpoint in (spec.policy.model, *spec.policy.stronger):
                    HttpChatModel(chat_settings(endpoint, self._environ))
                _chosen(self._tools(spec), spec.policy.tools)
            case ScaffoldPolicy():
                check_scaffold(spec.policy)
            case PluginPolicy():
                load_plugin(spec.policy.name)
            case _:
                pass

    def _agent(self, context: LifeContext, policy: AgentPolicy, endpoint: ModelEndpoint) -> LoopPolicy:
        tools = _chosen(self._tools(context.spec), policy.tools)
        agent = ToolCallingPolicy(
            HttpChatModel(chat_settings(endpoint, self._environ)),
            tools,
            context.spec.instruction,
            system=policy.system or SYSTEM,
            history_bytes=policy.history_bytes,
        )
        return LoopPolicy(policy=agent, declare=tools.declare, model=ModelIdentity(name=endpoint.name))

    def _scripted(self, spec: EpisodeSpec, policy: ScriptedPolicy) -> LoopPolicy:
        return LoopPolicy(policy=policy, declare=self._tools(spec).declare)

    def _plugin(self, context: LifeContext, policy: PluginPolicy) -> LoopPolicy:
        tools = self._tools(context.spec)
        asked = PluginContext(life=context, options=policy.options, tools=tools, environ=self._environ)
        try:
            made = load_plugin(policy.name)(asked)
        except DsecError:
            raise
        except (Exception, SystemExit) as error:  # What foreign code raises stops its episode, not the worker.
            raise foreign_failure(f"the policy {policy.name!r} cannot be made", error) from error
        if isinstance(made, LoopPolicy):
            return made
        if not callable(getattr(made, "decide", None)):
            raise InvalidRequestError(
                f"the policy {policy.name!r} returned {type(made).__name__}, which decides nothing",
                resolution="return an object with `async def decide(self, turn)`",
            )
        decides: EpisodePolicy = made
        return LoopPolicy(policy=decides, declare=tools.declare)


def _chosen(tools: ToolSet, names: tuple[str, ...]) -> ToolSet:
    if not names:
        return tools
    known = {tool.name for tool in tools.tools}
    if unknown := [name for name in names if name not in known]:
        raise InvalidRequestError(
            f"there is no tool {unknown[0][:80]!r}", resolution=f"choose some of: {', '.join(sorted(known))}"
        )
    return tools.only(names)


def load_plugin(name: str) -> Callable[[PluginContext], Any]:
    """Return a plug-in.

    Raises:
        InvalidRequestError: there is none of that name, or it cannot be loaded or called.
    """
    module, colon, attribute = name.partition(":")
    try:
        if colon:
            target: object = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
        else:
            found = entry_points(group=GROUP, name=name)
            if not found:
                known = ", ".join([*sorted(entry_points(group=GROUP).names), "module:attribute"])
                raise InvalidRequestError(
                    f"there is no policy {name[:80]!r} for episodes", resolution=f"use one of: {known}"
                )
            target = next(iter(found)).load()
    except DsecError:
        raise
    except (Exception, SystemExit) as error:  # Importing runs foreign code, which may end with `sys.exit()`.
        raise InvalidRequestError(
            f"the policy {name[:80]!r} cannot be loaded",
            detail=f"{type(error).__name__}: {error}",
            resolution="it is loaded by the process that drives episodes, from its PYTHONPATH and installed packages; "
            "a worker in the background has those of who started it: `dsec worker down` lets it start anew",
        ) from error
    if not callable(target):
        raise InvalidRequestError(f"the policy {name[:80]!r} is not callable", resolution="name a class or function")
    return target
