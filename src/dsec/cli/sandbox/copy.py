"""`dsec sandbox cp`: files and directories between this host and a sandbox.

What comes out of a sandbox was made by its guest. A directory is unpacked with the standard library's `data` filter,
and links that point out of the copied tree, devices and FIFOs are left out and named.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from dsec.base.errors import InvalidRequestError, PathNotFoundError
from dsec.base.ids import check_sandbox_id
from dsec.cli.context import Options, pass_options
from dsec.cli.output import note
from dsec.cli.sandbox import archive, terminal
from dsec.model.files import FileKind
from dsec.model.process import Stream
from dsec.service.local import LocalFile, local_permissions, save
from dsec.service.port import SandboxService

_REMOTE = re.compile(r"(sbx-[a-z0-9-]+):(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Place:
    """One end of a copy: a path of this host (``-``: the standard streams), or of a sandbox."""

    path: str
    sandbox_id: str | None = None

    @classmethod
    def parse(cls, text: str) -> Place:
        match = _REMOTE.fullmatch(text)
        if match is None:
            return cls(text)
        return cls(match.group(2) or ".", check_sandbox_id(match.group(1)))


@click.command(name="cp")
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option("-u", "--user", help="As this user of the sandbox.")
@pass_options
def copy(options: Options, source: str, target: str, user: str | None) -> None:
    """Copy a file or directory from SRC to DST.

    One of them is in a sandbox: sbx-12345:/path. A DST that is a directory receives SRC under its own name. `-` is the
    standard input or output: of a file its content, of a directory (output only) a tar archive.
    """
    start, end = Place.parse(source), Place.parse(target)
    if (start.sandbox_id is None) == (end.sandbox_id is None):
        raise InvalidRequestError(
            "exactly one of SRC and DST must be in a sandbox", resolution="write it as sbx-12345:/path"
        )
    if start.sandbox_id is not None:
        options.run(lambda service: _copy_out(service, start, end.path, user))
    else:
        options.run(lambda service: _copy_in(service, start.path, end, user))


# -- out of a sandbox ---------------------------------------------------------------------------------------------


async def _copy_out(service: SandboxService, source: Place, target: str, user: str | None) -> None:
    sandbox_id, path = source.sandbox_id or "", source.path
    info = await service.stat_file(sandbox_id, path, user=user)
    is_directory = info.kind is FileKind.DIRECTORY
    if target == "-":
        content = (
            service.download(sandbox_id, path, user=user)
            if is_directory
            else service.read_file(sandbox_id, path, user=user)
        )
        async for data in content:
            terminal.write_output(Stream.STDOUT, data)
        return
    name = posixpath.basename(posixpath.normpath(info.path))
    place = _local_place(target, name)
    if is_directory:
        await _unpack(service.download(sandbox_id, path, user=user), place)
    else:
        await save(service.read_file(sandbox_id, path, user=user), place, permissions=info.mode & 0o777)


def _local_place(target: str, name: str) -> Path:
    path = Path(target)
    if path.is_dir():
        return path / name if name not in ("", "/", ".", "..") else path
    if not path.parent.is_dir():
        raise PathNotFoundError(f"{path.parent} is not a directory of this host")
    return path


async def _unpack(content: AsyncIterator[bytes], place: Path) -> None:
    try:
        place.mkdir(exist_ok=True)
        left_out = await archive.unpack(content, place)
    except OSError as error:
        raise _local(error) from error
    _note_left_out(left_out)


def _note_left_out(names: Sequence[str]) -> None:
    for name in names:
        note(f"left out: {name!r}")


def _local(error: OSError) -> InvalidRequestError:
    return InvalidRequestError(f"{error.filename or 'a file'} of this host: {error.strerror}")


# -- into a sandbox -----------------------------------------------------------------------------------------------


async def _copy_in(service: SandboxService, source: str, target: Place, user: str | None) -> None:
    sandbox_id = target.sandbox_id or ""
    if source == "-":
        await service.write_file(sandbox_id, target.path, terminal.stdin_chunks(), user=user)
        return
    path = Path(source)
    if not path.exists():
        raise PathNotFoundError(f"{path} does not exist on this host")
    name = path.name or path.resolve().name
    place = await _remote_place(service, target, name, user)
    if path.is_dir():
        await service.make_directory(sandbox_id, place, user=user)
        left_out: list[str] = []
        async with archive.pack(path, left_out) as content:
            await service.upload(sandbox_id, place, content, user=user)
        _note_left_out(left_out)
    elif path.is_file():
        mode = local_permissions(path)
        await service.write_file(sandbox_id, place, LocalFile(path), permissions=mode, user=user)
    else:
        raise InvalidRequestError(f"{path} is neither a file nor a directory")


async def _remote_place(service: SandboxService, target: Place, name: str, user: str | None) -> str:
    try:
        info = await service.stat_file(target.sandbox_id or "", target.path, user=user)
    except PathNotFoundError:
        return posixpath.join(target.path, name) if target.path.endswith("/") else target.path
    return posixpath.join(target.path, name) if info.kind is FileKind.DIRECTORY else target.path
