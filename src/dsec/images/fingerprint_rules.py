"""What an image declares of its clean state: read from a file or a label, and held to what a check can do.

The file is TOML (docs/formats/fingerprints.md). Rules are the image's own words and come from whoever made it, so that
paths, numbers and bounds are looked at before any sandbox pays for them at each of its checks.
"""

from __future__ import annotations

import posixpath
from pathlib import Path

from dsec.base.errors import InvalidRequestError, PathNotFoundError
from dsec.base.toml_source import TomlSource
from dsec.base.units import MIB, format_size, parse_duration, parse_size
from dsec.model.image import FingerprintRules
from dsec.model.struct_reading import StructReader
from dsec.model.unit_names import UnitName, Units

MOST_PATHS = 1000
"""In each list: a check looks at every one of them."""
MOST_TIMEOUT_S = 600.0
MOST_OUTPUT_BYTES = 16 * MIB
_MOST_PATH_BYTES = 4095
_LISTS = ("files", "contents", "ignored")
_FORMAT = "docs/formats/fingerprints.md"
_UNITS: Units = (
    UnitName(end="_s", parse=parse_duration, how='write it as "10s" or "500ms"'),
    UnitName(end="_bytes", parse=parse_size, how='write it as "64 KiB"'),
)


def read_rules(path: Path) -> FingerprintRules:
    """Return the rules of a file.

    Raises:
        PathNotFoundError: there is none.
        InvalidRequestError: it is no TOML, has a key that nothing knows, or asks for what a check cannot do; names the
            line where it can.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise PathNotFoundError(f"{path} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read as text", detail=str(error)) from error
    source = TomlSource.parse(str(path), text)
    rules = StructReader(source=source, see=_FORMAT, units=_UNITS).read(FingerprintRules, source.values)
    return check_rules(rules, source=str(path))


def check_rules(rules: FingerprintRules, *, source: str) -> FingerprintRules:
    """Return rules that a check can follow.

    Raises:
        InvalidRequestError: it cannot; the brief begins with `source`.
    """
    for name in _LISTS:
        paths: tuple[str, ...] = getattr(rules, name)
        if len(paths) > MOST_PATHS:
            raise InvalidRequestError(f"{source}: {name} has {len(paths)} paths, at most {MOST_PATHS} are looked at")
        for path in paths:
            _check_path(path, f"{source}: {name}")
    if "/" in rules.ignored:
        raise InvalidRequestError(f"{source}: ignored names /, so that nothing would be compared")
    if not 0 < rules.timeout_s <= MOST_TIMEOUT_S:
        raise InvalidRequestError(f"{source}: the timeout is {rules.timeout_s:g} s; up to {MOST_TIMEOUT_S:g} s can be")
    if not 0 <= rules.maximum_bytes <= MOST_OUTPUT_BYTES:
        most = format_size(MOST_OUTPUT_BYTES)
        raise InvalidRequestError(f"{source}: maximum is {rules.maximum_bytes} bytes; up to {most} can be")
    if rules.command and (not rules.command[0] or any("\0" in word for word in rules.command)):
        raise InvalidRequestError(
            f"{source}: command is no argument vector", resolution='write ["program", "argument"]'
        )
    return rules


def _check_path(path: str, where: str) -> None:
    is_plain = path.startswith("/") and not path.startswith("//") and posixpath.normpath(path) == path
    if not is_plain or "\0" in path or len(path.encode(errors="surrogateescape")) > _MOST_PATH_BYTES:
        raise InvalidRequestError(
            f"{where} names {path[:80]!r}", resolution="write absolute paths without `.`, `..` or a slash at the end"
        )
