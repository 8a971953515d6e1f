"""Books: framed lines about episodes that are only appended to, and of which the last one of an episode counts.

A book is read once when it is opened. Who only looks reads its file (`read_book`), which may be written meanwhile.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

import msgspec

from dsec.base.errors import StateCorruptedError
from dsec.episode.frames import scan_frames
from dsec.model.value import Value
from dsec.stores.episode_log_disk import HostDisk
from dsec.worker.framed_log import FramedLog, sync_directory

LineT = TypeVar("LineT", bound=Value)
_ENCODER = msgspec.json.Encoder()


class Book(Generic[LineT]):
    """A book that is open for more; one process at a time writes it. A context manager, or call `close`.

    Args:
        path: of its file, which is begun if it is not there; a torn last line, which nobody was told of, is cut off.
        line: type of its lines.
        resolution: what to do about a line that is none.

    Raises:
        StateCorruptedError: it is damaged elsewhere; nothing was changed.
    """

    def __init__(self, path: Path, line: type[LineT], *, resolution: str) -> None:
        self._log = FramedLog(path)
        try:
            sync_directory(path.parent)
            self._read = _decoded(self._log.documents, line, name=str(path), resolution=resolution)
        except BaseException:
            self._log.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._log.close()

    async def _append(self, line: LineT) -> None:
        """Add a line; it is on the disk when this returns.

        Raises:
            HostDiskFullError, PlatformError: it could not be saved, and does not count.
        """
        await self._log.append(_ENCODER.encode(line))


def read_book(path: Path, line: type[LineT], *, resolution: str) -> list[LineT]:
    """Return the lines of a book that may be written meanwhile; none where there is no file.

    Raises:
        StateCorruptedError: what is there does not verify.
    """
    try:
        data = HostDisk().read(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StateCorruptedError(f"{path} cannot be read", detail=str(error)) from error
    return _decoded(scan_frames(data, name=str(path)).documents, line, name=str(path), resolution=resolution)


def _decoded(documents: tuple[bytes, ...], line: type[LineT], *, name: str, resolution: str) -> list[LineT]:
    decode = msgspec.json.Decoder(line).decode
    try:
        return [decode(document) for document in documents]
    except msgspec.DecodeError as error:
        raise StateCorruptedError(
            f"{name} holds a line that is no {line.__name__}", detail=str(error), resolution=resolution
        ) from error
