"""The events of an episode's log (docs/formats/episode-log.md): what each line after the head of a segment says.

A committed round is one event that holds all of it. The events that lead to it (`decided`, `running`, `finished`) are
what recovery needs if the loop dies on the way, and mean nothing once the round is committed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from dsec.base.errors import StateCorruptedError
from dsec.episode.content import Content
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.identity import EpisodeIdentity, ModelIdentity
from dsec.episode.operations import ModelDecision, RoundRecord, TokenUsage
from dsec.episode.tools import ToolResult
from dsec.episode.totals import EnvironmentKind, EpisodeTotals
from dsec.model.value import Value


class EpisodeBegan(Value, frozen=True, tag="began", tag_field="event"):
    """The episode begins; always its first event."""

    identity: EpisodeIdentity


class RoundDecided(Value, frozen=True, tag="decided", tag_field="event", omit_defaults=True):
    """A decision was made and is about to be carried out; `workspace` is the version it finds."""

    number: int
    decision: ModelDecision
    workspace: str = ""


class OperationsRunning(Value, frozen=True, tag="running", tag_field="event", omit_defaults=True):
    """Operations are about to be executed, for the `attempt`-th time."""

    number: int
    operations: tuple[str, ...]
    attempt: int = 1


class OperationFinished(Value, frozen=True, tag="finished", tag_field="event", omit_defaults=True):
    """An operation has a result; `workspace` is the version after it, if that was saved."""

    number: int
    operation: str
    result: ToolResult
    attempt: int = 1
    workspace: str = ""


class Verdict(enum.Enum):
    """What somebody decided about an operation whose outcome was unknown."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"


class OperationSettled(Value, frozen=True, tag="settled", tag_field="event", omit_defaults=True):
    """Somebody said what became of an operation: with `result` if it happened, to be run again if it did not."""

    number: int
    operation: str
    verdict: Verdict
    result: ToolResult | None = None
    by: str = ""


class RoundAbandoned(Value, frozen=True, tag="abandoned", tag_field="event", omit_defaults=True):
    """A decision was given up; the model is asked again for the same round."""

    number: int
    reason: str = ""


class RoundCommitted(Value, frozen=True, tag="round", tag_field="event"):
    """A round was carried out, and counts."""

    record: RoundRecord


class StateSaved(Value, frozen=True, tag="state", tag_field="event", omit_defaults=True):
    """All that is needed to go on after round `number`, so that everything in front of it may be dropped.

    Attributes:
        number: the last round that it covers.
        identity: of the episode.
        workspace: version after that round.
        content: the policy's own.
        totals: what the episode used up to here.
        recent: the newest rounds, as many as who decides is shown.
    """

    number: int
    identity: EpisodeIdentity
    workspace: str = ""
    content: Content = Content()
    totals: EpisodeTotals = EpisodeTotals()
    recent: tuple[RoundRecord, ...] = ()


class EpisodeEnded(Value, frozen=True, tag="ended", tag_field="event", omit_defaults=True):
    """The episode is over; nothing follows. `at_s` is in wall-clock seconds since the epoch."""

    reason: str = ""
    error_code: str = ""
    at_s: float = 0.0


# -- beside the rounds: they may come at any time before the end, promise nothing, and change nothing of recovery ------


class LifeBegan(Value, frozen=True, tag="life", tag_field="event", omit_defaults=True):
    """A loop took the episode up.

    Attributes:
        worker: who drives it, for people.
        at_s: wall-clock seconds since the epoch.
        model: that decides from now on.
    """

    worker: str = ""
    at_s: float = 0.0
    model: ModelIdentity = ModelIdentity()


class EpisodeSteered(Value, frozen=True, tag="steered", tag_field="event", omit_defaults=True):
    """Somebody told the episode something that who decides sees with the next decision."""

    message: str
    by: str = ""


class ModelFailed(Value, frozen=True, tag="model_failed", tag_field="event", omit_defaults=True):
    """A model was asked, and it came to nothing; what it used is paid for all the same.

    Attributes:
        number: of the round that was to be decided.
        model: that was asked.
        usage: as far as anybody knows.
        error_code: of what went wrong.
        duration_s: how long it took.
        brief: what went wrong, in at most 300 characters; empty in logs of programs that did not write it.
    """

    number: int
    model: ModelIdentity = ModelIdentity()
    usage: TokenUsage = TokenUsage()
    error_code: str = ""
    duration_s: float = 0.0
    brief: str = ""


class ModelChanged(Value, frozen=True, tag="model", tag_field="event", omit_defaults=True):
    """Another model decides from now on.

    Attributes:
        model: it.
        reason: why, such as what the one before could not do.
        endpoint: where it is asked; None: again the one that the spec names.
    """

    model: ModelIdentity
    reason: str = ""
    endpoint: ModelEndpoint | None = None


class EpisodeHeld(Value, frozen=True, tag="held", tag_field="event", omit_defaults=True):
    """The episode stands still from now on: it, or its job, was paused. `at_s` is in wall-clock seconds."""

    at_s: float
    keep_memory: bool = False


class EpisodeReleased(Value, frozen=True, tag="released", tag_field="event", omit_defaults=True):
    """The episode goes on."""

    at_s: float


class EnvironmentUsed(Value, frozen=True, tag="environment", tag_field="event", omit_defaults=True):
    """The sandbox was kept in one way for a while.

    Attributes:
        sandbox_id: it.
        kind: the way.
        began_s, ended_s: wall-clock seconds since the epoch.
        memory_byte_s: integral of its resident memory over that time.
        cpu_s: of processors in that time.
        detail: for people.
    """

    sandbox_id: str
    kind: EnvironmentKind
    began_s: float
    ended_s: float
    memory_byte_s: float = 0.0
    cpu_s: float = 0.0
    detail: str = ""


LogEvent = (
    EpisodeBegan
    | RoundDecided
    | OperationsRunning
    | OperationFinished
    | OperationSettled
    | RoundAbandoned
    | RoundCommitted
    | StateSaved
    | EpisodeEnded
    | LifeBegan
    | EpisodeSteered
    | ModelFailed
    | ModelChanged
    | EnvironmentUsed
    | EpisodeHeld
    | EpisodeReleased
)

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(LogEvent)
_STATE_TAG = b'{"event":"state"'


def encode_log_event(event: LogEvent) -> bytes:
    """Return the event as the JSON object that its line holds."""
    return _ENCODER.encode(event)


def is_state(document: bytes) -> bool:
    """Say whether a line holds a `StateSaved`, without reading it: the tag is what we write first."""
    return document.startswith(_STATE_TAG)


def decode_log_events(documents: Iterable[bytes], *, name: str) -> list[LogEvent]:
    """Decode verified lines.

    Raises:
        StateCorruptedError: a line is not an event of this version.
    """
    decode = _DECODER.decode
    try:
        return [decode(document) for document in documents]
    except msgspec.DecodeError as error:
        raise StateCorruptedError(
            f"{name} holds a line that is no event of an episode",
            detail=str(error),
            resolution="read it with the version of dsec that wrote it",
        ) from error
