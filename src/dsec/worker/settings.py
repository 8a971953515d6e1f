"""What a rollout is asked to do."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dsec.episode.retry import BACKOFF_S
from dsec.service.port import DEFAULT_CREATE_TIMEOUT_S


class VerifyIn(enum.Enum):
    """Where the tests run."""

    SAME = "same"
    """In the attempt's own sandbox, its processes gone."""
    CLEAN = "clean"
    """In a fresh sandbox that gets the declared paths and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """Settings of a rollout.

    Attributes:
        attempts: attempts at each task.
        concurrency: attempts at once.
        verify_in: where the tests run.
        without_network: give no task a network, whatever it asks for.
        available_limits: leave out the limits of tasks that the service cannot enforce, instead of refusing the tasks.
        left_out_limits: which those are; found out when the rollout begins.
        create_timeout_s: seconds a sandbox may take to come up.
        cleanup_timeout_s: seconds its removal may take before it is left to the next sweep.
        backoff_s: waits before further tries after an infrastructure error.
        maximum_rounds: rounds of one try; then the policy is stopped.
        environ: the runner's environment variables, for ``${NAME}`` in tasks.
    """

    attempts: int = 1
    concurrency: int = 2
    verify_in: VerifyIn = VerifyIn.SAME
    without_network: bool = False
    available_limits: bool = False
    left_out_limits: frozenset[str] = frozenset()
    create_timeout_s: float = DEFAULT_CREATE_TIMEOUT_S
    cleanup_timeout_s: float = 20.0
    backoff_s: Sequence[float] = BACKOFF_S
    maximum_rounds: int = 10_000
    environ: Mapping[str, str] = field(default_factory=dict)
