"""Scenario files: what is simulated, the cases that are compared, the claims that are tested and the pictures that are
drawn.

The table at the top describes one run; each ``[[cases]]`` changes some keys of it. The format is in
docs/simulation/scenarios.md.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from dsec.base.errors import InvalidRequestError, NotFoundError
from dsec.base.toml_source import TomlSource
from dsec.model.value import Value
from dsec.sim.distribution.scenario import DistributionScenario
from dsec.sim.fleet.scenario import FleetScenario
from dsec.sim.levels import LevelsScenario
from dsec.sim.reading import read_struct
from dsec.sim.rounds import RoundsScenario

Scenario = RoundsScenario | FleetScenario | LevelsScenario | DistributionScenario
_Kind = type[RoundsScenario] | type[FleetScenario] | type[LevelsScenario] | type[DistributionScenario]
_MODELS: dict[str, _Kind] = {
    "rounds": RoundsScenario,
    "fleet": FleetScenario,
    "levels": LevelsScenario,
    "distribution": DistributionScenario,
}
_ONLY = ""
"""The name of the case of a scenario that has none."""


class Case(Value, frozen=True):
    """One run of a scenario.

    Attributes:
        name: for tables and pictures.
        set: keys of the scenario, with dots, and their values for this case.
        x: where it stands on the axis of a curve.
        group: which curve it belongs to.
    """

    name: str
    set: dict[str, Any] = {}
    x: float = 0.0
    group: str = ""


class Measured(Value, frozen=True):
    """One number of one case: ``of = "figures.wait_s.mean"``."""

    of: str
    case: str = _ONLY


class Claim(Value, frozen=True):
    """A sentence of a source, and the number that tests it.

    Attributes:
        text: the claim in our words.
        source: who says so.
        value: what is measured.
        against: what it is compared with.
        how: `value` (alone), `ratio` (value / against), `reduction` (1 - value / against), `difference` (value -
            against).
        published: the number claimed; None: only bounds are.
        low, high: the claim holds when the number is within.
        remark: why it comes out so.
    """

    text: str
    source: str
    value: Measured
    against: Measured | None = None
    how: Literal["value", "ratio", "reduction", "difference"] = "value"
    published: float | None = None
    low: float = float("-inf")
    high: float = float("inf")
    remark: str = ""

    def __post_init__(self) -> None:
        if (self.against is None) != (self.how == "value"):
            raise ValueError(
                f"a claim by {self.how} " + ("needs no" if self.how == "value" else "needs") + " `against`"
            )


class Picture(Value, frozen=True):
    """One picture.

    Attributes:
        name: of its file.
        kind: `lines` (a series of each case over time), `bars` (numbers of each case), `curves` (a number over the
            cases' `x`, by group).
        values: which: series' names for lines, numbers such as ``figures.wait_s.p99`` otherwise.
        title, x_label, y_label: for people.
        scale: of the vertical axis.
        cases: which cases; empty: all.
        unit_factor: what values are multiplied by for the picture.
    """

    name: str
    kind: Literal["lines", "bars", "curves"]
    values: Annotated[tuple[str, ...], Meta(min_length=1)]
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    scale: Literal["linear", "log"] = "linear"
    cases: tuple[str, ...] = ()
    unit_factor: float = 1.0


class _Around(Value, frozen=True, forbid_unknown_fields=False):
    """What a file has beside the scenario itself."""

    cases: tuple[Case, ...] = ()
    claims: tuple[Claim, ...] = ()
    pictures: tuple[Picture, ...] = ()
    columns: tuple[str, ...] = ()
    remarks: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioFile:
    """A scenario with its cases.

    Attributes:
        name: of the file, without its end.
        directory: where paths inside it begin.
        base: the scenario without any case.
        cases: the scenario of each case, in order.
        claims, pictures: as written.
        columns: numbers that the table of results shows.
        remarks: what the results say, for people.
    """

    name: str
    directory: Path
    base: Scenario
    cases: tuple[tuple[Case, Scenario], ...]
    claims: tuple[Claim, ...] = ()
    pictures: tuple[Picture, ...] = ()
    columns: tuple[str, ...] = ()
    remarks: str = ""

    def only(self, names: tuple[str, ...]) -> ScenarioFile:
        """Return it with some of its cases.

        Raises:
            NotFoundError: it has no such case.
        """
        known = [case.name for case, _ in self.cases]
        for name in names:
            if name not in known:
                raise NotFoundError(
                    f"scenario {self.name} has no case {name!r}", resolution=f"its cases: {', '.join(known)}"
                )
        return replace(self, cases=tuple(pair for pair in self.cases if pair[0].name in names))


def parse_scenario(name: str, text: str, *, directory: Path = Path(), where: str = "") -> ScenarioFile:
    """Read a scenario.

    Raises:
        InvalidRequestError: with file and line, what is wrong, and which unit or value was expected.
    """
    source = TomlSource.parse(where or name, text)
    values = dict(source.values)
    around = read_struct(
        source,
        _Around,
        {key: values.pop(key) for key in ("cases", "claims", "pictures", "columns", "remarks") if key in values},
    )
    kind = _kind(source, values)
    base = read_struct(source, kind, values)
    cases = [(case, _case(source, kind, values, case, at)) for at, case in enumerate(around.cases)]
    _refuse_twins(source, around)
    return ScenarioFile(
        name=name,
        directory=directory,
        base=base,
        cases=tuple(cases) or ((Case(name=_ONLY), base),),
        claims=around.claims,
        pictures=around.pictures,
        columns=around.columns,
        remarks=around.remarks,
    )


def read_scenario(path: Path) -> ScenarioFile:
    """Read a scenario from a file.

    Raises:
        NotFoundError: there is none.
        InvalidRequestError: as `parse_scenario`.
    """
    try:
        text = path.read_text(encoding="utf8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{path} is not UTF-8", detail=str(error)) from error
    except OSError as error:
        raise NotFoundError(f"scenario {path} cannot be read: {error.strerror}") from error
    return parse_scenario(path.stem, text, directory=path.parent, where=str(path))


def _kind(source: TomlSource, values: dict[str, Any]) -> _Kind:
    model = values.pop("model", None)
    if not isinstance(model, str) or model not in _MODELS:
        known = ", ".join(f'"{name}"' for name in _MODELS)
        raise source.error(("model",), f"is {model!r}" if model else "is missing", resolution=f"write one of {known}")
    return _MODELS[model]


def _case(source: TomlSource, kind: type[Any], values: Mapping[str, Any], case: Case, at: int) -> Scenario:
    changed: dict[str, Any] = copy.deepcopy(dict(values))
    for dotted, value in case.set.items():
        _assign(source, changed, dotted, value, at)
    try:
        scenario: Scenario = read_struct(source, kind, changed)
    except InvalidRequestError as error:
        line = source.line(("cases", at))
        raise InvalidRequestError(
            f"{source.name}:{line}: case {case.name!r}: {error.brief}", detail=error.detail, resolution=error.resolution
        ) from error
    return scenario


def _assign(source: TomlSource, values: Any, dotted: str, value: object, at: int) -> None:
    """Set a value by a path such as ``nodes.0.count``."""
    *parents, last = dotted.split(".")
    place = values
    for part in parents:
        try:
            place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
        except (IndexError, ValueError, AttributeError) as error:
            raise source.error(("cases", at, "set"), f"names {dotted!r}, which is nowhere") from error
    if isinstance(place, list) and last.isdigit() and int(last) < len(place):
        place[int(last)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise source.error(("cases", at, "set"), f"names {dotted!r}, which is nowhere")


def _refuse_twins(source: TomlSource, around: _Around) -> None:
    seen: set[str] = set()
    for at, case in enumerate(around.cases):
        if case.name in seen:
            raise source.error(("cases", at), f"is the second case named {case.name!r}")
        seen.add(case.name)
    for at, claim in enumerate(around.claims):
        for measured in (claim.value, claim.against):
            if measured is not None and around.cases and measured.case not in seen:
                raise source.error(("claims", at), f"speaks of case {measured.case!r}, which there is not")
