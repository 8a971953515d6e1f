"""A small in-memory service with faults on demand: enough of `SandboxService` for the worker."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dsec.base.errors import DsecError, PathNotFoundError, SandboxNotFoundError, UnsupportedFileError
from dsec.model.capability import CapabilityReport
from dsec.model.files import FileInfo, FileKind
from dsec.model.image import ImageConfig, ImageInfo
from dsec.model.node import NodeInfo
from dsec.model.process import CommandRequest, CommandResult, ExitStatus
from dsec.model.sandbox import SandboxFilter, SandboxInfo, SandboxSpec, SandboxState


@dataclass
class Node:
    """A file system entry."""

    kind: FileKind = FileKind.FILE
    content: bytes = b""
    uid: int = 0
    mode: int = 0o755


@dataclass
class Box:
    """One sandbox."""

    info: SandboxInfo
    files: dict[str, Node] = field(default_factory=dict)
    processes: int = 0

    def children(self, path: str) -> list[str]:
        return [name for name in self.files if name.startswith(path.rstrip("/") + "/")]


Handler = Callable[[Box, CommandRequest], Awaitable[CommandResult]]


def ran(exit_code: int = 0, stdout: bytes = b"", **status: Any) -> CommandResult:
    """Return a command's result."""
    return CommandResult(status=ExitStatus(exit_code=exit_code, duration_s=0.01, **status), stdout=stdout)


class FaultyService:
    """The service. `on_run` plays the commands; `faults` maps "operation number" to an error raised there once."""

    def __init__(self, on_run: Handler) -> None:
        self.on_run = on_run
        self.boxes: dict[str, Box] = {}
        self.calls: list[str] = []
        self.faults: dict[str, list[DsecError]] = {}
        self.created = 0
        self.image_workdir = "/home/user"
        self.reports: tuple[CapabilityReport, ...] = ()
        self.on_create: Callable[[Box], None] = lambda box: None

    def _enter(self, operation: str, sandbox_id: str = "") -> None:
        self.calls.append(operation)
        if self.faults.get(operation):
            raise self.faults[operation].pop(0)
        if sandbox_id and sandbox_id not in self.boxes:
            raise SandboxNotFoundError(f"there is no sandbox {sandbox_id}")

    async def create(self, spec: SandboxSpec, *, sandbox_id: str | None = None, timeout_s: float = 30.0) -> SandboxInfo:
        self._enter("create")
        self.created += 1
        name = sandbox_id or f"sbx-{self.created}"
        box = Box(SandboxInfo(sandbox_id=name, state=SandboxState.READY, spec=spec, created_at_s=0.0))
        box.files["/home"] = box.files["/home/user"] = Node(kind=FileKind.DIRECTORY)
        self.boxes[name] = box
        self.on_create(box)
        return box.info

    async def inspect(self, sandbox_id: str) -> SandboxInfo:
        self._enter("inspect", sandbox_id)
        return self.boxes[sandbox_id].info

    async def list(self, query: SandboxFilter = SandboxFilter()) -> Sequence[SandboxInfo]:
        wanted = query.metadata.items()
        return [box.info for box in self.boxes.values() if wanted <= box.info.spec.metadata.items()]

    async def end_processes(self, sandbox_id: str) -> None:
        self._enter("end_processes", sandbox_id)
        self.boxes[sandbox_id].processes = 0

    async def remove(self, sandbox_id: str) -> None:
        self._enter("remove")
        self.boxes.pop(sandbox_id, None)

    async def run(self, sandbox_id: str, request: CommandRequest) -> CommandResult:
        self._enter("run", sandbox_id)
        return await self.on_run(self.boxes[sandbox_id], request)

    async def read_file(self, sandbox_id: str, path: str, *, user: str | None = None) -> AsyncIterator[bytes]:
        self._enter("read_file", sandbox_id)
        node = self._node(sandbox_id, path)
        if node.kind is not FileKind.FILE:
            raise UnsupportedFileError(f"{path} is not a file")
        for start in range(0, len(node.content), 65_536):
            yield node.content[start : start + 65_536]

    async def write_file(
        self, sandbox_id: str, path: str, content: AsyncIterable[bytes] | bytes, **options: Any
    ) -> FileInfo:
        self._enter("write_file", sandbox_id)
        assert isinstance(content, bytes)
        self.boxes[sandbox_id].files[path] = Node(content=content)
        return await self.stat_file(sandbox_id, path)

    def _node(self, sandbox_id: str, path: str) -> Node:
        node = self.boxes[sandbox_id].files.get(path)
        if node is None:
            raise PathNotFoundError(f"{path} does not exist")
        return node

    async def stat_file(self, sandbox_id: str, path: str, *, user: str | None = None) -> FileInfo:
        node = self._node(sandbox_id, path)
        name = path.rpartition("/")[2]
        return FileInfo(
            name=name, path=path, kind=node.kind, size_bytes=len(node.content), mode=node.mode, uid=node.uid
        )

    async def list_files(
        self, sandbox_id: str, path: str, *, depth: int = 1, user: str | None = None
    ) -> Sequence[FileInfo]:
        self._enter("list_files", sandbox_id)
        if path != "/":
            self._node(sandbox_id, path)
        base = path.rstrip("/")
        names = [name for name in self.boxes[sandbox_id].children(path) if "/" not in name[len(base) + 1 :]]
        return [await self.stat_file(sandbox_id, name) for name in names]

    async def make_directory(self, sandbox_id: str, path: str, *, user: str | None = None) -> bool:
        return self.boxes[sandbox_id].files.setdefault(path, Node(kind=FileKind.DIRECTORY)) is None

    async def remove_file(
        self, sandbox_id: str, path: str, *, recursive: bool = False, user: str | None = None
    ) -> None:
        self._enter("remove_file", sandbox_id)
        self._node(sandbox_id, path)
        for name in [path, *self.boxes[sandbox_id].children(path)]:
            self.boxes[sandbox_id].files.pop(name)

    async def upload(
        self, sandbox_id: str, path: str, archive: AsyncIterable[bytes], *, user: str | None = None
    ) -> None:
        self._enter("upload", sandbox_id)
        data = b"".join([chunk async for chunk in archive])
        with tarfile.open(fileobj=io.BytesIO(data)) as members:
            for member in members:
                source = members.extractfile(member)
                kind = FileKind.DIRECTORY if member.isdir() else FileKind.FILE
                name = f"{path.rstrip('/')}/{member.name}"
                self.boxes[sandbox_id].files[name] = Node(
                    kind=kind, content=source.read() if source else b"", mode=member.mode
                )

    async def download(self, sandbox_id: str, path: str, *, user: str | None = None) -> AsyncIterator[bytes]:
        box = self.boxes[sandbox_id]
        is_directory = box.files[path].kind is FileKind.DIRECTORY
        base = path if is_directory else path.rpartition("/")[0]
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name in box.children(path) if is_directory else [path]:
                info = tarfile.TarInfo(name[len(base) + 1 :])
                info.size = len(box.files[name].content)
                info.type = tarfile.DIRTYPE if box.files[name].kind is FileKind.DIRECTORY else tarfile.REGTYPE
                archive.addfile(info, io.BytesIO(box.files[name].content))
        yield buffer.getvalue()

    async def images(self) -> Sequence[ImageInfo]:
        config = ImageConfig(workdir=self.image_workdir, env={"PATH": "/opt/bin:/bin"})
        return [ImageInfo(name="python:latest", image_id="sha256:0", layers=(), config=config)]

    async def node(self) -> NodeInfo:
        return NodeInfo(node="fault")

    async def capabilities(self) -> Sequence[CapabilityReport]:
        return self.reports

    def fail_state(self, sandbox_id: str, state: SandboxState, cause: str = "") -> None:
        box = self.boxes[sandbox_id]
        box.info = msgspec.structs.replace(box.info, state=state, cause=cause)


def reward(box: Box, content: bytes, name: str = "reward.txt", kind: FileKind = FileKind.FILE) -> None:
    """Write a reward as the tests would."""
    box.files[f"/logs/verifier/{name}"] = Node(kind=kind, content=content)
