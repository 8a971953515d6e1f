"""What travels of episodes, beside the values of `dsec.episode.spec` themselves."""

from __future__ import annotations

from dsec.base.units import MIB
from dsec.episode.log_events import LogEvent, Verdict
from dsec.episode.spec import EpisodeSpec, EpisodeState, ModelEndpoint
from dsec.episode.tools import ToolResult
from dsec.model.process import ErrorEvent
from dsec.model.value import Value

MAXIMUM_EVENT_BYTES = 80 * MIB
"""Longest record of a stream of saved events: a log takes events of 64 MiB, and what surrounds one is little."""

HEARTBEAT_S = 5.0
"""A stream of events in which nothing happens says so this often. Whoever hears nothing for several of these talks to
a server that is gone, however open the connection looks."""


class StartEpisodeRequest(Value, frozen=True, omit_defaults=True):
    """Begin an episode. `episode_id` is the idempotency key; without one, asking again begins another."""

    spec: EpisodeSpec
    episode_id: str | None = None


class SteerRequest(Value, frozen=True, omit_defaults=True):
    """Tell an episode something; `by` says who."""

    message: str
    by: str = ""


class ResumeEpisodeRequest(Value, frozen=True, omit_defaults=True):
    """Let an episode go on; `model` decides from now on, where one is given."""

    model: ModelEndpoint | None = None


class CancelRequest(Value, frozen=True, omit_defaults=True):
    """End an episode, for a reason."""

    reason: str = ""


class SettleRequest(Value, frozen=True, omit_defaults=True):
    """Say what became of an operation: with `result`, if it happened and that is known."""

    verdict: Verdict
    result: ToolResult | None = None
    by: str = ""


class EpisodeEventsQuery(Value, frozen=True):
    """Saved events from a sequence on; with `follow`, those to come as well."""

    from_sequence: int = 1
    follow: bool = True


class EpisodeListQuery(Value, frozen=True):
    """`state` may be repeated; further parameters are ``metadata.KEY=VALUE``."""

    job: str = ""
    task: str = ""
    state: tuple[EpisodeState, ...] = ()


class LoggedEvent(Value, frozen=True, tag="logged"):
    """A saved event of an episode's log."""

    sequence: int
    event: LogEvent


class AliveEvent(Value, frozen=True, tag="alive"):
    """Nothing happened, and the server is there."""


EpisodeStreamEvent = LoggedEvent | AliveEvent | ErrorEvent
