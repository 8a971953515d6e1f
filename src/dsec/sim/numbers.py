"""Numbers out of results, by name, and the claims that they test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.model.value import Value
from dsec.sim.result import Result
from dsec.sim.scenario_file import Claim, Measured


def number_of(result: Result, name: str) -> float:
    """Return a number by its name: ``figures.wait_s.p99``, ``levels.running.maximum``, ``counts.created``, ``events``.

    Raises:
        InvalidRequestError: the result has no such number.
    """
    value: object = result
    for part in name.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, msgspec.Struct) and part in value.__struct_fields__:
            value = getattr(value, part)
        else:
            raise InvalidRequestError(
                f"a result has no number {name!r}", resolution=f"instead of {part!r}: {_known(value)}"
            )
    if not isinstance(value, (int, float)):
        raise InvalidRequestError(f"{name!r} is no number", resolution=f"add one of: {_known(value)}")
    return float(value)


def _known(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(sorted(map(str, value)))
    return ", ".join(value.__struct_fields__) if isinstance(value, msgspec.Struct) else "nothing"


class Finding(Value, frozen=True):
    """A claim and what came out.

    Attributes:
        claim: as written in the scenario.
        measured: the number.
        holds: whether it is within the claim's bounds.
    """

    claim: Claim
    measured: float
    holds: bool


def hold_claims(claims: Sequence[Claim], results: Sequence[Result]) -> list[Finding]:
    """Hold claims against results; those whose cases did not run are left out.

    Raises:
        InvalidRequestError: a claim names a number that there is not.
    """
    by_case = {result.case: result for result in results}
    findings = []
    for claim in claims:
        if claim.value.case in by_case and (claim.against is None or claim.against.case in by_case):
            measured = _measure(claim, by_case)
            findings.append(Finding(claim=claim, measured=measured, holds=claim.low <= measured <= claim.high))
    return findings


def _measure(claim: Claim, results: Mapping[str, Result]) -> float:
    value = _number(claim.value, results)
    if claim.against is None:
        return value
    against = _number(claim.against, results)
    if claim.how == "difference":
        return value - against
    if not against:
        return 0.0 if not value else float("inf") if claim.how == "ratio" else float("-inf")
    return value / against if claim.how == "ratio" else 1 - value / against


def _number(measured: Measured, results: Mapping[str, Result]) -> float:
    return number_of(results[measured.case], measured.of)
