"""How far a node's word is believed: a number that falls with every surprise and rises again.

A node that lies about its load, whether it is broken, misconfigured or dishonest, is told apart by what happens to
the sandboxes sent there. Three things are measured: it rejected although its view had room; it failed, or did not
answer; it took several times as long as the fleet does. Each takes away a share of the trust (`TrustPolicy`), each
success gives some back, and time gives back half of the rest every `half_life_s`, so that nobody is condemned for
good.

Failures in a row are worse than a lie: each costs the caller a timeout. After `suspend_after` of them the node is
left out for `suspend_s`, and twice as long with each further failure (a circuit breaker: Nygard, *Release It!*,
2007).
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.placement.policy import TrustPolicy

_NEVER_S = float("-inf")


@dataclass(slots=True)
class Trust:
    """What one scheduler thinks of one node.

    Attributes:
        score: from the policy's floor to 1.
        failures: creations that failed there since the last success.
        suspended_until_s: on the scheduler's clock; the node is left out until then.
        creation_s: smoothed time of creations there; None until one was measured.
    """

    score: float = 1.0
    failures: int = 0
    suspended_until_s: float = _NEVER_S
    creation_s: float | None = None

    def rejected(self, load: float, policy: TrustPolicy) -> None:
        """Note a rejection while the node was believed to be at `load`; it surprises only if there was room."""
        if load <= policy.surprise_load:
            self._scale(policy.after_rejection, policy)

    def failed(self, now_s: float, policy: TrustPolicy) -> None:
        """Note a creation that failed or was not answered."""
        self.failures += 1
        self._scale(policy.after_failure, policy)
        beyond = self.failures - policy.suspend_after
        if beyond >= 0:
            # The exponent is bounded, because 2 to the number of failures soon is no float.
            length_s = min(policy.suspend_s * 2.0 ** min(beyond, 30), policy.suspend_limit_s)
            self.suspended_until_s = now_s + length_s

    def succeeded(self, creation_s: float | None, usual_s: float | None, policy: TrustPolicy) -> None:
        """Note a creation that succeeded in `creation_s` seconds, where the fleet takes `usual_s`."""
        self.failures = 0
        self.suspended_until_s = _NEVER_S
        if creation_s is not None:
            self.creation_s = smoothed(self.creation_s, creation_s)
            slow = creation_s >= policy.slow_least_s
            if slow and usual_s is not None and creation_s >= policy.slow_factor * usual_s:
                self._scale(policy.after_slow, policy)
                return
        if self.score != 1.0:
            self.score += policy.recovery * (1.0 - self.score)

    def recover(self, passed_s: float, policy: TrustPolicy) -> None:
        """Let time heal."""
        if self.score < 1.0:
            self.score = 1.0 - (1.0 - self.score) * 0.5 ** (passed_s / policy.half_life_s)
            if self.score > 0.999:
                self.score = 1.0

    def _scale(self, factor: float, policy: TrustPolicy) -> None:
        self.score = max(policy.floor, self.score * factor)


def smoothed(before: float | None, value: float, *, share: float = 0.1) -> float:
    """Return an exponentially weighted mean in which the new value has `share`; the first value stands for itself."""
    return value if before is None else before + share * (value - before)
