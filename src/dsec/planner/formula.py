"""Formulas of `dsec.costs` as worksheets see them: dimensions and types read off the functions themselves.

Nothing is declared twice: the units are in the names, the types in the annotations, the text and the source of a
formula in its docstring or its module's. Reading them happens once, when the tables of formulas are imported.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dsec.planner.dimension import Unit, split_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a formula, or one field of a dataclass.

    Attributes:
        name: in Python, with its unit.
        key: in TOML, without.
        unit: of the value that Python gets.
        hint: its type.
        required: whether it has no default.
    """

    name: str
    key: str
    unit: Unit
    hint: Any
    required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """A function that worksheets may call.

    Attributes:
        name: ``module.function``.
        function: the function.
        parameters: in order, by key.
        unit: of a result that is one value or a list of them.
        hint: type of the result.
        summary: first line of the docstring.
        text: the formula as people write it.
        source: where it stands.
    """

    name: str
    function: Callable[..., Any]
    parameters: dict[str, Parameter]
    unit: Unit
    hint: Any
    summary: str
    text: str
    source: str


def formulas(*functions: Callable[..., Any]) -> tuple[Formula, ...]:
    """Return functions of `dsec.costs` as formulas."""
    return tuple(read_formula(function) for function in functions)


def read_formula(function: Callable[..., Any]) -> Formula:
    """Read name, parameters, units, text and source off a function.

    Raises:
        InvalidRequestError: a name's unit makes no sense.
    """
    hints = typing.get_type_hints(function)
    signature = inspect.signature(function)
    required = {name: item.default is inspect.Parameter.empty for name, item in signature.parameters.items()}
    doc, around = inspect.getdoc(function) or "", inspect.getdoc(inspect.getmodule(function)) or ""
    return Formula(
        name=f"{function.__module__.rpartition('.')[2]}.{function.__name__}",
        function=function,
        parameters=_by_key(required, hints),
        unit=split_name(function.__name__)[1],
        hint=hints.get("return"),
        summary=doc.partition("\n")[0],
        text=section(doc, "Formula"),
        source=section(doc, "Source") or section(around, "Source"),
    )


def fields_of(kind: type) -> dict[str, Parameter]:
    """Return the fields of a dataclass as parameters, by key."""
    required = {
        field.name: field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        for field in dataclasses.fields(kind)
        if field.init
    }
    return _by_key(required, typing.get_type_hints(kind))


def keys_of(names: Iterable[str]) -> dict[str, tuple[str, Unit]]:
    """Return key and unit of names: without their units, except where that would leave two alike."""
    split = {name: split_name(name) for name in names}
    counts = Counter(key for key, _ in split.values())
    return {name: (key if counts[key] == 1 else name, unit) for name, (key, unit) in split.items()}


def _by_key(required: Mapping[str, bool], hints: Mapping[str, Any]) -> dict[str, Parameter]:
    return {
        key: Parameter(name=name, key=key, unit=unit, hint=hints[name], required=required[name])
        for name, (key, unit) in keys_of(required).items()
    }


def section(doc: str, title: str) -> str:
    """Return the text of a section of a docstring in one line; empty: there is none."""
    lines = iter(doc.splitlines())
    for line in lines:
        if line.startswith(f"{title}:"):
            kept = [line.removeprefix(f"{title}:")]
            for following in lines:
                if not following.strip() or re.match(r"[A-Z]\w+:$", following):
                    break
                kept.append(following)
            return " ".join(" ".join(kept).split())
    return ""
