"""Move a sandbox to the first peer that takes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dsec.base.errors import (
    AlreadyExistsError,
    CapabilityMissingError,
    DsecError,
    HostDiskFullError,
    HostOutOfMemoryError,
    ImageNotFoundError,
    InvalidRequestError,
    MigrationFailedError,
    NodeUnavailableError,
    UnknownOutcomeError,
)
from dsec.model.sandbox import SandboxInfo, SandboxSpec
from dsec.model.state import MigrationReport, MigrationRequest
from dsec.node.fleet.targets import Targets

Migrate = Callable[[str, MigrationRequest], Awaitable[MigrationReport]]
"""Moves one sandbox to one node: `dsec.service.state.StateService.migrate`."""

_NOT_THERE = (
    NodeUnavailableError,
    HostDiskFullError,
    HostOutOfMemoryError,
    ImageNotFoundError,
    CapabilityMissingError,
    AlreadyExistsError,
    MigrationFailedError,
)
"""What one peer may say and the next may not."""
_FULL = (NodeUnavailableError, HostDiskFullError, HostOutOfMemoryError)
"""What a peer says, or its silence, that will hold for the next sandbox as well."""


async def move(
    migrate: Migrate, targets: Targets, sandbox_id: str, spec: SandboxSpec, reason: str
) -> tuple[str, SandboxInfo | None]:
    """Move a sandbox to the emptiest peer that takes it.

    Returns:
        The node it is on now, and how it is there; None: it was handed over, and the node has not said so yet.

    Raises:
        NodeUnavailableError: no peer takes it; the detail has the reasons. It goes on here.
        DsecError: of the sandbox itself: it ended, its hook failed.
    """
    refusals: dict[str, DsecError] = {}
    while (peer := next((each for each in targets.order(spec) if each.node not in refusals), None)) is not None:
        targets.count(peer.node, spec)  # At once: others are on their way at the same time.
        try:
            report = await migrate(sandbox_id, MigrationRequest(node=peer.node, reason=reason))
        except UnknownOutcomeError:
            return peer.node, None
        except _NOT_THERE as error:
            targets.count(peer.node, spec, -1)
            refusals[peer.node] = error
            if isinstance(error, _FULL):
                targets.leave_out(peer.node)
            continue
        return report.target, report.sandbox
    if len(refusals) == 1:
        raise next(iter(refusals.values()))
    raise NodeUnavailableError(
        f"none of {len(refusals)} peers takes {sandbox_id}"
        if refusals
        else f"no peer takes {sandbox_id}: there is none that answers and has room",
        detail="; ".join(f"{node}: {error.code}: {error.brief}" for node, error in refusals.items()),
        resolution="`dsec node ls` tells how the peers are",
    )


def check_at_once(at_once: int) -> None:
    """Raise `InvalidRequestError` where so many moves at a time make no sense."""
    if not 1 <= at_once <= 64:
        raise InvalidRequestError(f"at_once is {at_once}; give 1 to 64 moves at a time")
