"""Which entries of a session a pack leaves out, and by which rule. Pure: a path goes in, the name of a rule comes out.

Patterns are matched by `pathspec` as gitignore(5) says, but for one thing: what `keep` names is kept, also below a
directory that a rule removes. Names are a guest's and may be any bytes. A pattern becomes a regular expression, whose
time can grow with a power of its stars, and names are chosen by a guest: so patterns of one's own may have few.
"""

from __future__ import annotations

from collections.abc import Sequence

import pathspec

from dsec.base.errors import InvalidRequestError, LimitExceededError
from dsec.images.scrub_rules import DEFAULT_RULES
from dsec.model.state import ScrubRules

MAXIMUM_PATTERNS = 1000
MAXIMUM_PATTERN_CHARACTERS = 1024
MAXIMUM_STARS = 2
"""Stars in one part of a pattern, and ``**`` in all of it."""


class Scrub:
    """Rules, ready to be asked.

    Raises:
        InvalidRequestError: a pattern is none.
        LimitExceededError: there are too many, or one is too long or has too many stars.
    """

    def __init__(self, rules: ScrubRules = ScrubRules()) -> None:
        for patterns in (rules.remove, rules.keep):
            _check(patterns)
        named = [(name, _spec(patterns)) for name, patterns in DEFAULT_RULES.items()] if rules.defaults else []
        self._rules = [*named, *((pattern, _spec([pattern])) for pattern in rules.remove)]
        self._keep = _spec(rules.keep)

    def rule_for(self, path: bytes, *, is_directory: bool, inherited: str | None = None) -> str | None:
        """Return the rule by which an entry is left out; None when it stays.

        Args:
            path: from the root, without a leading slash.
            is_directory: whether it is a directory, not a link to one.
            inherited: the rule of the directory that holds it.
        """
        text = _text(path) + ("/" if is_directory else "")
        if self._keep.match_file(text):
            return None
        if inherited is not None:
            return inherited
        return next((name for name, spec in self._rules if spec.match_file(text)), None)


def shown(path: bytes) -> str:
    """Return a path as people may read it: nothing in it steers a terminal, and no two look the same."""
    text = f"/{path.decode(errors='surrogateescape')}"
    return "".join(map(_shown_character, text))


def _shown_character(character: str) -> str:
    if 0xDC80 <= ord(character) <= 0xDCFF:  # A byte that is no UTF-8 (PEP 383).
        return f"\\x{ord(character) - 0xDC00:02x}"
    if character == "\\" or not character.isprintable():
        return character.encode("unicode_escape").decode()
    return character


def _text(path: bytes) -> str:
    # Regular expressions treat line ends as something of their own; here they are characters of a name.
    return path.decode(errors="surrogateescape").translate(_LINE_ENDS)


_LINE_ENDS = dict.fromkeys(map(ord, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"), "\ufffd")


def _check(patterns: Sequence[str]) -> None:
    if len(patterns) > MAXIMUM_PATTERNS:
        raise LimitExceededError(f"{len(patterns)} patterns were given, at most {MAXIMUM_PATTERNS} are allowed")
    for pattern in patterns:
        _check_pattern(pattern)


def _check_pattern(pattern: str) -> None:
    name = repr(pattern[:80])
    if len(pattern) > MAXIMUM_PATTERN_CHARACTERS:
        raise LimitExceededError(f"the pattern {name} is longer than {MAXIMUM_PATTERN_CHARACTERS} characters")
    if not pattern.strip() or pattern.startswith(("#", "!")) or "\n" in pattern:
        raise InvalidRequestError(
            f"{name} is no pattern", resolution="give one as in a .gitignore; what is to stay goes to the kept ones"
        )
    parts = pattern.split("/")
    stars = max(part.count("*") for part in parts if part != "**") if any(part != "**" for part in parts) else 0
    if stars > MAXIMUM_STARS or parts.count("**") > MAXIMUM_STARS:
        raise LimitExceededError(
            f"the pattern {name} has too many stars",
            detail=f"at most {MAXIMUM_STARS} in one part, and as many '**'",
            resolution="give several patterns",
        )


def _spec(patterns: Sequence[str]) -> pathspec.GitIgnoreSpec:
    try:
        return pathspec.GitIgnoreSpec.from_lines(patterns)
    except ValueError as error:
        raise InvalidRequestError(
            f"{error} in a pattern", resolution="give patterns as in a .gitignore, with '\\' before special characters"
        ) from error
