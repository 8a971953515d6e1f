"""Admission: whether this node takes one more sandbox. The policy is `dsec.pools.admission`; here it is fed and
obeyed."""

from __future__ import annotations

from collections.abc import Mapping

from dsec.base.clock import Clock
from dsec.base.errors import DsecError, NodeUnavailableError, error_from_code
from dsec.node.host import HostProbe
from dsec.node.settings import NodeSettings
from dsec.pools.admission import Admission, AdmissionPolicy, Pressure, Refusal

_STALLS_HOLD_S = 0.5
"""The kernel averages stalls over 10 s and every 2 s: reading them for each of many creations tells nothing new."""


DRAINING = "draining"
_ASK_AGAIN_S = 30.0


class NodeAdmission:
    """Measure, judge, and raise the reason why not.

    Attributes:
        draining: the node is being emptied; nothing is admitted, whatever is measured.
    """

    def __init__(self, settings: NodeSettings, host: HostProbe, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._policy = Admission(admission_policy(settings))
        self._stalls: Mapping[str, float] = {}
        self._stalls_boot_s: float | None = None
        self.draining = False

    def pressure(self, live: int) -> Pressure:
        """Measure."""
        now_s = self._clock.boot_s()
        if self._stalls_boot_s is None or now_s - self._stalls_boot_s >= _STALLS_HOLD_S:
            self._stalls, self._stalls_boot_s = self._host.stalls(), now_s
        return Pressure(
            sandboxes=live,
            memory_available_bytes=self._host.free_memory_bytes(),
            disk_free_bytes=self._host.free_disk_bytes(),
            **self._stalls,
        )

    def refusal(self, live: int) -> Refusal | None:
        """Return the first reason why one more is not admitted; None: it is."""
        if self.draining:
            return Refusal(
                gauge=DRAINING,
                code=NodeUnavailableError.code,
                measured=1,
                threshold=0,
                brief="the node is being drained and takes no more sandboxes",
                resolution="use another node, or end it with `dsec node drain --undo`",
                retry_after_s=_ASK_AGAIN_S,
            )
        return next(iter(self._policy.judge(self.pressure(live)).refusals), None)

    def check_not_draining(self) -> None:
        """Raise `NodeUnavailableError` while the node is drained: also where a pool has a sandbox to give."""
        if self.draining:
            self.admit(0)

    def admit(self, live: int) -> None:
        """Raise the reason why not.

        Raises:
            NodeUnavailableError, HostDiskFullError, HostOutOfMemoryError: all may be tried again, best on another node.
        """
        refusal = self.refusal(live)
        if refusal is not None:
            raise refusal_error(refusal)


def refusal_error(refusal: Refusal) -> DsecError:
    """Return the error that tells of a refusal."""
    error = error_from_code(
        refusal.code,
        refusal.brief,
        detail=""
        if refusal.gauge == DRAINING
        else f"{refusal.gauge} is {refusal.measured:g}, the threshold is {refusal.threshold:g}",
        resolution=refusal.resolution,
    )
    error.retry_after_s = refusal.retry_after_s
    return error


def admission_policy(settings: NodeSettings) -> AdmissionPolicy:
    """Return the bounds that the settings hold."""
    return AdmissionPolicy(
        **{name: getattr(settings, name) for name in AdmissionPolicy.__struct_fields__ if name != "hysteresis"}
    )
