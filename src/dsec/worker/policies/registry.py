"""From a name on the command line to a policy.

``oracle``, ``nop``, ``script:FILE``, ``replay:DIR``, those that are played as episodes (``agent``,
``scaffold:COMMAND``, ``episode:NAME``; see `dsec.worker.policies.episodes`), the name of a plug-in (an entry point in
the group ``dsec.policies``), or ``module:attribute``. A plug-in is a `PolicyFactory`: a callable, often a class, that
takes a `PolicyContext`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from importlib.metadata import entry_points
from pathlib import Path

from dsec.base.errors import InvalidRequestError, NotFoundError
from dsec.worker.layout import WORKER_NAME
from dsec.worker.policies.episodes import EpisodeOptions, episode_source, is_episode_policy, replay_source
from dsec.worker.policies.nop import NopPolicy
from dsec.worker.policies.oracle import OraclePolicy, check_solution
from dsec.worker.policies.port import Policy, PolicyContext, PolicyFactory, PolicySource
from dsec.worker.policies.replay import replay_policy
from dsec.worker.policies.script import RecordedPolicy, read_script

GROUP = "dsec.policies"
_KNOWN = ("agent", "scaffold:COMMAND", "episode:NAME", "oracle", "nop", "script:FILE", "replay:DIR", "module:attribute")


def _script(name: str, path: Path) -> PolicySource:
    rounds = read_script(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]

    def make(context: PolicyContext) -> Policy:
        del context
        return RecordedPolicy(rounds, reason="the script is over")

    return PolicySource(name=name, fingerprint=f"script:{digest}", make=make)


def _replay(name: str, out: Path) -> PolicySource:
    if not (out / "attempts").is_dir():
        raise NotFoundError(f"{out} holds no recorded attempts", resolution="name the --out of an earlier run")
    if (out / WORKER_NAME).is_dir():
        return replay_source(name, out)
    return PolicySource(name=name, fingerprint=f"replay:{out.resolve()}", make=functools.partial(replay_policy, out))


def _callable(target: object, name: str) -> PolicyFactory:
    if not callable(target):
        raise InvalidRequestError(f"policy {name} is not callable", resolution="name a class or function")
    factory: PolicyFactory = target
    return factory


def _plugin(name: str) -> PolicySource:
    found = entry_points(group=GROUP, name=name)
    if not found:
        known = ", ".join([*_KNOWN, *_plugin_names()])
        raise InvalidRequestError(f"there is no policy {name!r}", resolution=f"use one of: {known}")
    target = _callable(next(iter(found)).load(), name)
    return PolicySource(name=name, fingerprint=f"plugin:{name}", make=target)


def _plugin_names() -> list[str]:
    return sorted(entry_points(group=GROUP).names)


def _attribute(name: str, module: str, attribute: str) -> PolicySource:
    try:
        target = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise InvalidRequestError(f"policy {name} cannot be loaded", detail=str(error)) from error
    return PolicySource(name=name, fingerprint=f"attribute:{name}", make=_callable(target, name))


def load_policy(name: str, episodes: EpisodeOptions | None = None) -> PolicySource:
    """Return the policy called `name`.

    Args:
        name: as on the command line.
        episodes: how attempts are played that are episodes.

    Raises:
        InvalidRequestError: there is none, or its file does not hold rounds.
        NotFoundError: its file or recording is missing.
    """
    kind, colon, rest = name.partition(":")
    if is_episode_policy(name):
        return episode_source(name, episodes or EpisodeOptions())
    if name == "oracle":
        return PolicySource(name=name, fingerprint=name, make=OraclePolicy, check=check_solution)
    if name == "nop":
        return PolicySource(name=name, fingerprint=name, make=NopPolicy)
    if kind == "script" and rest:
        return _script(name, Path(rest))
    if kind == "replay" and rest:
        return _replay(name, Path(rest))
    return _attribute(name, kind, rest) if colon and rest else _plugin(name)
