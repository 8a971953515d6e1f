"""Large transfers in and out of a sandbox, and the local copies they are compared with."""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsec.base.errors import PathNotFoundError
from dsec.base.units import MIB
from dsec.bench.processes import peak_resident_bytes, reset_peak, resident_bytes
from dsec.bench.sampling import Sample, timed
from dsec.service.local import LocalFile, save
from dsec.service.port import SandboxService

NAME = "large"
_TARGET = f"/home/user/{NAME}"
_CHUNK_BYTES = 1 * MIB
COPY_IN, COPY_OUT = "cp into the state volume", "cp out of the state volume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Files on the host to send.

    Attributes:
        file: random bytes.
        archive: a tar that holds `file`.
    """

    file: Path
    archive: Path

    @classmethod
    def make(cls, directory: Path, size_bytes: int) -> Material:
        """Write both below `directory`."""
        made = cls(file=directory / NAME, archive=directory / f"{NAME}.tar")
        with made.file.open("wb") as file:
            left = size_bytes
            while left > 0:
                left -= file.write(os.urandom(min(_CHUNK_BYTES, left)))
        with tarfile.open(made.archive, "w") as archive:
            archive.add(made.file, NAME)
        return made


@dataclass(slots=True)
class Memory:
    """The most by which the resident memory of processes grew during a transfer.

    Attributes:
        pids: the processes.
        growth_bytes: of each, in the order of `pids`.
    """

    pids: Sequence[int]
    growth_bytes: list[int] = field(default_factory=list)

    def begin(self) -> list[int]:
        """Start to watch; return what is resident now."""
        for pid in self.pids:
            reset_peak(pid)
        return [resident_bytes(pid) for pid in self.pids]

    def end(self, before: Sequence[int]) -> None:
        """Take in what has grown since."""
        growth = [peak_resident_bytes(pid) - size for pid, size in zip(self.pids, before, strict=True)]
        kept = self.growth_bytes or [0] * len(growth)
        self.growth_bytes = [max(pair) for pair in zip(kept, growth, strict=True)]


class Transfers:
    """The four large transfers of one service.

    Args:
        service: whose.
        sandbox_id: a sandbox with room for two of the files.
        material: what is sent.
        scratch: host directory that receives.
        pids: processes whose memory is watched.
    """

    def __init__(
        self, service: SandboxService, sandbox_id: str, material: Material, scratch: Path, pids: Sequence[int]
    ) -> None:
        self._service, self._sandbox_id = service, sandbox_id
        self._material, self._scratch = material, scratch
        self.memory = {name: Memory(pids) for name in self.samples()}

    def samples(self) -> dict[str, Sample]:
        """Return the transfers by name."""
        return {
            "upload file": self._upload_file,
            "download file": self._download_file,
            "upload archive": self._upload_archive,
            "download archive": self._download_archive,
        }

    async def _upload_file(self) -> float:
        await self._make_room()
        content = LocalFile(self._material.file)
        return await self._watched("upload file", self._service.write_file(self._sandbox_id, _TARGET, content))

    async def _upload_archive(self) -> float:
        await self._make_room()
        content = LocalFile(self._material.archive)
        return await self._watched("upload archive", self._service.upload(self._sandbox_id, "/home/user", content))

    async def _make_room(self) -> None:
        """Remove what the last upload brought, as the local copy's target is removed: outside of the clock."""
        try:
            await self._service.remove_file(self._sandbox_id, _TARGET)
        except PathNotFoundError:
            pass

    async def _download_file(self) -> float:
        return await self._receive("download file", self._service.read_file(self._sandbox_id, _TARGET))

    async def _download_archive(self) -> float:
        return await self._receive("download archive", self._service.download(self._sandbox_id, _TARGET))

    async def _receive(self, name: str, content: AsyncIterator[bytes]) -> float:
        target = self._scratch / "received"
        seconds = await self._watched(name, save(content, target))
        assert target.stat().st_size >= self._material.file.stat().st_size
        target.unlink()
        return seconds

    async def _watched(self, name: str, transfer: Awaitable[object]) -> float:
        os.sync()
        memory = self.memory[name]
        before = memory.begin()
        with timed() as watch:
            await transfer
        memory.end(before)
        return watch.seconds

    async def put_file(self) -> None:
        """Make sure that there is something to download."""
        await self._service.write_file(self._sandbox_id, _TARGET, LocalFile(self._material.file))


def copies(material: Material, volume: Path, scratch: Path) -> dict[str, Sample]:
    """Return the local copies, by cp(1), over the same file systems."""
    inside, outside = volume / "bench-copy", scratch / "copied"

    async def copy_in() -> float:
        return _copy(material.file, inside)

    async def copy_out() -> float:
        if not inside.exists():
            _copy(material.file, inside)
        seconds = _copy(inside, outside)
        outside.unlink()
        return seconds

    return {COPY_IN: copy_in, COPY_OUT: copy_out}


def _copy(source: Path, target: Path) -> float:
    target.unlink(missing_ok=True)
    os.sync()
    with timed() as watch:
        subprocess.run(["cp", "--reflink=never", str(source), str(target)], check=True)
    return watch.seconds
