"""What may be set about a pool: pure checks that name the field, its unit and its bound."""

from __future__ import annotations

import math

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.model.pool import PoolChange, PoolPolicy

_MOST = 1_000_000
_UNITS = {
    "floor": ("sandboxes", 0, _MOST),
    "concurrency_share": ("of the sandboxes in use, 0 to 10", 0, 10),
    "window_s": ("seconds", 2, 3600),
    "horizon_s": ("seconds", 0.1, 3600),
    "spreads": ("spreads", 0, 100),
    "fixed_level": ("sandboxes", 0, _MOST),
    "maximum": ("sandboxes", 1, _MOST),
    "maximum_ready": ("sandboxes", 0, _MOST),
    "maximum_waiting": ("tasks", 0, _MOST),
    "creations_at_once": ("creations", 1, 10_000),
    "recycles_at_once": ("recycles", 1, 10_000),
    "slack_share": ("of the level, 0 to 10", 0, 10),
    "shrink_after_s": ("seconds", 0, 86_400),
    "failed_checks_until_fresh": ("clean checks", 1, _MOST),
    "recycle_again_after_s": ("seconds", 0, 864_000),
}


def changed(policy: PoolPolicy, change: PoolChange) -> PoolPolicy:
    """Return the policy with what is to be set anew.

    Raises:
        InvalidRequestError: a value is out of its bounds, or two exclude each other.
    """
    values = {name: getattr(change, name) for name in _UNITS}
    given = {name: value for name, value in values.items() if value is not msgspec.UNSET}
    return check_policy(msgspec.structs.replace(policy, **given))


def check_policy(policy: PoolPolicy) -> PoolPolicy:
    """Return the policy if it makes sense. Raises `InvalidRequestError`."""
    for name, (unit, least, most) in _UNITS.items():
        value = getattr(policy, name)
        if value is None:
            continue
        if not (math.isfinite(value) and least <= value <= most):
            raise InvalidRequestError(f"{name} is {value}; it must be {least:g} to {most:g} {unit}")
    if policy.horizon_s > policy.window_s:
        raise InvalidRequestError(
            f"horizon_s is {policy.horizon_s:g} and window_s {policy.window_s:g}: nobody sees further ahead than back",
            resolution="lower horizon_s or raise window_s",
        )
    if policy.fixed_level is not None and policy.maximum is not None and policy.fixed_level > policy.maximum:
        raise InvalidRequestError(
            f"fixed_level is {policy.fixed_level} sandboxes and maximum {policy.maximum}: so many can never be ready",
            resolution="lower fixed_level or raise maximum",
        )
    return policy
