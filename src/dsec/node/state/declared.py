"""What an image's rules declare: metadata of some paths, content of fewer.

Paths are the image's words, and what they lead to may be a hostile guest's: they are opened through the port of files,
which resolves them inside the root (`openat2` with `RESOLVE_IN_ROOT`), opens nothing but files and directories that
hold data, and waits for nothing. Content is hashed up to a bound.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsec.base.errors import DsecError
from dsec.base.units import MIB
from dsec.model.files import FileInfo, FileKind
from dsec.model.image import FingerprintRules
from dsec.runtimes.port import FileDigest, Files

MOST_CONTENT_BYTES = 64 * MIB
"""Of one path; of a longer file the beginning and the length count."""


async def declared_facts(files: Files, rules: FingerprintRules) -> list[str]:
    """Return one line for each path: what it is, or that it is missing."""
    infos = await files.stat_all(rules.files) if rules.files else ()
    digests = await files.digest_all(rules.contents, limit_bytes=MOST_CONTENT_BYTES) if rules.contents else ()
    return [*_metadata(rules.files, infos), *_contents(rules.contents, digests)]


def _metadata(paths: tuple[str, ...], infos: tuple[FileInfo | DsecError, ...]) -> Iterator[str]:
    for path, info in zip(paths, infos, strict=True):
        yield f"{path} {info.code}" if isinstance(info, DsecError) else _described(path, info)


def _described(path: str, info: FileInfo) -> str:
    target = f" to {info.target}" if info.target is not None else ""
    size = "" if info.kind is FileKind.DIRECTORY else f" size {info.size_bytes}"
    changed = f"{info.modified_at_s:.6f}"
    return f"{path} {info.kind.value}{target} mode {info.mode:o} owner {info.uid}:{info.gid}{size} changed {changed}"


def _contents(paths: tuple[str, ...], digests: tuple[FileDigest | DsecError, ...]) -> Iterator[str]:
    for path, digest in zip(paths, digests, strict=True):
        if isinstance(digest, DsecError):
            yield f"{path} content {digest.code}"
        else:
            yield f"{path} content of {digest.size_bytes} bytes blake3:{digest.blake3[:32]}"
