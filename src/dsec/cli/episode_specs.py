"""Read the specs of episodes from a file: JSON, TOML, or YAML where its library is there."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.episode.spec import EpisodeSpec

_LIST = "episodes"


def read_specs(file: Path) -> list[EpisodeSpec]:
    """Return the specs that a file holds: one, a list, or a list under ``episodes``.

    Raises:
        InvalidRequestError: it cannot be read, or holds something else; says what, and where.
    """
    found = _parsed(file)
    if isinstance(found, dict) and set(found) == {_LIST}:
        found = found[_LIST]
    documents = found if isinstance(found, list) else [found]
    if not documents:
        raise InvalidRequestError(f"{file} holds no episode")
    if len(documents) == 1:
        return [_spec(file, documents[0], "")]
    return [_spec(file, document, f"{_LIST}[{number}]: ") for number, document in enumerate(documents)]


def _spec(file: Path, document: Any, where: str) -> EpisodeSpec:
    try:
        return msgspec.convert(document, EpisodeSpec)
    except (msgspec.ValidationError, InvalidRequestError) as error:
        raise InvalidRequestError(
            f"{file}: {where}{error}", resolution="docs/episodes.md lists the fields of a spec, with an example"
        ) from error


def _parsed(file: Path) -> Any:
    if str(file) == "-":
        return _json(file, sys.stdin.read())
    try:
        text = file.read_text(encoding="utf8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{file} cannot be read", detail=str(error)) from error
    match file.suffix.lower():
        case ".toml":
            return _toml(file, text)
        case ".yaml" | ".yml":
            return _yaml(file, text)
        case _:
            return _json(file, text)


def _json(file: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidRequestError(
            f"{file} is not JSON: {error}", resolution="TOML and YAML are known by the file's name (.toml, .yaml)"
        ) from error


def _toml(file: Path, text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequestError(f"{file} is not TOML: {error}") from error


def _yaml(file: Path, text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise InvalidRequestError(
            f"{file} is YAML, and the library for it is not installed",
            resolution="pip install pyyaml, or write the same as JSON or TOML",
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidRequestError(f"{file} is not YAML", detail=str(error)) from error
