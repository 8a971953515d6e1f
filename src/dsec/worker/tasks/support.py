"""Whether a task can run here: fail closed, naming what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from dsec.base.errors import CapabilityMissingError
from dsec.model.capability import Capability, CapabilityReport
from dsec.model.sandbox import Network
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


def check_support(task: Task, reports: Sequence[CapabilityReport], *, without_network: bool = False) -> None:
    """Check that the service can give a task what it asks for.

    Args:
        task: the task.
        reports: the service's capabilities.
        without_network: the user said to run every task without a network, whatever it asks for.

    Raises:
        CapabilityMissingError: it cannot; the brief names the capability.
    """
    if task.unsupported:
        key, what = next(iter(task.unsupported.items()))
        raise CapabilityMissingError(
            f"task {task.name} needs {what} ({key}), which DSec does not have",
            resolution=f"leave the task out (--skip-broken does), or remove {key} if the task does without",
        )
    if not task_network(task, without_network=without_network).rules:
        return
    report = next((item for item in reports if item.capability is Capability.NETWORK_ALLOW), None)
    if report is None or not report.available:
        raise CapabilityMissingError(
            f"task {task.name} needs a network ({Capability.NETWORK_ALLOW.value}), which this node cannot give",
            detail=report.reason if report else "",
            resolution="leave the task out (--skip-broken does), or run it without: --network none",
        )
