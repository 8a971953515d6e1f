"""A process that reads files of an image at random, as hard as it can, and compares every byte with the source tree.

It is the independent judge: it knows nothing of layers, caches and sources, only two directories. Each read that was
wrong or failed is a JSON line on its standard output, with when it began and ended; at SIGTERM it says how many there
were.

Run as ``python -m dsec.testing.lazy_reader DIRECTORY SOURCE SEED``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

LONGEST_BYTES = 300_000


class _EndedError(BaseException):
    """SIGTERM came."""


def _read(path: Path, start: int, length: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # What the page cache has would be right whatever happens below.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        found = b""
        while len(found) < length:
            # What fails in the middle answers with what came before, and fails when it is asked for the rest.
            more = os.pread(descriptor, length - len(found), start + len(found))
            if not more:
                break
            found += more
        return found
    finally:
        os.close(descriptor)


def _judge(directory: Path, source: Path, draw: random.Random) -> dict[str, object] | None:
    """Read some range of some file; return what was wrong about it."""
    name = draw.choice(sorted(os.listdir(source)))
    with (source / name).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = draw.randrange(size)
        length = draw.randrange(1, LONGEST_BYTES)
        expected = os.pread(file.fileno(), length, start)
    began_s = time.monotonic()
    try:
        found = _read(directory / name, start, length)
        differing = sum(a != b for a, b in zip(found, expected, strict=False))
        wrong = "" if found == expected else f"{differing} bytes differ, {len(found)} of {len(expected)} came"
    except OSError as error:
        wrong = os.strerror(error.errno or 0)
        return {"what": "failed", "why": wrong, "name": name, "start": start, "began_s": began_s, "ended_s": _now()}
    if not wrong:
        return None
    return {"what": "wrong", "why": wrong, "name": name, "start": start, "began_s": began_s, "ended_s": _now()}


def _say(what: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _now() -> float:
    return time.monotonic()


def main(directory: str, source: str, seed: str) -> None:
    """Read until SIGTERM."""
    draw = random.Random(seed)
    reads = 0

    def end(*_: object) -> NoReturn:
        raise _EndedError

    signal.signal(signal.SIGTERM, end)
    try:
        while True:
            found = _judge(Path(directory), Path(source), draw)
            reads += 1
            if found is not None:
                _say(found)
                time.sleep(0.02)  # A failure answers at once, and would be told a hundred thousand times.
    except _EndedError:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _say({"what": "ended", "reads": reads})


if __name__ == "__main__":
    main(*sys.argv[1:])
