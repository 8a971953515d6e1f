"""Expressions of worksheets: arithmetic on quantities, with dimensions checked at every step.

The text is parsed by Python's own parser after `$references` are replaced by names; only the node types below are
walked, so that an expression can compute and do nothing else.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from dsec.base.errors import InvalidRequestError
from dsec.planner.dimension import PURE, Dimension
from dsec.planner.figure import Figure
from dsec.planner.quantity import Quantity, parse_quantity

_REFERENCE = re.compile(r"\$([a-z_][a-z0-9_]*(?:\.[a-z0-9_]+)*)")
_LONGEST = 2_000
_HIGHEST_POWER = 16.0
_HIGHEST_UNIT, _WHOLE = 9, 1e-9
_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_SAME_DIMENSION: Mapping[str, Callable[..., float]] = {"min": min, "max": max, "sum": lambda *values: math.fsum(values)}
_PURE_ONLY: Mapping[str, Callable[[float], float]] = {"ceil": math.ceil, "floor": math.floor, "round": round}


def references(text: str) -> tuple[str, ...]:
    """Return the references of an expression, each once, without the dollar sign."""
    return tuple(dict.fromkeys(_REFERENCE.findall(text)))


def evaluate(text: str, resolve: Callable[[str], Any]) -> Quantity:
    """Compute an expression.

    Args:
        text: the expression.
        resolve: returns the figure (or tuple of figures) that a reference stands for.

    Raises:
        InvalidRequestError: it is not an expression, adds what cannot be added, or divides by zero.
    """
    if len(text) > _LONGEST:
        raise InvalidRequestError("the expression is too long", resolution="split it into several calculations")
    names: dict[str, str] = {}

    def name_of(match: re.Match[str]) -> str:
        names.setdefault(match.group(1), f"_{len(names)}")
        return names[match.group(1)]

    try:
        tree = ast.parse(_REFERENCE.sub(name_of, text), mode="eval").body
        values = {short: resolve(reference) for reference, short in names.items()}
        found = _Walk(text, values).number(tree)
    except (SyntaxError, RecursionError) as error:
        raise InvalidRequestError(f"{text!r} is not an expression", detail=str(error.__class__.__name__)) from error
    except (ZeroDivisionError, OverflowError, ValueError) as error:
        raise InvalidRequestError(f"{text!r} cannot be computed", detail=str(error)) from error
    if not math.isfinite(found.value):
        raise InvalidRequestError(f"{text!r} cannot be computed", detail="its numbers become too large")
    return found


class _Walk:
    def __init__(self, text: str, values: Mapping[str, Any]) -> None:
        self._text, self._values = text, values

    def number(self, node: ast.expr) -> Quantity:
        """Return the quantity of a node that has to be one number."""
        found = self.value(node)
        if isinstance(found, tuple):
            raise InvalidRequestError(f"{self._text!r} uses a list where one value is needed", resolution="sum it")
        return found

    def value(self, node: ast.expr) -> Quantity | tuple[Quantity, ...]:
        if isinstance(node, ast.Name) and node.id in self._values:
            return _quantities(self._values[node.id], self._text)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return parse_quantity(node.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            return Quantity(float(node.value))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            inner = self.number(node.operand)
            return Quantity(-inner.value if isinstance(node.op, ast.USub) else inner.value, inner.dimension)
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return self._call(node.func.id, [self.value(argument) for argument in node.args])
        raise InvalidRequestError(
            f"{self._text!r} is not an expression",
            detail=f"not understood: {ast.unparse(node)}",
            resolution="use + - * / **, numbers, 'quantities', $references, and min max sum ceil floor round abs",
        )

    def _binary(self, node: ast.BinOp) -> Quantity:
        left, right = self.number(node.left), self.number(node.right)
        if isinstance(node.op, ast.Pow):
            return self._power(left, right)
        compute = _BINARY.get(type(node.op))
        if compute is None:
            raise InvalidRequestError(f"{self._text!r} uses an operator that is not known here")
        dimension = left.dimension
        if isinstance(node.op, ast.Add | ast.Sub):
            self._same(ast.unparse(node), [left.dimension, right.dimension])
        else:
            multiplied = isinstance(node.op, ast.Mult)
            dimension = left.dimension * right.dimension if multiplied else left.dimension / right.dimension
        return Quantity(compute(left.value, right.value), dimension)

    def _power(self, base: Quantity, power: Quantity) -> Quantity:
        if not power.dimension.is_pure or (abs(power.value) > _HIGHEST_POWER and not base.dimension.is_pure):
            raise InvalidRequestError(f"{self._text!r}: a power is a pure number, at most 16 for quantities")
        result = base.value**power.value
        if isinstance(result, complex):
            raise InvalidRequestError(f"{self._text!r}: a negative number has no such power")
        dimension = base.dimension.to_the(power.value) if not base.dimension.is_pure else PURE
        if any(abs(part - round(part)) > _WHOLE or abs(part) > _HIGHEST_UNIT for part in dimension.powers):
            raise InvalidRequestError(f"{self._text!r}: no unit has such a power", detail=str(dimension))
        return Quantity(float(result), dimension)

    def _same(self, what: str, dimensions: list[Dimension]) -> None:
        if len(set(dimensions)) > 1:
            listed = " and ".join(dict.fromkeys(str(dimension) for dimension in dimensions))
            raise InvalidRequestError(
                f"{self._text!r} combines {listed}",
                detail=f"in: {what}",
                resolution="only like can be added or compared",
            )

    def _call(self, name: str, arguments: list[Quantity | tuple[Quantity, ...]]) -> Quantity:
        flat = [item for part in arguments for item in (part if isinstance(part, tuple) else (part,))]
        if not flat:
            raise InvalidRequestError(f"{self._text!r}: {name}() needs something to work on")
        if name in _SAME_DIMENSION:
            self._same(name, [item.dimension for item in flat])
            return Quantity(_SAME_DIMENSION[name](*(item.value for item in flat)), flat[0].dimension)
        if len(flat) != 1 or name not in (*_PURE_ONLY, "abs"):
            raise InvalidRequestError(f"{self._text!r}: {name}() is not known with {len(flat)} values")
        if name == "abs":
            return Quantity(abs(flat[0].value), flat[0].dimension)
        if not flat[0].dimension.is_pure:
            raise InvalidRequestError(
                f"{self._text!r}: {name}() is for pure numbers", resolution="divide by a unit first"
            )
        # A quotient such as 180/15 must not become 12.000000000000002 and then 13.
        return Quantity(float(_PURE_ONLY[name](round(flat[0].value, 9))), PURE)


def _quantities(value: Any, text: str) -> Quantity | tuple[Quantity, ...]:
    if isinstance(value, Figure):
        return Quantity(value.value, value.dimension)
    if isinstance(value, tuple) and all(isinstance(item, Figure) for item in value):
        return tuple(Quantity(item.value, item.dimension) for item in value)
    raise InvalidRequestError(f"{text!r} refers to something that is not a number", resolution="name a field of it")
