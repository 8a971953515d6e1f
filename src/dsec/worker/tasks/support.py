"""Whether a task can run here: fail closed, naming what is missing."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from dsec.base.errors import CapabilityMissingError
from dsec.model.capability import LIMIT_CAPABILITIES, Capability, CapabilityReport
from dsec.model.sandbox import Network, Resources
from dsec.worker.tasks.task import Task

EVERYWHERE = ("0.0.0.0/0", "::/0")
"""Rules of a policy that allows everything."""


def task_network(task: Task, *, without_network: bool = False) -> Network:
    """Return the egress policy a task asks for. A task that does not say gets none: default deny."""
    if without_network:
        return Network.none()
    if task.environment.public_network:
        return Network.allow(*EVERYWHERE)
    return Network.allow(*task.environment.allowed_hosts)


def task_resources(task: Task, left_out: Collection[str] = ()) -> Resources:
    """Return the limits a task asks for, but those that the user said to leave out."""
    return msgspec.structs.replace(task.environment.resources, **dict.fromkeys(left_out))


def unenforceable_limits(reports: Sequence[CapabilityReport]) -> frozenset[str]:
    """Return the limits that a service says it cannot enforce."""
    missing = {report.capability for report in reports if not report.available}
    return frozenset(name for name, capability in LIMIT_CAPABILITIES.items() if capability in missing)


def check_support(
    task: Task,
    reports: Sequence[CapabilityReport],
    *,
    without_network: bool = False,
    left_out_limits: Collection[str] = (),
) -> None:
    """Check that the service can give a task what it asks for.

    Args:
        task: the task.
        reports: the service's capabilities.
        without_network: the user said to run every task without a network, whatever it asks for.
        left_out_limits: the user said to run every task without these limits.

    Raises:
        CapabilityMissingError: it cannot; the brief names the capability.
    """
    if task.unsupported:
        key, what = next(iter(task.unsupported.items()))
        raise CapabilityMissingError(
            f"task {task.name} needs {what} ({key}), which DSec does not have",
            resolution=f"leave the task out (--skip-broken does), or remove {key} if the task does without",
        )
    _check_limits(task, reports, left_out_limits)
    if not task_network(task, without_network=without_network).rules:
        return
    report = next((item for item in reports if item.capability is Capability.NETWORK_ALLOW), None)
    if report is None or not report.available:
        raise CapabilityMissingError(
            f"task {task.name} needs a network ({Capability.NETWORK_ALLOW.value}), which this node cannot give",
            detail=report.reason if report else "",
            resolution="leave the task out (--skip-broken does), or run it without: --network none",
        )


def _check_limits(task: Task, reports: Sequence[CapabilityReport], left_out: Collection[str]) -> None:
    asked = task_resources(task, left_out)
    for name in sorted(unenforceable_limits(reports)):
        if getattr(asked, name) is None:
            continue
        capability = LIMIT_CAPABILITIES[name]
        report = next(item for item in reports if item.capability is capability)
        raise CapabilityMissingError(
            f"task {task.name} limits {name}, which this node cannot enforce ({capability.value} is missing)",
            detail=report.reason,
            resolution="run where it can, or run all tasks without such limits: --limits available",
        )
