"""Dimensions, and the words at the end of a name that say in which unit a value is.

A dimension is a product of powers of the base units: seconds, bytes, dollars, working cores, accelerators and tokens.
Everything that a reader counts (tasks, calls, replicas) is a pure number. Formulas take and return floats in the unit
that their parameters' names end in (`memory_gib_s`); `unit_of_name` reads that ending, so that nobody has to write a
table of dimensions beside the code.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError

BASE_UNITS = ("s", "B", "USD", "CPU", "GPU", "token")
_PURE = (0.0,) * len(BASE_UNITS)


@dataclass(frozen=True, slots=True)
class Dimension:
    """Powers of the base units, in the order of `BASE_UNITS`."""

    powers: tuple[float, ...] = _PURE

    def __mul__(self, other: Dimension) -> Dimension:
        return Dimension(tuple(a + b for a, b in zip(self.powers, other.powers, strict=True)))

    def __truediv__(self, other: Dimension) -> Dimension:
        return self * other.to_the(-1)

    def to_the(self, power: float) -> Dimension:
        """Return the dimension of a value raised to a power."""
        return Dimension(tuple(a * power for a in self.powers))

    @property
    def is_pure(self) -> bool:
        """Whether it is that of a pure number."""
        return not any(self.powers)

    def __str__(self) -> str:
        over = [_factor(unit, power) for unit, power in zip(BASE_UNITS, self.powers, strict=True) if power > 0]
        under = [_factor(unit, -power) for unit, power in zip(BASE_UNITS, self.powers, strict=True) if power < 0]
        return "/".join(["*".join(over) or ("1" if under else "a pure number"), *under])


def _factor(unit: str, power: float) -> str:
    return unit if power == 1 else f"{unit}^{power:g}"


def _base(unit: str) -> Dimension:
    return Dimension(tuple(1.0 if unit == base else 0.0 for base in BASE_UNITS))


PURE = Dimension()
TIME, BYTES, MONEY, CPU, GPU, TOKEN = map(_base, BASE_UNITS)


@dataclass(frozen=True, slots=True)
class Unit:
    """How much of a dimension one of a unit is.

    Attributes:
        dimension: its dimension.
        scale: base units in one.
        text: as people write it.
    """

    dimension: Dimension
    scale: float
    text: str


_WORDS: dict[str, Unit] = {
    **{word: Unit(TIME, scale, word) for word, scale in (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0))},
    "minutes": Unit(TIME, 60.0, "min"), "h": Unit(TIME, 3600.0, "h"), "days": Unit(TIME, 86400.0, "day"),
    "bytes": Unit(BYTES, 1.0, "B"), "byte": Unit(BYTES, 1.0, "B"),
    **{word: Unit(BYTES, 1000.0 ** (n + 1), text) for n, (word, text) in enumerate(
        (("kb", "kB"), ("mb", "MB"), ("gb", "GB"), ("tb", "TB")))},
    **{word: Unit(BYTES, 1024.0 ** (n + 1), text) for n, (word, text) in enumerate(
        (("kib", "KiB"), ("mib", "MiB"), ("gib", "GiB"), ("tib", "TiB")))},
    **{word: Unit(BYTES, scale / 8, text) for word, scale, text in (
        ("bits", 1.0, "bit"), ("bit", 1.0, "bit"), ("kbit", 1e3, "kbit"), ("mbit", 1e6, "Mbit"),
        ("gbit", 1e9, "Gbit"))},
    "usd": Unit(MONEY, 1.0, "USD"),
    **{word: Unit(CPU, 1.0, "CPU") for word in ("cpu", "cpus", "core", "cores")},
    **{word: Unit(GPU, 1.0, "GPU") for word in ("gpu", "gpus")},
    **{word: Unit(TOKEN, scale, text) for word, scale, text in (
        ("token", 1.0, "token"), ("tokens", 1.0, "token"), ("ktoken", 1e3, "ktoken"), ("ktokens", 1e3, "ktoken"),
        ("mtoken", 1e6, "Mtoken"), ("mtokens", 1e6, "Mtoken"))},
    "percent": Unit(PURE, 0.01, "%"),
    "thousand": Unit(PURE, 1000.0, "thousand"),
}  # fmt: skip
_COUNTED = frozenset("task call request round session replica host environment success item".split())
"""What is counted is a pure number; after `per` the word only helps the reader."""
_PURE_UNIT = Unit(PURE, 1.0, "")


def _is_word(word: str, *, after_per: bool) -> bool:
    return word in _WORDS or word in ("per", "square") or (after_per and word in _COUNTED)


def split_name(name: str) -> tuple[str, Unit]:
    """Return a name without its unit, and the unit.

    A name that is nothing but a unit (`tokens`) keeps its name, and so does one that only says what is counted
    (`creations_per_task`).

    Raises:
        InvalidRequestError: the name is a single letter that is a unit, or its ending makes no unit.
    """
    words = name.split("_")
    first = len(words)
    while first > 0 and _is_word(words[first - 1], after_per=first > 1 and words[first - 2] == "per"):
        first -= 1
    while first < len(words) and words[first] == "square" and first == len(words) - 1:
        first += 1
    if first == len(words):
        return name, _PURE_UNIT
    if first == 0 and len(name) == 1:
        raise InvalidRequestError(
            f"{name!r} is a unit, and no name of a value", resolution=f"call it for what it is, such as wait_{name}"
        )
    unit = _unit(name, words[first:])
    if unit.dimension.is_pure and unit.scale == 1:
        return name, _PURE_UNIT
    return "_".join(words[:first]) or name, unit


def _unit(name: str, words: list[str]) -> Unit:
    over, under, text_over, text_under = PURE, PURE, list[str](), list[str]()
    scale, power, dividing = 1.0, 1, False
    for word in words:
        if word == "per":
            dividing = True
            continue
        if word == "square":
            power = 2
            continue
        unit = _WORDS.get(word, _PURE_UNIT)
        if dividing:
            under, scale = under * unit.dimension.to_the(power), scale / unit.scale**power
        else:
            over, scale = over * unit.dimension.to_the(power), scale * unit.scale**power
        (text_under if dividing else text_over).append((unit.text or word) + (f"^{power}" if power != 1 else ""))
        power = 1
    if dividing and not text_under:
        raise InvalidRequestError(f"{name!r} ends in `per`", resolution="name the unit that it is divided by")
    return Unit(over / under, scale, "/".join(["*".join(text_over) or "1", *text_under]))
