"""What a worker has seen of models and preparations in all its episodes, so that a new one does not begin blind.

How long a model thinks, and how long it writes a call, are habits of the model and its service; how long a sandbox
takes to be made ready is one of its preparations and image. An episode begins with what the worker's others saw, and
follows its own measurements from then on. Nothing of it is kept on disk: it decides only when something is begun, and
is learned anew within a round.
"""

from __future__ import annotations

from collections import OrderedDict

from msgspec.structs import replace

from dsec.episode.environment_times import EnvironmentTimes
from dsec.episode.spec import AgentPolicy, EpisodeSpec

_KEPT = 256
"""Models and kinds of sandboxes that are remembered; the ones not met for longest are forgotten."""


class EnvironmentHabits:
    """The memory of one worker."""

    def __init__(self) -> None:
        self._models: OrderedDict[str, EnvironmentTimes] = OrderedDict()
        self._sandboxes: OrderedDict[str, EnvironmentTimes] = OrderedDict()

    def expected(self, spec: EpisodeSpec) -> EnvironmentTimes:
        """Return what an episode may begin with: windows to look at, and expectations that its own values replace."""
        model = self._models.get(_model(spec), EnvironmentTimes())
        sandbox = self._sandboxes.get(_sandbox(spec), EnvironmentTimes())
        return EnvironmentTimes(
            thinking_window_s=model.thinking_window_s,
            writing_window_s=model.writing_window_s,
            prepare_s=replace(sandbox.prepare_s, count=0),
            prepare_cpu_s=replace(sandbox.prepare_cpu_s, count=0),
            save_s=replace(sandbox.save_s, count=0),
            pause_s_per_gib=replace(sandbox.pause_s_per_gib, count=0),
            resume_s=replace(sandbox.resume_s, count=0),
        )

    def learn(self, spec: EpisodeSpec, times: EnvironmentTimes) -> None:
        """Take in what an episode has seen so far."""
        _keep(self._models, _model(spec), times)
        _keep(self._sandboxes, _sandbox(spec), times)


def _keep(kept: OrderedDict[str, EnvironmentTimes], key: str, times: EnvironmentTimes) -> None:
    kept[key] = times
    kept.move_to_end(key)
    if len(kept) > _KEPT:
        kept.popitem(last=False)


def _model(spec: EpisodeSpec) -> str:
    if isinstance(spec.policy, AgentPolicy):
        return f"{spec.policy.model.url} {spec.policy.model.name}"
    return f"{type(spec.policy).__name__} {spec.task}"


def _sandbox(spec: EpisodeSpec) -> str:
    environment = spec.environment
    return f"{environment.sandbox.image} {environment.mode.value} {sorted(environment.preparations.items())}"
