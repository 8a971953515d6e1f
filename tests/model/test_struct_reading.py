"""Tables become values; what is wrong in them is said with its line and what was expected."""

from __future__ import annotations

import enum
from typing import Annotated

import pytest
from msgspec import Meta

from dsec.base.errors import InvalidRequestError
from dsec.base.toml_source import KeyPath, TomlSource
from dsec.model.struct_reading import StructReader
from dsec.model.unit_names import UnitName, parse_by
from dsec.model.value import Value

TIME = UnitName(end="_s", parse=parse_by({"s": 1.0, "min": 60.0}), how='write it as "5 s"')


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(Value, frozen=True):
    x: float = 0.0
    y: float = 0.0


class Part(Value, frozen=True):
    count: Annotated[int, Meta(ge=1)] = 1
    wait_s: Annotated[float, Meta(gt=0)] | None = None
    colour: Colour = Colour.RED


class Whole(Value, frozen=True):
    part: Part = Part()
    parts: tuple[Part, ...] = ()
    named: dict[str, Part] = {}
    times_s: tuple[float, ...] = ()
    whole_s: int = 0
    step: str = ""
    step_s: float = 0.0
    at: Point = Point()
    least: int = 0

    def __post_init__(self) -> None:
        if self.least < 0:
            raise InvalidRequestError(f"least is {self.least}", resolution="give 0 or more")


def corner(reader: StructReader, _: str, value: object, path: KeyPath) -> object:
    if value != "corner":
        raise reader.source.error(path, f"is {value!r}", resolution="write corner")
    return {"x": 1.0, "y": 1.0}


def read(text: str) -> Whole:
    source = TomlSource.parse("x.toml", text)
    reader = StructReader(source=source, see="docs/x.md", units=(TIME,), hooks={Point: corner})
    return reader.read(Whole, source.values)


def test_tables_lists_and_named_tables_become_values_in_the_units_of_their_fields() -> None:
    whole = read(
        'times = ["1 s", "2 min"]\nwhole = "1.6 s"\nat = "corner"\n[part]\nwait = "1 min"\n'
        '[[parts]]\ncolour = "blue"\n[named.one]\ncount = 3\n'
    )
    assert whole == Whole(
        part=Part(wait_s=60.0),
        parts=(Part(colour=Colour.BLUE),),
        named={"one": Part(count=3)},
        times_s=(1.0, 120.0),
        whole_s=2,
        at=Point(x=1.0, y=1.0),
    )


def test_a_key_that_would_be_another_fields_name_keeps_its_unit() -> None:
    assert read('step = "first"\nstep_s = "2 s"\n') == Whole(step="first", step_s=2.0)


@pytest.mark.parametrize(
    ("text", "brief", "resolution"),
    [
        ("\nprat = 1\n", "x.toml:2: prat is not known", "did you mean `part`?"),
        ("part = 1\n", "x.toml:1: part is 1", "write a table here"),
        ('[part]\nwait = 5\n', "x.toml:2: part.wait is 5", 'write it as "5 s"'),
        ('[part]\nwait = "0 s"\n', "x.toml:2: part.wait is wrong: Expected `float` > 0.0", "docs/x.md"),
        ('[[parts]]\ncolour = "pink"\n', "x.toml:2: parts[0].colour is 'pink'", "write one of: red, blue"),
        ("[named.one]\ncount = 1\n[named.two]\ncount = 0\n", "x.toml:4: named.two.count is wrong", "docs/x.md"),
        ('times = ["1 s", "2"]\n', "x.toml:1: times[1] is '2'", 'write it as "5 s"'),
        ('at = "edge"\n', "x.toml:1: at is 'edge'", "write corner"),
        ("least = -1\n", "x.toml: least is -1", "give 0 or more"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line_and_a_remedy(text: str, brief: str, resolution: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(text)
    assert caught.value.brief.startswith(brief)
    assert resolution in caught.value.resolution
