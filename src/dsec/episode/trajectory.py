"""Trajectories: the record of everything an attempt did.

One framed JSON line for each event (docs/formats/trajectory.md): a try begins, its rounds follow, it ends. An attempt
that had to be tried again has several tries in one file, and the last one counts. A try without an end was
interrupted: its committed rounds are true, and that is all that is known.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dsec.base.errors import StateCorruptedError
from dsec.episode.round import Round
from dsec.model.value import Value

TRAJECTORY_VERSION = 1


class TryBegan(Value, frozen=True, kw_only=True, tag="began", tag_field="event", omit_defaults=True):
    """A try begins in a fresh sandbox."""

    version: int = TRAJECTORY_VERSION
    task: str
    attempt: int
    number: int
    policy: str
    sandbox_id: str
    started_at_s: float


class RoundCommitted(Value, frozen=True, tag="round", tag_field="event"):
    """A round was carried out."""

    round: Round


class TryEnded(Value, frozen=True, tag="ended", tag_field="event", omit_defaults=True):
    """The policy stopped, was stopped, or the try broke off."""

    reason: str = ""
    timed_out: bool = False
    error_code: str = ""


TrajectoryEvent = TryBegan | RoundCommitted | TryEnded

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(TrajectoryEvent)


def encode_event(event: TrajectoryEvent) -> bytes:
    """Return the event as the JSON object that its frame holds."""
    return _ENCODER.encode(event)


def decode_events(documents: Iterable[bytes], *, name: str) -> tuple[TrajectoryEvent, ...]:
    """Decode verified lines.

    Raises:
        StateCorruptedError: a line is not an event of this version.
    """
    try:
        return tuple(_DECODER.decode(document) for document in documents)
    except msgspec.DecodeError as error:
        raise StateCorruptedError(
            f"{name} is not a trajectory of version {TRAJECTORY_VERSION}",
            detail=str(error),
            resolution="read it with the version of dsec that wrote it",
        ) from error


def last_try(events: Iterable[TrajectoryEvent]) -> tuple[Round, ...]:
    """Return the rounds of the last try that began."""
    rounds: list[Round] = []
    for event in events:
        match event:
            case TryBegan():
                rounds = []
            case RoundCommitted():
                rounds.append(event.round)
            case TryEnded():
                pass
    return tuple(rounds)
