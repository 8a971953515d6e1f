"""Whether two names are of one model: services answer to a short name with a dated one."""

from __future__ import annotations

import re

_DATE = re.compile(r"[-@:](\d{8}|\d{4}-\d{2}-\d{2}|\d{4}|latest)")
"""A day, a month and day as in ``-0613``, or the newest. A single digit is a version, and another model."""


def is_same_model(name: str, answered: str) -> bool:
    """Say whether `answered` is `name`, or `name` with a date behind it."""
    return answered == name or (answered.startswith(name) and _DATE.fullmatch(answered, len(name)) is not None)
