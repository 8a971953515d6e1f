"""The programs of an in-memory instance, and a very small shell.

The shell knows words with quotes and variables, ``;``, ``&&``, ``||``, ``|``, ``&``, redirections of any descriptor,
and the builtins that are listed at the end. It has no loops, no conditions, no globs and no substitution of commands:
what it does not know is a syntax error with status 2, as a shell would have it.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dsec.base.errors import DsecError
from dsec.model.files import FileKind
from dsec.runtimes.memory_tree import Entry, Identity, Tree

_CHUNK_BYTES = 65_536


class Channel(Protocol):
    """What a descriptor is connected to."""

    async def read(self, limit: int) -> bytes: ...

    async def write(self, data: bytes) -> None: ...


class NullChannel:
    """`/dev/null`."""

    async def read(self, limit: int) -> bytes:
        return b""

    async def write(self, data: bytes) -> None:
        return None


class BufferChannel:
    """Bytes kept: one side of a pipeline, or a file's content being read."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data

    async def read(self, limit: int) -> bytes:
        chunk, self.data = self.data[:limit], self.data[limit:]
        return chunk

    async def write(self, data: bytes) -> None:
        self.data += data


class FileChannel:
    """An open file being written."""

    def __init__(self, tree: Tree, path: str) -> None:
        self._tree, self._path = tree, path

    async def read(self, limit: int) -> bytes:
        return b""

    async def write(self, data: bytes) -> None:
        entry = self._tree.entries[self._path]
        self._tree.put(self._path, replace(entry, content=entry.content + data))


class Machine(Protocol):
    """What the instance offers a program: time that stops while it is paused, and daemons."""

    tree: Tree

    async def gate(self) -> None: ...

    async def sleep(self, seconds: float) -> None: ...

    def daemon(self, work: Coroutine[Any, Any, int]) -> None: ...

    def ignore_signal(self, number: int) -> None: ...


@dataclass(slots=True)
class Job:
    """One running program: what `execve` would hand it."""

    machine: Machine
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    identity: Identity
    channels: dict[int, Channel]
    status: int = 0
    exited: bool = False
    aliases: dict[str, str] = field(default_factory=dict)

    async def out(self, text: str | bytes, descriptor: int = 1) -> None:
        channel = self.channels.get(descriptor)
        if channel is not None:
            await channel.write(text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text)

    async def complain(self, text: str) -> int:
        await self.out(f"{self.argv[0]}: {text}\n", 2)
        return 1

    def path(self, name: str) -> str:
        return posixpath.join(self.cwd, name)


Program = Callable[[Job], Awaitable[int]]


async def _true(job: Job) -> int:
    return 0


async def _false(job: Job) -> int:
    return 1


async def _echo(job: Job) -> int:
    words = list(job.argv[1:])
    end = "\n"
    if words[:1] == ["-n"]:
        words, end = words[1:], ""
    await job.out(" ".join(words) + end)
    return 0


async def _cat(job: Job) -> int:
    status = 0
    for name in job.argv[1:] or ("-",):
        if name == "-":
            source = job.channels.get(0, NullChannel())
            while data := await source.read(_CHUNK_BYTES):
                await job.out(data)
            continue
        try:
            _, entry = job.machine.tree.get(job.path(name))
            job.machine.tree.require(job.machine.tree.resolve(job.path(name)), job.identity, 0o4)
        except DsecError as error:
            status = await job.complain(f"{name}: {error.brief}")
            continue
        for start in range(0, len(entry.content), _CHUNK_BYTES):
            await job.out(entry.content[start : start + _CHUNK_BYTES])
    return status


async def _sleep(job: Job) -> int:
    try:
        seconds = sum(float(word) for word in job.argv[1:])
    except ValueError:
        return await job.complain("invalid time interval")
    await job.machine.sleep(seconds)
    return 0


async def _env(job: Job) -> int:
    for name, value in job.env.items():
        await job.out(f"{name}={value}\n")
    return 0


async def _printenv(job: Job) -> int:
    if len(job.argv) == 1:
        return await _env(job)
    missing = [name for name in job.argv[1:] if name not in job.env]
    for name in job.argv[1:]:
        if name in job.env:
            await job.out(job.env[name] + "\n")
    return 1 if missing else 0


async def _pwd(job: Job) -> int:
    await job.out(job.cwd + "\n")
    return 0


async def _id(job: Job) -> int:
    uid, gid = job.identity
    chosen = {"-u": f"{uid}\n", "-g": f"{gid}\n"}
    await job.out(chosen.get(job.argv[1] if len(job.argv) > 1 else "", f"uid={uid} gid={gid}\n"))
    return 0


async def _yes(job: Job) -> int:
    line = (" ".join(job.argv[1:]) or "y") + "\n"
    block = line * max(1, 4096 // len(line))
    while True:
        await job.machine.gate()
        await job.out(block)
        await asyncio.sleep(0)


async def _head(job: Job) -> int:
    """Only ``head -c N [/dev/zero]``: the way tests ask for N bytes."""
    if len(job.argv) < 3 or job.argv[1] != "-c":
        return await job.complain("only -c N is known")
    left = int(job.argv[2])
    source = None if job.argv[3:] == ("/dev/zero",) else job.channels.get(0, NullChannel())
    while left > 0:
        data = bytes(min(left, _CHUNK_BYTES)) if source is None else await source.read(min(left, _CHUNK_BYTES))
        if not data:
            break
        await job.out(data)
        left -= len(data)
    return 0


_ESCAPES = {"n": "\n", "t": "\t", "0": "\0", "\\": "\\"}


async def _printf(job: Job) -> int:
    if len(job.argv) < 2:
        return await job.complain("usage: printf format [arguments]")
    arguments = iter(job.argv[2:])
    text = re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[0]), job.argv[1])
    await job.out(re.sub(r"%[sd]", lambda _: next(arguments, ""), text))
    return 0


PROGRAMS: dict[str, Program] = {
    "cat": _cat,
    "echo": _echo,
    "env": _env,
    "false": _false,
    "head": _head,
    "id": _id,
    "printenv": _printenv,
    "printf": _printf,
    "pwd": _pwd,
    "sleep": _sleep,
    "true": _true,
    "yes": _yes,
}


# -- the shell ------------------------------------------------------------------------------------------------------


class _IncompleteError(Exception):
    """The text ends within a quote."""


class _SyntaxError(Exception):
    """The text is not of the tiny language."""


_TOKEN = re.compile(
    r"""(?P<blank>[ \t]+|\\\n|\#[^\n]*)
      | (?P<operator>&&|\|\||[;&|\n])
      | (?P<redirect>[0-9]?(?:>>|>&|<&|>|<))
      | (?P<single>'[^']*')
      | (?P<double>"(?:[^"\\]|\\.)*")
      | (?P<variable>\$(?:\{[A-Za-z_][A-Za-z0-9_]*\}|[A-Za-z_][A-Za-z0-9_]*|[?$]))
      | (?P<escape>\\.)
      | (?P<plain>[^\s;&|<>'"$\\()`]+)""",
    re.VERBOSE | re.DOTALL,
)
_RESERVED = frozenset({"if", "then", "else", "fi", "for", "while", "until", "do", "done", "case", "esac", "{", "}"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*)|([?$]))")

Part = tuple[str, str]
Token = tuple[str, list[Part]]


def _tokens(text: str) -> list[Token]:
    """Split into operators, redirections and words; a word is a list of quoted and plain parts."""
    tokens: list[Token] = []
    position, joined = 0, False
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise (
                _IncompleteError
                if text[position] in "'\"\\"
                else _SyntaxError(f"near {text[position : position + 20]!r}")
            )
        position = match.end()
        kind, value = str(match.lastgroup), match.group()
        if kind in ("blank", "operator", "redirect"):
            joined = False
            if kind != "blank":
                tokens.append((kind, [("plain", value)]))
        elif joined:
            tokens[-1][1].append((kind, value))
        else:
            tokens.append(("word", [(kind, value)]))
            joined = True
    return tokens


@dataclass(slots=True)
class _Command:
    words: list[list[Part]] = field(default_factory=list)
    redirects: list[tuple[str, list[Part]]] = field(default_factory=list)


@dataclass(slots=True)
class _Item:
    """A pipeline, what must hold of the status before it, and whether it runs in the background."""

    connector: str
    commands: list[_Command]
    background: bool = False


def _parse(text: str) -> list[_Item]:
    items: list[_Item] = []
    item, command, target = _Item(";", [_Command()]), _Command(), ""
    item.commands = [command]
    for kind, parts in _tokens(text):
        value = parts[0][1]
        if target:
            if kind != "word":
                raise _SyntaxError(f"near {value!r}")
            command.redirects.append((target, parts))
            target = ""
        elif kind == "redirect":
            target = value
        elif kind == "word":
            if not command.words and parts[0] in {("plain", word) for word in _RESERVED}:
                raise _SyntaxError(f"{value!r} is not known to this shell")
            command.words.append(parts)
        elif value == "|":
            command = _Command()
            item.commands.append(command)
        else:
            item.background = value == "&"
            items.append(item)
            command = _Command()
            item = _Item(";" if value in "&\n;" else value, [command])
    if target:
        raise _SyntaxError("near the end")
    items.append(item)
    return [each for each in items if each.commands[0].words or each.commands[0].redirects]


def _expand(job: Job, parts: list[Part]) -> str | None:
    """Return the word, or None when an unquoted expansion leaves nothing of it."""
    out, kept = [], False
    for kind, value in parts:
        if kind == "single":
            out.append(value[1:-1])
        elif kind == "double":
            text = re.sub(r"\\([\"\\$`])", r"\1", value[1:-1])
            out.append(_substitute(job, text))
        elif kind == "escape":
            out.append(value[1:])
        else:
            out.append(_substitute(job, value))
        kept = kept or kind in ("single", "double", "escape") or bool(out[-1])
    return "".join(out) if kept else None


def _substitute(job: Job, text: str) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2] or match[3]
        if name == "?":
            return str(job.status)
        return {"$": "1", "PWD": job.cwd}.get(name) or job.env.get(name, "")

    return _VARIABLE.sub(value, text)


async def run_script(job: Job, text: str) -> int:
    """Run shell text in `job` and return the status of its last command."""
    try:
        items = _parse(text)
    except (_IncompleteError, _SyntaxError) as error:
        await job.out(f"{job.argv[0]}: syntax error {error}\n", 2)
        job.status = 2
        return 2
    for item in items:
        if job.exited:
            break
        if (item.connector == "&&" and job.status) or (item.connector == "||" and not job.status):
            continue
        await job.machine.gate()
        if item.background:
            child = _child(job)
            job.machine.daemon(_pipeline(child, item.commands))
            job.status = 0
        else:
            job.status = await _pipeline(job, item.commands)
    return job.status


def _child(job: Job) -> Job:
    return replace(job, env=dict(job.env), channels=dict(job.channels))


async def _pipeline(job: Job, commands: list[_Command]) -> int:
    if len(commands) == 1:
        return await _command(job, commands[0])
    source: Channel = job.channels.get(0, NullChannel())
    status = 0
    for index, command in enumerate(commands):
        part = _child(job)
        part.channels[0] = source
        if index < len(commands) - 1:
            part.channels[1] = source = BufferChannel()
        status = await _command(part, command)
    return status


async def _command(job: Job, command: _Command) -> int:
    words = [word for word in (_expand(job, parts) for parts in command.words) if word is not None]
    try:
        channels = _redirected(job, command.redirects)
    except DsecError as error:
        await job.out(f"{job.argv[0]}: {error.brief}\n", 2)
        return 1
    if words == ["exec"]:
        job.channels = channels
        return 0
    assignments: dict[str, str] = {}
    while words and _ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        assignments[name] = value
    if not words:
        job.env.update(assignments)
        return 0
    saved = job.channels
    job.channels = channels
    try:
        return await _invoke(job, words, assignments)
    except DsecError as error:
        await job.out(f"{words[0]}: {error.brief}\n", 2)
        return 1
    finally:
        job.channels = saved


def _redirected(job: Job, redirects: list[tuple[str, list[Part]]]) -> dict[int, Channel]:
    channels = dict(job.channels)
    for operator, parts in redirects:
        number = int(operator[0]) if operator[0].isdigit() else 0 if "<" in operator else 1
        target = _expand(job, parts) or ""
        if operator.endswith("&"):
            if target == "-":
                channels.pop(number, None)
            else:
                channels[number] = channels.get(int(target), NullChannel())
        elif target == "/dev/null":
            channels[number] = NullChannel()
        else:
            channels[number] = _opened(job, target, operator)
    return channels


def _opened(job: Job, name: str, operator: str) -> Channel:
    tree = job.machine.tree
    if "<" in operator:
        resolved, entry = tree.get(job.path(name))
        tree.require(resolved, job.identity, 0o4)
        return BufferChannel(entry.content)
    resolved = tree.resolve(job.path(name))
    if resolved not in tree.entries:
        parent, _ = tree.get(posixpath.dirname(resolved))
        tree.require(parent, job.identity, 0o2)
        tree.put(resolved, Entry(FileKind.FILE, 0o644, *job.identity))
    else:
        tree.require(resolved, job.identity, 0o2)
        if not operator.endswith(">>"):
            tree.put(resolved, replace(tree.entries[resolved], content=b""))
    return FileChannel(tree, resolved)


async def _invoke(job: Job, words: list[str], assignments: dict[str, str]) -> int:
    while words[0] in ("command", "builtin", "exec") and len(words) > 1:
        words = words[1:]
    builtin = _BUILTINS.get(words[0])
    if builtin is not None:
        return await builtin(job, words)
    child = replace(_child(job), argv=tuple(words), env={**job.env, **assignments})
    return await start_program(child)


async def _cd(job: Job, words: list[str]) -> int:
    target = words[1] if len(words) > 1 else job.env.get("HOME", "/")
    resolved, entry = job.machine.tree.get(job.path(target))
    if entry.kind is not FileKind.DIRECTORY:
        await job.out(f"cd: {target}: not a directory\n", 2)
        return 1
    job.cwd = resolved
    return 0


async def _exit(job: Job, words: list[str]) -> int:
    job.exited = True
    return int(words[1]) & 0xFF if len(words) > 1 else job.status


async def _export(job: Job, words: list[str]) -> int:
    for word in words[1:]:
        name, separator, value = word.partition("=")
        if separator:
            job.env[name] = value
    return 0


async def _unset(job: Job, words: list[str]) -> int:
    for word in words[1:]:
        job.env.pop(word, None)
    return 0


async def _eval(job: Job, words: list[str]) -> int:
    return await run_script(job, " ".join(words[1:]))


async def _trap(job: Job, words: list[str]) -> int:
    """Only ``trap '' SIGNAL``, which ignores it."""
    numbers = {"TERM": 15, "INT": 2, "HUP": 1, "15": 15, "2": 2, "1": 1}
    for word in words[2:]:
        if not words[1]:
            job.machine.ignore_signal(numbers[word])
    return 0


async def _colon(job: Job, words: list[str]) -> int:
    return 0


_BUILTINS: dict[str, Callable[[Job, list[str]], Awaitable[int]]] = {
    ":": _colon,
    "cd": _cd,
    "eval": _eval,
    "exit": _exit,
    "export": _export,
    "set": _colon,
    "trap": _trap,
    "unset": _unset,
}


async def shell(job: Job) -> int:
    """``sh -c TEXT``, ``sh FILE``, or commands from the input."""
    options = [word for word in job.argv[1:] if word.startswith("-")]
    operands = [word for word in job.argv[1:] if not word.startswith("-")]
    if any(option.lstrip("-").endswith("c") and not option.startswith("--") for option in options):
        return await run_script(job, operands[0] if operands else "")
    if operands:
        _, entry = job.machine.tree.get(job.path(operands[0]))
        return await run_script(job, entry.content.decode("utf-8", "surrogateescape"))
    return await _interactive(job)


async def _interactive(job: Job) -> int:
    source = job.channels.get(0, NullChannel())
    text = ""
    while not job.exited and (data := await source.read(_CHUNK_BYTES)):
        text += data.decode("utf-8", "surrogateescape")
        while "\n" in text and not job.exited:
            taken = _complete(text)
            if taken is None:
                break
            script, text = text[:taken], text[taken:]
            await run_script(job, script)
    return job.status


def _complete(text: str) -> int | None:
    """Length of the shortest prefix of whole lines that parses; None when more input is needed."""
    end = text.find("\n")
    while end >= 0:
        try:
            _tokens(text[: end + 1])
        except _IncompleteError:
            end = text.find("\n", end + 1)
            continue
        except _SyntaxError:
            return end + 1
        return end + 1
    return None


def find_program(tree: Tree, name: str, cwd: str) -> Program | None:
    """Return what `name` runs: a program of the fake, or a script in the tree."""
    directory, base = posixpath.split(name)
    if directory in ("", "/bin", "/usr/bin"):
        known = shell if base in ("sh", "bash") else PROGRAMS.get(base)
        if known is not None:
            return known
    entry = tree.entries.get(tree.resolve(posixpath.join(cwd, name))) if directory else None
    if entry is None or entry.kind is not FileKind.FILE or not entry.mode & 0o111:
        return None

    async def script(job: Job) -> int:
        return await run_script(job, entry.content.decode("utf-8", "surrogateescape"))

    return script


async def start_program(job: Job) -> int:
    program = find_program(job.machine.tree, job.argv[0], job.cwd)
    if program is None:
        await job.out(f"sh: {job.argv[0]}: not found\n", 2)
        return 127
    try:
        await job.machine.gate()
        return await program(job)
    except DsecError as error:
        return await job.complain(error.brief)
