"""Traces: what of an image a command reads first, and in which order (docs/formats/layer-trace.md).

Theory. A trace holds runs of blocks of the layers' EROFS files, in the order in which they were read first, without
what the metadata answers. Blocks and not chunks: a chunk may be touched for 4 KiB of it, and whoever lays a layer out
anew has to know for which. The kernel reads ahead, so that there is a little more in it than was wanted.

Traces are kept by image and *command*: the program's name, as different arguments of one program read much the same.
The one without a command is of an image's first use, whatever that was.

A trace is a hint. It may come from others, is checked for what could harm (numbers, sizes), and a wrong one costs no
more than the budget of what is brought beforehand.
"""

from __future__ import annotations

import contextlib
import hashlib
import posixpath
import re
import shlex
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from dsec.base.errors import StateCorruptedError
from dsec.base.foreign_json import decode_foreign
from dsec.base.units import GIB, MIB, format_size
from dsec.images.durable import write_atomically
from dsec.images.lazy.erofs.metadata import Extent
from dsec.images.lazy.formats.manifest import BLOCK_BYTES, MAXIMUM_SIZE_BYTES
from dsec.images.lazy.formats.stored import CHUNK_BYTES
from dsec.images.lazy.serving.daemon_wire import Prefetch
from dsec.images.staging import remove_tree
from dsec.model.value import Value

VERSION = 1
MAXIMUM_DOCUMENT_BYTES = 4 * MIB
MAXIMUM_READS = 65_536
MAXIMUM_READ_BYTES = 64 * GIB
"""Of all reads together: whoever looks at a trace looks at each chunk that it names."""
MAXIMUM_TRACES = 16
"""Of one image; the one that was recorded longest ago goes first."""
FIRST_USE = ""
_REMEMBERED = 64
_BLOCKS_A_CHUNK = CHUNK_BYTES // BLOCK_BYTES
_MAXIMUM_LAYERS = 500
_MAXIMUM_ARGUMENTS = 32
_MAXIMUM_ARGUMENT_LENGTH = 256
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_SHELLS = frozenset(("sh", "bash", "dash", "ash", "zsh"))

Read = tuple[int, int, int, int]
"""Place of a layer in the trace, first block, blocks, and milliseconds since the sandbox was begun."""


class TracedLayer(Value, frozen=True):
    """A layer of a trace.

    Attributes:
        digest: the layer's.
        size_bytes: of its EROFS file, whose blocks are meant.
        manifest: name of the manifest of that file; empty: it was never cut into chunks.
    """

    digest: str
    size_bytes: int
    manifest: str = ""


class Trace(Value, frozen=True):
    """What a command reads first.

    Attributes:
        version: of the format.
        image_id: the image.
        command: the program's name; empty: the image's first use.
        argv: what was run, shortened.
        source: ``trace``: recorded for the purpose, with cold caches; ``use``: seen in ordinary use.
        runs: how many were laid over each other.
        recorded_at_s: wall clock.
        layers: those of the image, from the lowest up.
        reads: runs of blocks, in order.
    """

    version: int
    image_id: str
    command: str
    argv: tuple[str, ...]
    source: str
    runs: int
    recorded_at_s: float
    layers: tuple[TracedLayer, ...]
    reads: tuple[Read, ...]

    @property
    def read_bytes(self) -> int:
        """Bytes of all reads."""
        return sum(blocks for _, _, blocks, _ in self.reads) * BLOCK_BYTES

    def chunks(self) -> tuple[tuple[int, int], ...]:
        """Return place of the layer and number of each chunk, in the order of their first reads."""
        found: dict[tuple[int, int], None] = {}
        for layer, block, blocks, _ in self.reads:
            for position in range(block // _BLOCKS_A_CHUNK, (block + blocks - 1) // _BLOCKS_A_CHUNK + 1):
                found.setdefault((layer, position))
        return tuple(found)


def command_of(argv: Sequence[str]) -> str:
    """Return the name that a command's traces are kept under: that of its program, also behind `sh -c` and `env`.

    A script of several commands counts as its first one; one that cannot be read as its shell.
    """
    words = list(argv)
    while words and (_ASSIGNMENT.fullmatch(words[0]) or posixpath.basename(words[0]) in ("env", "exec")):
        words = words[1:]
    if not words:
        return FIRST_USE
    program = posixpath.basename(words[0])
    if program in _SHELLS and len(words) > 2 and re.fullmatch(r"-[a-z]*c", words[1]):
        return _first_of_script(words[2]) or program
    return program


def _first_of_script(script: str) -> str:
    lexer = shlex.shlex(script, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set(";&|()<>\n"):
                if words and words[0] not in ("cd", "set", "export", ":"):
                    break
                words = []
            else:
                words.append(word)
    except ValueError:
        return ""
    name = command_of(words) if words else ""
    return name if _PLAIN.fullmatch(name) else ""


class ReadLog:
    """Gathers what is read, each block once.

    Args:
        metadata: for each layer, the extents that are fetched first in any case.
    """

    def __init__(self, metadata: Sequence[Iterable[Extent]]) -> None:
        self._seen = [
            {block for extent in extents for block in _blocks(extent.start, extent.length)} for extents in metadata
        ]
        self._reads: list[Read] = []

    def add(self, layer: int, start: int, length: int, after_s: float) -> None:
        """Note a read of so many bytes of a layer's file. What does not fit into a trace any more is left out."""
        seen, after_ms = self._seen[layer], max(0, round(after_s * 1000))
        for block in _blocks(start, length):
            if block in seen:
                continue
            seen.add(block)
            last = self._reads[-1] if self._reads else None
            if last is not None and last[0] == layer and last[1] + last[2] == block:
                self._reads[-1] = (layer, last[1], last[2] + 1, last[3])
            elif len(self._reads) < MAXIMUM_READS:
                self._reads.append((layer, block, 1, after_ms))

    def reads(self) -> tuple[Read, ...]:
        """Return the runs of blocks, in order."""
        return tuple(self._reads)


def _blocks(start: int, length: int) -> range:
    return range(start // BLOCK_BYTES, -(-(start + length) // BLOCK_BYTES))


def merged(first: Trace, *others: Trace) -> Trace:
    """Return one trace of several of an image and command: what the first read, then what others read beside that."""
    log = ReadLog([() for _ in first.layers])
    alike = [each for each in others if each.layers == first.layers]
    for trace in (first, *alike):
        for layer, block, blocks, after_ms in trace.reads:
            log.add(layer, block * BLOCK_BYTES, blocks * BLOCK_BYTES, after_ms / 1000)
    runs = first.runs + sum(each.runs for each in alike)
    return msgspec.structs.replace(first, reads=log.reads(), runs=runs)


def shortened(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command as a trace keeps it."""
    return tuple(argument[:_MAXIMUM_ARGUMENT_LENGTH] for argument in argv[:_MAXIMUM_ARGUMENTS])


def encode(trace: Trace) -> bytes:
    """Return a trace's document."""
    return msgspec.json.encode(trace)


def decode(data: bytes, whence: str) -> Trace:
    """Read a trace.

    Args:
        data: its document.
        whence: where it comes from, for the error.

    Raises:
        StateCorruptedError: it is none, of another version, or contradicts itself.
    """
    if len(data) > MAXIMUM_DOCUMENT_BYTES:
        raise _damaged(whence, f"it is longer than {MAXIMUM_DOCUMENT_BYTES} bytes")
    try:
        trace = decode_foreign(data, Trace)
    except msgspec.MsgspecError as error:
        raise _damaged(whence, str(error)) from error
    if trace.version != VERSION:
        raise _damaged(whence, f"it is of version {trace.version}; this program knows {VERSION}")
    if len(trace.layers) > _MAXIMUM_LAYERS or len(trace.reads) > MAXIMUM_READS:
        raise _damaged(whence, f"{len(trace.layers)} layers and {len(trace.reads)} reads are too many")
    if any(not 0 < layer.size_bytes <= MAXIMUM_SIZE_BYTES for layer in trace.layers):
        raise _damaged(whence, "a layer has an impossible size")
    for layer, block, blocks, after_ms in trace.reads:
        known = 0 <= layer < len(trace.layers) and block >= 0 and blocks > 0 and after_ms >= 0
        if not known or (block + blocks) * BLOCK_BYTES > trace.layers[layer].size_bytes + BLOCK_BYTES - 1:
            raise _damaged(whence, f"{blocks} blocks from {block} of layer {layer} do not exist")
    if trace.read_bytes > MAXIMUM_READ_BYTES:
        raise _damaged(whence, f"it reads more than {format_size(MAXIMUM_READ_BYTES)}")
    return trace


def _damaged(whence: str, detail: str) -> StateCorruptedError:
    return StateCorruptedError(
        f"the trace from {whence} cannot be used", detail=detail, resolution="record it again: dsec image trace"
    )


class TraceShelf:
    """The traces of a host's images: `<images>/traces/<image>/<command>.json`. For several processes.

    What was read is remembered for as long as its file is the same, since every sandbox that begins asks.

    Args:
        images: directory of the image store.
    """

    def __init__(self, images: Path) -> None:
        self._root = images / "traces"
        self._read: OrderedDict[Path, tuple[tuple[int, int], Trace]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, trace: Trace) -> None:
        """Keep a trace in place of the one of the same image and command. Raises `OSError`."""
        directory = self._directory(trace.image_id)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(directory / file_of(trace.command), encode(trace))
        files = sorted(directory.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in files[: max(0, len(files) - MAXIMUM_TRACES)]:
            path.unlink(missing_ok=True)

    def of(self, image_id: str) -> tuple[Trace, ...]:
        """Return the traces of an image, the latest first. Those that cannot be read are passed over."""
        found = []
        for path in self._directory(image_id).glob("*.json"):
            with contextlib.suppress(StateCorruptedError, FileNotFoundError):
                found.append(self._decoded(path))
        return tuple(sorted(found, key=lambda trace: -trace.recorded_at_s))

    def get(self, image_id: str, command: str) -> Trace | None:
        """Return the trace of an image and a command; None where there is none that can be read."""
        path = self._directory(image_id) / file_of(command)
        with contextlib.suppress(StateCorruptedError, FileNotFoundError):
            return self._decoded(path)
        return None

    def first(self, image_id: str) -> Trace | None:
        """Return what to go by before anybody ran anything: the trace of the first use, or else the latest."""
        return self.get(image_id, FIRST_USE) or next(iter(self.of(image_id)), None)

    def prune(self, image_ids: Iterable[str]) -> None:
        """Remove the traces of all images but these."""
        kept = {image_id.removeprefix("sha256:") for image_id in image_ids}
        if self._root.is_dir():
            for directory in list(self._root.iterdir()):
                if directory.name not in kept:
                    remove_tree(directory)

    def _decoded(self, path: Path) -> Trace:
        status = path.stat()
        identity = (status.st_ino, status.st_mtime_ns)
        with self._lock:
            known = self._read.get(path)
            if known is not None and known[0] == identity:
                self._read.move_to_end(path)
                return known[1]
        trace = decode(path.read_bytes(), str(path))
        with self._lock:
            self._read[path] = (identity, trace)
            while len(self._read) > _REMEMBERED:
                self._read.popitem(last=False)
        return trace

    def _directory(self, image_id: str) -> Path:
        return self._root / image_id.removeprefix("sha256:")


def file_of(command: str) -> str:
    """Return the name of the file of a command's trace."""
    if not command:
        return "first.json"
    if _PLAIN.fullmatch(command):
        return f"run-{command}.json"
    return f"hash-{hashlib.sha256(command.encode(errors='surrogateescape')).hexdigest()[:32]}.json"


def in_common(trace: Trace, others: Iterable[Trace]) -> Trace:
    """Return what a trace and others of the same image have in common: those of its reads that lie in chunks of which
    every other one reads something too.
    """
    read = [{(each.layers[layer], position) for layer, position in each.chunks()} for each in others]

    def is_read(layer: int, block: int, blocks: int) -> bool:
        positions = range(block // _BLOCKS_A_CHUNK, (block + blocks - 1) // _BLOCKS_A_CHUNK + 1)
        return all((trace.layers[layer], position) in chunks for chunks in read for position in positions)

    reads = tuple(each for each in trace.reads if is_read(*each[:3]))
    return msgspec.structs.replace(trace, reads=reads)


def window(
    owner: str, steps: Sequence[Sequence[Trace]], manifests: Mapping[str, str], *, is_limited: bool = True
) -> Prefetch:
    """Return what to ask a layer daemon for, so that the chunks of these steps come before they are read.

    Args:
        owner: on whose behalf.
        steps: of the current step and of later ones, the traces, one an image.
        manifests: name of the manifest of each lazy layer, by digest; what traces say of other files does not count.
        is_limited: whether it keeps to the budget.
    """
    places: dict[str, int] = {}
    wanted: list[tuple[tuple[int, int, int], ...]] = []
    for step in steps:
        runs: list[tuple[int, int, int]] = []
        for traced, position in (
            (trace.layers[layer], position) for trace in step for layer, position in trace.chunks()
        ):
            if not traced.manifest or manifests.get(traced.digest) != traced.manifest:
                continue
            place = places.setdefault(traced.manifest, len(places))
            if runs and runs[-1][0] == place and sum(runs[-1][1:]) == position:
                runs[-1] = (place, runs[-1][1], runs[-1][2] + 1)
            else:
                runs.append((place, position, 1))
        wanted.append(tuple(runs))
    return Prefetch(owner=owner, layers=tuple(places), steps=tuple(wanted), is_limited=is_limited)
