"""The recorded clean states of a node, one for each shape of sandboxes (docs/formats/fingerprints.md).

What is recorded can be seen again on any fresh sandbox of the shape, so that a lost record costs one more look and is
no error. It means nothing to another boot of the kernel, as no instance outlives one: those of other boots are
deleted.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import blake3
import msgspec
import structlog

from dsec.node.parts import NodeParts
from dsec.node.state import clean
from dsec.node.state.clean import CleanState
from dsec.stores.port import SandboxRecord

_log = structlog.get_logger(__name__)
_UNFINISHED = ".new"


class CleanStates:
    """What clean sandboxes look like, by shape. In files below the node's `fingerprints_dir`, or in memory."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._known: dict[str, CleanState] = {}

    def find(self, record: SandboxRecord) -> CleanState | None:
        """Return what a clean sandbox of this shape looks like; None when nobody recorded it."""
        shape = self._shape(record)
        if shape not in self._known and (read := self._read(shape)) is not None:
            self._known[shape] = read
        return self._known.get(shape)

    def keep(self, record: SandboxRecord, state: CleanState) -> None:
        """Record it. A file that cannot be written is no failure: memory has it."""
        shape = self._shape(record)
        self._known[shape] = state
        self._write(shape, state)

    def tidy(self) -> None:
        """Delete what was recorded in other boots of the kernel, and what a killed node had only begun to write."""
        directory = self._parts.fingerprints_dir
        if directory is None or not directory.is_dir():
            return
        for each in directory.iterdir():
            if each.name != self._parts.boot_id:
                shutil.rmtree(each, ignore_errors=True)
        for unfinished in (directory / self._parts.boot_id).glob(f"*{_UNFINISHED}"):
            unfinished.unlink(missing_ok=True)

    def _shape(self, record: SandboxRecord) -> str:
        """Name what the clean state depends on. What a sandbox has of its own, such as its id, is no part of it."""
        config, spec = record.image_config, record.spec
        command = [config, spec.env, spec.user, spec.workdir] if config.fingerprint.command else []
        parts = [
            clean.VERSION,
            self._parts.boot_id,
            self._parts.runtime.name,
            [[path, *_identity(path)] for path in record.layer_paths],
            config.fingerprint,
            spec.resources.open_files,
            command,
        ]
        return blake3.blake3(msgspec.json.encode(parts, order="sorted")).hexdigest()[:32]

    def _path(self, shape: str) -> Path | None:
        directory = self._parts.fingerprints_dir
        return None if directory is None else directory / self._parts.boot_id / f"{shape}.json"

    def _read(self, shape: str) -> CleanState | None:
        path = self._path(shape)
        if path is None:
            return None
        try:
            return msgspec.json.decode(path.read_bytes(), type=CleanState)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            # Written by a kernel that died, or damaged: the next creation records it anew.
            _log.warning("clean_state_unreadable", path=str(path), error=str(error))
            return None

    def _write(self, shape: str, state: CleanState) -> None:
        path = self._path(shape)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Two nodes never share a directory, and within one the last word is as good as the first.
            temporary = path.with_suffix(_UNFINISHED)
            temporary.write_bytes(msgspec.json.encode(state))
            temporary.replace(path)
        except OSError as error:
            # The record is in memory; after a restart the next creation of the shape writes it again.
            _log.warning("clean_state_not_kept", path=str(path), error=str(error))


def _identity(path: str) -> tuple[int, int]:
    """Tell a layer from another that came to stand in its place."""
    try:
        status = os.stat(path)
    except OSError:  # Layers in memory.
        return (0, 0)
    return (status.st_ino, status.st_mtime_ns)
