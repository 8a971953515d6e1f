"""A policy read from a file of commands.

Three forms, told apart by the file's name:

- anything else: each line is a shell command and a round of its own; empty lines and lines that begin with ``#`` are
  left out;
- ``.jsonl``: each line is a round: ``{"calls": [{"tool": "run", "script": "make"}], "message": "..."}``;
- ``.toml``: the same rounds as ``[[rounds]]`` tables.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from dsec.base.errors import InvalidRequestError, NotFoundError
from dsec.episode.round import Decision, Done, History
from dsec.episode.tools import Run
from dsec.model.value import Value


class _Script(Value, frozen=True):
    rounds: tuple[Decision, ...]


def _lines(text: str) -> tuple[Decision, ...]:
    commands = (line.strip() for line in text.splitlines())
    return tuple(Decision(calls=(Run(script=line),)) for line in commands if line and not line.startswith("#"))


def _json_lines(text: str, path: Path) -> tuple[Decision, ...]:
    rounds = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                rounds.append(msgspec.json.decode(line, type=Decision))
            except (msgspec.DecodeError, InvalidRequestError) as error:
                raise InvalidRequestError(f"{path}:{number}: not a round: {error}") from error
    return tuple(rounds)


def _toml(text: str, path: Path) -> tuple[Decision, ...]:
    try:
        return msgspec.convert(tomllib.loads(text), _Script).rounds
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, InvalidRequestError) as error:
        raise InvalidRequestError(f"{path}: not a list of rounds: {error}") from error


def read_script(path: Path) -> tuple[Decision, ...]:
    """Return the rounds of a script file.

    Raises:
        NotFoundError: it cannot be read.
        InvalidRequestError: it does not hold rounds; the brief says where.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotFoundError(f"the script {path} cannot be read", detail=str(error)) from error
    if path.suffix == ".jsonl":
        return _json_lines(text, path)
    return _toml(text, path) if path.suffix == ".toml" else _lines(text)


class RecordedPolicy:
    """Ask for fixed rounds, one after another."""

    def __init__(self, rounds: tuple[Decision, ...], *, reason: str) -> None:
        self._rounds = rounds
        self._reason = reason

    async def next_round(self, history: History) -> Decision | Done:
        index = len(history.rounds)
        return self._rounds[index] if index < len(self._rounds) else Done(reason=self._reason)
