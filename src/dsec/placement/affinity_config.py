"""Read the affinity block of a configuration, in TOML or in YAML.

The block is the one of the training report, as it stands::

    affinity:
      mode: soft
      group_by: task_id
      max_load_threshold: 0.85
      spillover_enabled: true
      spillover_ratio: 0.2

or in one line, ``affinity: {mode: soft, group_by: task_id, ...}``, or the same in TOML under ``[affinity]``. Of YAML
only what this block needs is read: one mapping of plain scalars under one key, indented or in braces, with comments.
Anything else (lists, anchors, quotes across lines, a second document) is refused by its line and not guessed at, so
that no YAML library is needed and ``yes`` is not taken for true.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dsec.base.errors import InvalidRequestError
from dsec.base.toml_source import KeyPath, TomlSource
from dsec.model.struct_reading import StructReader
from dsec.placement.affinity import AffinityMode, AffinityPolicy

_KEY = "affinity"
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*:\s*(\S.*)")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_LIMIT_CHARS = 64_000


def parse_affinity(text: str, *, source: str = "the affinity block") -> AffinityPolicy:
    """Return the policy that a text describes.

    Args:
        text: TOML with a table ``affinity``, or YAML with a key ``affinity``.
        source: what to call the text in errors, such as its file's name.

    Raises:
        InvalidRequestError: names the field or the line that is wrong, and what would be right.
    """
    if len(text) > _LIMIT_CHARS:
        raise _error(source, f"the text has {len(text):,} characters", f"keep it below {_LIMIT_CHARS:,}")
    lines = [line for line in text.splitlines() if line.split("#", 1)[0].strip()]
    if not lines:
        raise _error(source, "there is nothing in it", f"write a key '{_KEY}' with the fields below it")
    is_yaml = re.match(rf"\s*{_KEY}\s*:", lines[0]) is not None or "=" not in text
    return _policy(_yaml_block(text, source) if is_yaml else TomlSource.parse(source, text))


def affinity_from(fields: Mapping[str, object], *, source: str = "the affinity block") -> AffinityPolicy:
    """Return the policy that these fields describe; a field that is missing keeps its default.

    Raises:
        InvalidRequestError: names the field.
    """
    return _policy(TomlSource(source, {_KEY: fields}, {}))


def _policy(source: TomlSource) -> AffinityPolicy:
    table = source.values.get(_KEY)
    if not isinstance(table, Mapping):
        raise _error(source.name, f"there is no table [{_KEY}]", f"write a table [{_KEY}]")
    reader = StructReader(
        source=source, see="docs/placement.md", hooks={float: _share, bool: _switch, AffinityMode: _mode}
    )
    return reader.read(AffinityPolicy, table, (_KEY,))


def _share(reader: StructReader, _: str, value: object, path: KeyPath) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise reader.source.error(path, f"is {value!r}", resolution="give a share from 0 to 1, such as 0.85")
    return value


def _switch(reader: StructReader, _: str, value: object, path: KeyPath) -> object:
    if not isinstance(value, bool):
        raise reader.source.error(path, f"is {value!r}", resolution="write true or false")
    return value


def _mode(reader: StructReader, _: str, value: object, path: KeyPath) -> object:
    if value == "hard":
        raise reader.source.error(
            path, f"is {value!r}", resolution="write soft; a hard one would refuse work while other nodes are idle"
        )
    return reader.choice(AffinityMode, value, path)


def _yaml_block(text: str, source: str) -> TomlSource:
    lines = [(number, _without_comment(line)) for number, line in enumerate(text.splitlines(), 1)]
    (number, head), *rest = [(number, line) for number, line in lines if line.strip() and line.strip() != "---"]
    match = re.fullmatch(rf"{_KEY}\s*:\s*(\{{.*\}})?\s*", head)
    if match is None:
        raise _error(f"{source}, line {number}", f"{head.strip()!r} is not the key {_KEY!r}", f"begin with '{_KEY}:'")
    if match.group(1) is not None:
        inside = match.group(1)[1:-1].strip()
        pairs = [(number, pair.strip()) for pair in inside.split(",")] if inside else []
        return _pairs([*pairs, *rest], source)
    indents = [len(line) - len(line.lstrip(" ")) for _, line in rest]
    for (at, _), indent in zip(rest, indents, strict=True):
        if indent == 0 or indent != indents[0]:
            where = f"{source}, line {at}"
            raise _error(where, "it is not indented as the first field", "indent every field by the same spaces")
    return _pairs([(at, line.strip()) for at, line in rest], source)


def _pairs(lines: list[tuple[int, str]], source: str) -> TomlSource:
    fields: dict[str, object] = {}
    numbers: dict[KeyPath, int] = {}
    for number, line in lines:
        match = _PAIR.fullmatch(line)
        where = f"{source}, line {number}"
        if match is None:
            raise _error(where, f"{line!r} is not 'name: value'", "write one field and one value")
        name, value = match.groups()
        if name in fields:
            raise _error(where, f"{_KEY}.{name} is there twice", "keep one of them")
        fields[name] = _scalar(value.strip())
        numbers[_KEY, name] = number
    return TomlSource(source, {_KEY: fields}, numbers)


def _scalar(text: str) -> object:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    return float(text) if _NUMBER.fullmatch(text) else text


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s)#.*$", "", line).rstrip()


def _error(source: str, brief: str, resolution: str) -> InvalidRequestError:
    return InvalidRequestError(f"{source}: {brief}", resolution=resolution)
