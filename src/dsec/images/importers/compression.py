"""Open archives that may be compressed: the format is told by the first bytes, never by the name."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, Self, cast

from dsec.base.errors import InvalidRequestError, PathNotFoundError, UnsafeArchiveError
from dsec.base.units import MIB, format_size

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_ZSTD_WINDOW_LOG_MAX = 27
"""128 MiB: what `zstd` itself accepts without being told; a larger window is an attack on our memory."""

_XZ_MEMORY_BYTES = 160 * MIB
"""As much for xz, of which `xz -9` takes 65 MiB: a header may ask for 4 GiB, which some kilobytes of zeros fill."""
_PIECE_BYTES = 1 << 16

_ERRORS = (gzip.BadGzipFile, zlib.error, lzma.LZMAError, zstd.ZstdError, EOFError, OSError)


class LimitedStream:
    """Count, hash and bound what comes out of a decompressor."""

    def __init__(self, stream: BinaryIO, limit_bytes: int, *, digest: bool) -> None:
        self._stream = stream
        self._limit = limit_bytes
        self._count = 0
        self._hasher = hashlib.sha256() if digest else None

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes.

        Raises:
            UnsafeArchiveError: more comes out than the limit.
            InvalidRequestError: the compressed data is damaged.
        """
        try:
            data = self._stream.read(size)
        except _ERRORS as error:
            if "memory" in str(error).lower():  # Neither library has an error of its own for it.
                raise UnsafeArchiveError(
                    "the archive is compressed so that unpacking it takes more memory than is given to one",
                    detail=str(error),
                    resolution="compress it as xz -9, or zstd without --long, do",
                ) from error
            raise InvalidRequestError(
                "the archive's compressed data is damaged or cut off",
                detail=str(error),
                resolution="copy or make the archive again",
            ) from error
        self._count += len(data)
        if self._count > self._limit:
            raise UnsafeArchiveError(
                f"the archive unpacks to more than {format_size(self._limit)}",
                resolution="make a smaller archive; one this large is taken for a bomb",
            )
        if self._hasher is not None:
            self._hasher.update(data)
        return data

    def finish(self) -> str:
        """Read to the end and return ``sha256:...`` over everything that came out."""
        while self.read(MIB):
            pass
        assert self._hasher is not None
        return f"sha256:{self._hasher.hexdigest()}"


@contextmanager
def opened_archive(path: Path, limit_bytes: int, *, digest: bool = False) -> Iterator[LimitedStream]:
    """Open a file and undo its compression: gzip, zstd, xz, bzip2 or none.

    Args:
        limit_bytes: most that may come out.
        digest: hash what comes out, for `LimitedStream.finish`.
    """
    with open_regular(path) as file, _decompressor(file) as stream:
        yield LimitedStream(stream, limit_bytes, digest=digest)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading.

    Raises:
        PathNotFoundError, InvalidRequestError: it is missing; it is something else, or may not be read.
    """
    if path.exists() and not path.is_file():
        raise InvalidRequestError(f"{path} is not a regular file")
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise PathNotFoundError(f"{path} does not exist") from error
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read", detail=str(error)) from error


def _decompressor(file: BinaryIO) -> BinaryIO:
    magic = file.read(6)
    file.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        options = {int(zstd.DecompressionParameter.window_log_max): _ZSTD_WINDOW_LOG_MAX}
        return cast(BinaryIO, zstd.ZstdFile(file, options=options))
    if magic.startswith(b"\xfd7zXZ"):
        return cast(BinaryIO, _XzFile(file))
    if magic.startswith(b"BZh"):
        return cast(BinaryIO, bz2.BZ2File(file))
    return file


class _XzFile:
    """What `lzma.LZMAFile` is, with a bound on memory. Streams may follow one another, with zeros between them."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = _xz_decoder()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing: the file is closed by whoever opened it."""

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; empty at the end. Raises `lzma.LZMAError`, `EOFError`."""
        while True:
            ahead = b""
            if self._decoder.eof:
                ahead = self._decoder.unused_data.lstrip(b"\0")
                while not ahead:
                    if not (more := self._file.read(_PIECE_BYTES)):
                        return b""
                    ahead = more.lstrip(b"\0")
                self._decoder = _xz_decoder()
            elif self._decoder.needs_input and not (ahead := self._file.read(_PIECE_BYTES)):
                raise EOFError("the compressed data ends in the middle")
            if data := self._decoder.decompress(ahead, size):
                return data


def _xz_decoder() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)


def file_digest(path: Path) -> str:
    """Return ``sha256:...`` over a file."""
    with open_regular(path) as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
