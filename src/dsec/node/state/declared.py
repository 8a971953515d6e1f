"""What an image's rules declare: metadata of some paths, content of fewer.

Paths are the image's words, and what they lead to may be a hostile guest's: they are opened through the port of files,
which resolves them inside the root (`openat2` with `RESOLVE_IN_ROOT`), opens nothing but files and directories that
hold data, and waits for nothing. Content is hashed up to a bound.
"""

from __future__ import annotations

import blake3

from dsec.base.errors import DsecError
from dsec.base.units import MIB
from dsec.model.files import FileInfo, FileKind
from dsec.model.image import FingerprintRules
from dsec.runtimes.port import Files

MOST_CONTENT_BYTES = 64 * MIB
"""Of one path; of a longer file the beginning and the length count."""
_CHUNK_BYTES = 1 << 20


async def declared_facts(files: Files, rules: FingerprintRules) -> list[str]:
    """Return one line for each path: what it is, or that it is missing."""
    facts = [await _metadata(files, path) for path in rules.files]
    facts += [await _content(files, path) for path in rules.contents]
    return facts


async def _metadata(files: Files, path: str) -> str:
    try:
        return _described(path, await files.stat(path))
    except DsecError as error:
        return f"{path} {error.code}"


def _described(path: str, info: FileInfo) -> str:
    target = f" to {info.target}" if info.target is not None else ""
    size = "" if info.kind is FileKind.DIRECTORY else f" size {info.size_bytes}"
    changed = f"{info.modified_at_s:.6f}"
    return f"{path} {info.kind.value}{target} mode {info.mode:o} owner {info.uid}:{info.gid}{size} changed {changed}"


async def _content(files: Files, path: str) -> str:
    try:
        reader = await files.open_read(path)
    except DsecError as error:
        return f"{path} content {error.code}"
    digest, left = blake3.blake3(), MOST_CONTENT_BYTES
    try:
        while left and (data := await reader.read(min(left, _CHUNK_BYTES))):
            digest.update(data)
            left -= len(data)
    except DsecError as error:
        return f"{path} content {error.code}"
    finally:
        await reader.close()
    return f"{path} content of {reader.size_bytes} bytes blake3:{digest.hexdigest()[:32]}"
