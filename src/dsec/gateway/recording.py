"""Record what model services answer, so that a run can be repeated without them.

A recorder stands between an attempt and its backend and passes everything on as it comes. Each answer is one line of a
file, written when the answer has ended, by one `write`. See docs/formats/gateway-recording.md.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import structlog

from dsec.base.clock import Clock
from dsec.base.errors import StateLockedError
from dsec.base.units import MIB
from dsec.episode.frames import encode_frame
from dsec.gateway.config import Api, Service
from dsec.gateway.conversation import conversation_of, seed_of
from dsec.gateway.recording_record import (
    FORMAT_VERSION,
    KEPT_HEADERS,
    Opened,
    Recorded,
    fingerprint_of,
    read_body,
    written_pieces,
)
from dsec.gateway.upstream import Answer, Upstream

log = structlog.get_logger(__name__)
_FILE_BYTES = 64 * MIB
_ANSWER_BYTES = 128 * MIB
_PIECE_BYTES = 128
"""What a piece takes in memory beside its bytes."""
_NAME = "recording-{:06d}.jsonl"
_PATTERN = "recording-[0-9]*.jsonl"


def recording_files(directory: Path) -> list[Path]:
    """Return the files of a recording, the oldest first."""
    return sorted(directory.glob(_PATTERN))


class Recorder:
    """The open end of a recording.

    Args:
        directory: where its files are; one gateway at a time records there.
        clock: for the times.
        file_bytes: a file that has grown to this size is followed by the next.
        answer_bytes: an answer that takes more memory is not recorded, so that an endless one does not fill it.

    Raises:
        StateLockedError: another gateway records there.
    """

    def __init__(
        self, directory: Path, clock: Clock, *, file_bytes: int = _FILE_BYTES, answer_bytes: int = _ANSWER_BYTES
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.clock = clock
        self.answer_bytes = answer_bytes
        self._directory = directory
        self._file_bytes = file_bytes
        self._size = 0
        self._fd = -1
        self._lock = os.open(directory / "recording.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise StateLockedError(
                f"another gateway records in {directory}", resolution="stop it, or record elsewhere"
            ) from error

    def write(self, answer: Recorded) -> None:
        """Append an answer. What cannot be written is logged: a call does not fail for its recording."""
        try:
            if self._fd < 0 or self._size >= self._file_bytes:
                self._open_next()
            self._append(answer)
        except OSError as error:
            log.error("not_recorded", directory=str(self._directory), error=error.strerror)

    def close(self) -> None:
        """Carry everything to the disk and let go. Idempotent."""
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _open_next(self) -> None:
        files = recording_files(self._directory)
        number = int(files[-1].stem.removeprefix("recording-")) + 1 if files else 1
        path = self._directory / _NAME.format(number)
        fresh = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size = fresh, 0
        self._append(Opened(version=FORMAT_VERSION, wall_s=self.clock.wall_s()))

    def _append(self, record: Opened | Recorded) -> None:
        line = encode_frame(msgspec.json.encode(record))
        written = os.write(self._fd, line)
        if written < len(line):
            os.ftruncate(self._fd, self._size)
            raise OSError(28, "the disk is full")
        self._size += written


class RecordingAnswer:
    """An answer that is recorded while it is read.

    Args:
        answer: the answer.
        recorder: where it goes.
        begun: what is known of it so far.
        sent_s: when it was sent, in boot time.
        cleaned: takes the backend's key out of what it said.
    """

    __slots__ = (
        "_answer",
        "_begun",
        "_cleaned",
        "_ended",
        "_pieces",
        "_recorder",
        "_sent_s",
        "_size",
        "content_type",
        "headers",
        "status",
    )

    def __init__(
        self,
        answer: Answer,
        recorder: Recorder,
        begun: Recorded,
        sent_s: float,
        cleaned: Callable[[bytes], bytes],
    ) -> None:
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers
        self.content_type = answer.content_type
        self._answer = answer
        self._recorder = recorder
        self._begun = begun
        self._sent_s = sent_s
        self._cleaned = cleaned
        self._size = 0
        self._pieces: list[tuple[float, bytes]] = []
        self._ended = False

    async def read(self) -> bytes:
        data = await self._answer.read()
        if data:
            self._keep(data)
        else:
            self._ended = True
        return data

    def close(self, *, whole: bool) -> None:
        self._answer.close(whole=whole)
        pieces, encoding = written_pieces(self._without_key())
        # Clients go once the last event is there, and need not wait for the end of the connection behind it.
        done = bool(self._pieces) and self._pieces[-1][1].rstrip().endswith(b"data: [DONE]")
        is_whole = (whole or self._ended or done) and self._size <= self._recorder.answer_bytes
        ended = msgspec.structs.replace(
            self._begun, pieces=pieces, encoding=encoding, ended_s=self._passed_s(), whole=is_whole
        )
        self._recorder.write(ended)

    def _keep(self, data: bytes) -> None:
        """Keep a piece; of an answer that grows without end nothing, and it is written as one that broke off."""
        self._size += len(data) + _PIECE_BYTES
        if self._size <= self._recorder.answer_bytes:
            self._pieces.append((self._passed_s(), data))
        else:
            self._pieces.clear()

    def _without_key(self) -> list[tuple[float, bytes]]:
        said = b"".join(data for _, data in self._pieces)
        told = self._cleaned(said)
        # A key may lie across pieces, so that an answer that has one is written as one piece.
        return self._pieces if told == said else [(self._pieces[-1][0], told)]

    def _passed_s(self) -> float:
        return round(self._recorder.clock.boot_s() - self._sent_s, 6)


class RecordingUpstream:
    """A backend whose answers are recorded.

    Args:
        upstream: the backend.
        recorder: where they go.
    """

    def __init__(self, upstream: Upstream, recorder: Recorder) -> None:
        self.service: Service = upstream.service
        self._upstream = upstream
        self._recorder = recorder

    async def post(self, api: Api, body: bytes, passed: Mapping[str, str], deadline_s: float) -> RecordingAnswer:
        clock = self._recorder.clock
        sent_s, wall_s = clock.boot_s(), clock.wall_s()
        answer = await self._upstream.post(api, body, passed, deadline_s)
        head_s = round(clock.boot_s() - sent_s, 6)
        plain = read_body(body)
        begun = Recorded(
            fingerprint=fingerprint_of(api, body),
            api=api.value,
            backend=self.service.name,
            model=str(plain.get("model", "")),
            wall_s=wall_s,
            status=answer.status,
            content_type=answer.content_type,
            headers={name: answer.headers[name] for name in KEPT_HEADERS if name in answer.headers},
            head_s=head_s,
            ended_s=head_s,
            whole=False,
            conversation=conversation_of(api, plain),
            seed=seed_of(plain),
        )
        return RecordingAnswer(answer, self._recorder, begun, sent_s, self._upstream.cleaned)

    def cleaned(self, data: bytes) -> bytes:
        return self._upstream.cleaned(data)
