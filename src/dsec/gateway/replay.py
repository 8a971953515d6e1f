"""A backend that answers from a recording, at the recorded or another speed, and never from anywhere else.

An index in memory says where each answer stands; the answers themselves stay in their files until they are needed.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dsec.base.clock import Clock
from dsec.base.errors import NotFoundError, RecordingMissError, StateCorruptedError
from dsec.episode.frames import decode_frame, encode_frame, scan_frames
from dsec.gateway.config import Api, GatewayConfig, Service
from dsec.gateway.conversation import conversation_of, seed_of
from dsec.gateway.conversation_file import CONVERSATION_PATTERN, read_conversation
from dsec.gateway.decoding import decode_record
from dsec.gateway.failing import AttemptFailedError
from dsec.gateway.fronts.anthropic_messages import AnthropicMessages
from dsec.gateway.fronts.complaint import Complaint
from dsec.gateway.fronts.front import Front
from dsec.gateway.fronts.openai_chat import OpenaiChat
from dsec.gateway.fronts.openai_responses import OpenaiResponses
from dsec.gateway.recording import recording_files
from dsec.gateway.recording_record import FORMAT_VERSION, Opened, Recorded, fingerprint_of, read_body
from dsec.routing.backend import BackendKind
from dsec.routing.retrying import Failure, FailureKind

_FRAME_BYTES = len(encode_frame(b"{}")) - len(b"{}")
_FRONTS: dict[Api, Front] = {front.api: front for front in (OpenaiChat(), OpenaiResponses(), AnthropicMessages())}
_decoder = msgspec.json.Decoder(Opened | Recorded)


class _Place(NamedTuple):
    file: Path
    offset: int
    length: int


class _Told(NamedTuple):
    """An answer at a place in a conversation."""

    model: str
    seed: int | None
    answer: _Place | Recorded


class Recordings:
    """What was recorded in a directory.

    Args:
        directory: where; or a file that holds one conversation.

    Attributes:
        models: names of the models that answered.

    Raises:
        NotFoundError: there is no recording.
        StateCorruptedError: it cannot be read.
        InvalidRequestError: a conversation is none.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._places: dict[str, list[_Place]] = {}
        self._told: dict[str, list[_Told]] = {}
        self._given: Counter[str] = Counter()
        self.models: set[str] = set()
        files = [] if directory.is_file() else recording_files(directory)
        conversations = [directory] if directory.is_file() else sorted(directory.glob(CONVERSATION_PATTERN))
        if not files and not conversations:
            raise NotFoundError(
                f"there is no recording in {directory}", resolution="make one: dsec gateway up --record DIR"
            )
        for file in files:
            self._index(file)
        for file in conversations:
            for record in read_conversation(file):
                self._keep(record, record)

    def __len__(self) -> int:
        return sum(map(len, self._places.values()))

    def at(self, api: Api, body: Any) -> Recorded | None:
        """Return the answer at the place of a request in its conversation: of the model that it names if that answered
        there, and of several recorded ones the one with its seed, else one that its seed determines. None: there is
        none. Nothing is counted: the same request always gets the same answer."""
        told = self._told.get(conversation_of(api, body)) or self._told.get(conversation_of(api, body, any_task=True))
        if not told:
            return None
        model, seed = body.get("model"), seed_of(body)
        told = [one for one in told if one.model == model] or told
        same = [one for one in told if one.seed == seed]
        answer = (same[0] if same else told[(seed or 0) % len(told)]).answer
        return self._read(answer) if isinstance(answer, _Place) else answer

    def next(self, fingerprint: str) -> Recorded | None:
        """Return the next answer to a request; after the last one the first again. None: there is none."""
        places = self._places.get(fingerprint)
        if not places:
            return None
        place = places[self._given[fingerprint] % len(places)]
        self._given[fingerprint] += 1
        return self._read(place)

    def _read(self, place: _Place) -> Recorded:
        with place.file.open("rb") as file:
            line = os.pread(file.fileno(), place.length, place.offset)
        document = decode_frame(line.removesuffix(b"\n"))
        if document is None:
            raise StateCorruptedError(f"{place.file} changed while it was replayed", resolution="start again")
        record = decode_record(document, _decoder, file=place.file, version=FORMAT_VERSION)
        assert isinstance(record, Recorded)
        return record

    def _index(self, file: Path) -> None:
        offset = 0
        for document in scan_frames(file.read_bytes(), name=str(file)).documents:
            length = len(document) + _FRAME_BYTES
            record = decode_record(document, _decoder, file=file, version=FORMAT_VERSION)
            if isinstance(record, Recorded) and record.is_replayed:
                place = _Place(file, offset, length)
                self._places.setdefault(record.fingerprint, []).append(place)
                self._keep(record, place)
            offset += length

    def _keep(self, record: Recorded, answer: _Place | Recorded) -> None:
        self.models.add(record.model)
        if record.conversation:
            self._told.setdefault(record.conversation, []).append(_Told(record.model, record.seed, answer))


class ReplayAnswer:
    """A recorded answer on its way.

    Args:
        recorded: the answer.
        speed: how many times faster than recorded; infinite: at once.
        sent_s: when the request came, in boot time.
        clock: for the time.
    """

    __slots__ = ("_at", "_clock", "_contents", "_ended_s", "_sent_s", "_speed", "content_type", "headers", "status")

    def __init__(self, recorded: Recorded, speed: float, sent_s: float, clock: Clock) -> None:
        self.status = recorded.status
        self.content_type = recorded.content_type
        self.headers: Mapping[str, str] = recorded.headers
        self._contents = recorded.contents()
        self._ended_s = recorded.ended_s
        self._speed = speed
        self._sent_s = sent_s
        self._clock = clock
        self._at = 0

    async def wait_until(self, when_s: float) -> None:
        """Wait until that time after sending, as recorded."""
        if math.isfinite(self._speed):
            await asyncio.sleep(max(0.0, self._sent_s + when_s / self._speed - self._clock.boot_s()))

    async def read(self) -> bytes:
        if self._at >= len(self._contents):
            await self.wait_until(self._ended_s)
            return b""
        when_s, data = self._contents[self._at]
        await self.wait_until(when_s)
        self._at += 1
        return data

    def close(self, *, whole: bool) -> None:
        self._contents = []


class ReplayUpstream:
    """A backend that repeats.

    Args:
        service: as configured.
        recordings: what it repeats; shared by all that repeat from one directory.
        clock: for the time.
    """

    def __init__(self, service: Service, recordings: Recordings, clock: Clock) -> None:
        self.service = service
        self._recordings = recordings
        self._clock = clock

    async def post(self, api: Api, body: bytes, passed: Mapping[str, str], deadline_s: float) -> ReplayAnswer:
        sent_s = self._clock.boot_s()
        fingerprint = fingerprint_of(api, body)
        recorded = self._recorded(api, body, fingerprint)
        if recorded is None:
            raise self._miss(api, fingerprint)
        answer = ReplayAnswer(recorded, self.service.replay_speed, sent_s, self._clock)
        await answer.wait_until(recorded.head_s)
        return answer

    def cleaned(self, data: bytes) -> bytes:
        return data

    def _recorded(self, api: Api, body: bytes, fingerprint: str) -> Recorded | None:
        # What follows conversations must not count, so that it does not look for the request itself either.
        if self.service.replay_conversations and (found := self._recordings.at(api, read_body(body))) is not None:
            return found
        return self._recordings.next(fingerprint)

    def _miss(self, api: Api, fingerprint: str) -> AttemptFailedError:
        error = RecordingMissError(
            f"no answer to this call was recorded in {self.service.url}",
            detail=f"fingerprint {fingerprint}",
            resolution="make the calls of the recorded run, with its models, limits and budgets; or record again",
        )
        failure = Failure(kind=FailureKind.REFUSED, brief=f"{error.code}: {fingerprint}", status=error.http_status)
        return AttemptFailedError(failure, _FRONTS[api].error(Complaint(error=error)))


def replayed(config: GatewayConfig, directory: Path, speed: float) -> GatewayConfig:
    """Return a configuration whose backends all repeat from a directory; none is left that could be called.

    At another speed than the recorded one, limits by the minute do not count.
    """
    unlimited = {} if speed == 1 else {"requests_per_minute": None, "tokens_per_minute": None}
    backends = tuple(
        msgspec.structs.replace(
            service,
            kind=BackendKind.REPLAY,
            url=str(directory),
            apis=service.spoken,
            thinking_control=service.control,
            key_env=None,
            key_file=None,
            replay_speed=speed,
            **unlimited,
        )
        for service in config.backends
    )
    door = msgspec.structs.replace(config.gateway, record_to=None)
    return msgspec.structs.replace(config, backends=backends, gateway=door)
