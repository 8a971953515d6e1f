"""Units: parse and show sizes and durations the way people write them."""

from __future__ import annotations

import math
import re

from dsec.base.errors import InvalidRequestError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40

_SIZE_UNITS = {
    "": 1, "b": 1,
    "k": KIB, "kb": KIB, "kib": KIB,
    "m": MIB, "mb": MIB, "mib": MIB,
    "g": GIB, "gb": GIB, "gib": GIB,
    "t": TIB, "tb": TIB, "tib": TIB,
}  # fmt: skip
_DURATION_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def _split(text: str, units: dict[str, float] | dict[str, int], what: str) -> tuple[float, float]:
    match = _NUMBER_AND_UNIT.fullmatch(text)
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in units:
        known = ", ".join(name for name in units if name)
        raise InvalidRequestError(f"{text!r} is not a {what}", resolution=f"write a number and one of: {known}")
    return float(match.group(1)), units[unit]


def parse_size(text: str) -> int:
    """Return bytes for texts such as ``512M``, ``2GiB``, ``4096``. All units are powers of 1024."""
    number, unit = _split(text, _SIZE_UNITS, "size")
    return int(number * unit)


def parse_duration(text: str) -> float:
    """Return seconds for texts such as ``90``, ``1.5h``, ``250ms``."""
    number, unit = _split(text, _DURATION_UNITS, "duration")
    return number * unit


def format_size(size_bytes: int) -> str:
    """Return a short text such as ``1.5 GiB``."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size_bytes) >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} B"


def format_duration(duration_s: float) -> str:
    """Return a short text such as ``840 ms``, ``12.3 s``, ``4m05s``, ``2h10m``."""
    if duration_s < 1:
        return f"{duration_s * 1000:.0f} ms"
    if duration_s < 60:
        return f"{duration_s:.1f} s"
    minutes, seconds = divmod(round(duration_s), 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"


def format_usd(amount: float) -> str:
    """Return an amount of money with as many digits as say something, such as ``$0.00070`` or ``$12.30``."""
    if abs(amount) >= 1:
        return f"${amount:,.2f}"
    digits = 2 if not amount else min(9, 1 - math.floor(math.log10(abs(amount))))
    return f"${amount:.{max(2, digits)}f}"


def format_count(number: int) -> str:
    """Return a short text such as ``950``, ``12.3k`` or ``4.0M``."""
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if abs(number) >= unit:
            return f"{number / unit:.1f}{name}"
    return str(number)


def format_number_of(number: int, noun: str) -> str:
    """Return a short text such as ``1 layer`` or ``2 layers``, for nouns whose plural ends in s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
