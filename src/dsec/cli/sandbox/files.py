"""`dsec sandbox files`."""

from __future__ import annotations

import stat
from datetime import UTC, datetime

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.output import print_json, print_table
from dsec.cli.parameters import id_parameters, json_option, one_id
from dsec.model.files import FileInfo, FileKind
from dsec.service.port import SandboxService

_TYPE_BITS = {FileKind.FILE: stat.S_IFREG, FileKind.DIRECTORY: stat.S_IFDIR, FileKind.SYMLINK: stat.S_IFLNK}


@click.command(name="files")
@id_parameters
@click.argument("path", default=".")
@click.option("--depth", type=click.IntRange(1, 64), default=1, help="Levels to go down.")
@click.option("-u", "--user", help="As this user.")
@json_option
@pass_options
def files(
    options: Options,
    id_option: str | None,
    id_argument: str | None,
    path: str,
    depth: int,
    user: str | None,
    as_json: bool,
) -> None:
    """List a directory of a sandbox, or describe a file. PATH defaults to the sandbox's directory."""
    if id_option and id_argument:  # With --id, the only thing named in place is the path.
        path, sandbox_id = id_argument, one_id(id_option, None)
    else:
        sandbox_id = one_id(id_option, id_argument)
    entries = options.run(lambda service: _entries(service, sandbox_id, path, depth, user))
    if as_json:
        print_json(entries)
    else:
        print_table(("mode", "uid", "gid", "size", "modified", "path"), (_row(entry) for entry in entries))


async def _entries(service: SandboxService, sandbox_id: str, path: str, depth: int, user: str | None) -> list[FileInfo]:
    info = await service.stat_file(sandbox_id, path, user=user)
    if info.kind in (FileKind.FILE, FileKind.OTHER):
        return [info]
    return list(await service.list_files(sandbox_id, path, depth=depth, user=user))


def _row(info: FileInfo) -> tuple[str, ...]:
    mode = stat.filemode(_TYPE_BITS.get(info.kind, 0) | info.mode)
    arrow = f" -> {info.target}" if info.target is not None else ""
    modified = f"{datetime.fromtimestamp(info.modified_at_s, UTC):%Y-%m-%d %H:%M}"
    return mode, str(info.uid), str(info.gid), str(info.size_bytes), modified, info.path + arrow
