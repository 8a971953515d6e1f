"""Admission: whether this node takes one more sandbox, decided on what is measured.

Theory. Sandboxes ask for far more than they use, and wait most of their life for a model; a node that adds up
requests stands idle. So requests are not added up: limits keep each sandbox in bounds, and the node looks at what
its host has left and how long its tasks wait for what they need. PSI tells the latter: the share of time in which
some task, or every task that is not idle (`full`), waited for memory, for I/O or for a processor. Waiting for a
processor makes work slower and endangers nothing: by default it refuses nobody. Memory and disk can run out and
take the node with them: there the bounds are absolute.

A bound has two marks. Once measured beyond the first, nothing is admitted until the measure is back beyond the
second; else a node at its bound would admit and refuse by turns, and every retry would meet the noise. The node's
word is final: placement may guess, the node knows.

Sources: Documentation/accounting/psi.rst of the kernel; DeepSeek Elastic Compute (arXiv 2609.22978): admission by
the edge from pressure, overcommit as the normal state.
"""

from __future__ import annotations

from operator import attrgetter

import msgspec

from dsec.base.units import GIB, MIB, format_size
from dsec.model.value import Value


class Pressure(Value, frozen=True):
    """What was measured of a host. A figure that the host does not give is None and refuses nobody.

    Attributes:
        sandboxes: sandboxes that live now, in flight included.
        memory_available_bytes: what the kernel could give without swapping (MemAvailable).
        disk_free_bytes: what sandboxes can still write.
        memory_some, memory_full, io_some, io_full, cpu_some: shares of the last 10 s, 0 to 1 (PSI avg10 / 100).
        pids: processes and threads of the host, as a share of what it can have, 0 to 1.
    """

    sandboxes: int = 0
    memory_available_bytes: int | None = None
    disk_free_bytes: int | None = None
    memory_some: float | None = None
    memory_full: float | None = None
    io_some: float | None = None
    io_full: float | None = None
    cpu_some: float | None = None
    pids: float | None = None


class AdmissionPolicy(Value, frozen=True):
    """The bounds.

    Attributes:
        maximum_sandboxes: live sandboxes.
        minimum_free_memory_bytes, minimum_free_disk_bytes: kept free.
        maximum_memory_some, maximum_memory_full, maximum_io_some, maximum_io_full, maximum_cpu_some: shares of
            time; 1: no bound.
        maximum_pids: share of the host's processes.
        hysteresis: by which share a measure must be better than its bound before anything is admitted again.
    """

    maximum_sandboxes: int = 4096
    minimum_free_memory_bytes: int = 256 * MIB
    minimum_free_disk_bytes: int = 1 * GIB
    maximum_memory_some: float = 0.6
    maximum_memory_full: float = 0.3
    maximum_io_some: float = 1.0
    maximum_io_full: float = 0.9
    maximum_cpu_some: float = 1.0
    maximum_pids: float = 0.9
    hysteresis: float = 0.1


class Refusal(Value, frozen=True):
    """One reason why not.

    Attributes:
        gauge: what was measured.
        code: of the error to raise.
        measured, threshold: in the gauge's own unit; `threshold` is the mark that counts now.
        brief: in words, with both.
        resolution: what would help.
        retry_after_s: when asking again may help.
    """

    gauge: str
    code: str
    measured: float
    threshold: float
    brief: str
    resolution: str
    retry_after_s: float


class Verdict(Value, frozen=True):
    """The answer. `refusals` is empty when one more is admitted; the first is the one to tell."""

    refusals: tuple[Refusal, ...] = ()

    @property
    def admitted(self) -> bool:
        return not self.refusals


class _Gauge(msgspec.Struct, frozen=True):
    """How one measure is judged."""

    name: str
    bound: str
    code: str
    retry_after_s: float
    resolution: str
    form: str
    at_least: bool = False


_ELSEWHERE = "stop sandboxes or use another node"
_GAUGES = (
    _Gauge(
        "sandboxes",
        "maximum_sandboxes",
        "node_unavailable",
        2.0,
        "stop sandboxes, use another node, or raise maximum_sandboxes",
        "the node holds {measured} sandboxes, as many as it may ({threshold})",
    ),
    _Gauge(
        "disk_free_bytes",
        "minimum_free_disk_bytes",
        "host_disk_full",
        10.0,
        "free space on the state directory's file system",
        "the host has {measured} of disk left, the node keeps {threshold} free",
        at_least=True,
    ),
    _Gauge(
        "memory_available_bytes",
        "minimum_free_memory_bytes",
        "host_out_of_memory",
        5.0,
        _ELSEWHERE,
        "the host has {measured} of memory left, the node keeps {threshold} free",
        at_least=True,
    ),
    *(
        _Gauge(
            name,
            f"maximum_{name}",
            "host_out_of_memory" if name.startswith("memory") else "node_unavailable",
            10.0,
            _ELSEWHERE,
            f"{who} of the host waited for {what} {{measured}} of the last 10 s, at most {{threshold}} is admitted",
        )
        for name, who, what in (
            ("memory_full", "all tasks", "memory"),
            ("memory_some", "some task", "memory"),
            ("io_full", "all tasks", "I/O"),
            ("io_some", "some task", "I/O"),
            ("cpu_some", "some task", "a processor"),
        )
    ),
    _Gauge(
        "pids",
        "maximum_pids",
        "node_unavailable",
        5.0,
        _ELSEWHERE,
        "the host has {measured} of the processes that it can have, at most {threshold} is admitted",
    ),
)

_measured_by = attrgetter(*(gauge.name for gauge in _GAUGES))
_ADMITTED = Verdict()


class Admission:
    """Judge one creation after another; remembers which bounds were passed and are not well again."""

    def __init__(self, policy: AdmissionPolicy) -> None:
        self.policy = policy
        self._refusing: set[str] = set()
        self._marks: list[tuple[_Gauge, float]] = [(gauge, getattr(policy, gauge.bound)) for gauge in _GAUGES]

    def judge(self, pressure: Pressure) -> Verdict:
        """Return whether one more sandbox is admitted at this pressure."""
        refusals = self._refusals(pressure)
        if not refusals and not self._refusing:
            return _ADMITTED
        self._refusing = {refusal.gauge for refusal in refusals}
        return Verdict(refusals=tuple(refusals))

    def _refusals(self, pressure: Pressure) -> list[Refusal]:
        refusals = []
        for at, measured in enumerate(_measured_by(pressure)):
            if measured is None:
                continue
            gauge, threshold = self._marks[at]
            if self._refusing:
                threshold = self._threshold(gauge, threshold)
            if _is_beyond(gauge, measured, threshold):
                refusals.append(_refusal(gauge, measured, threshold))
        return refusals

    def _threshold(self, gauge: _Gauge, bound: float) -> float:
        """The mark that counts now. A count of sandboxes is exact and needs no second mark."""
        if gauge.name not in self._refusing or gauge.name == "sandboxes":
            return bound
        return bound * (1 + self.policy.hysteresis if gauge.at_least else 1 - self.policy.hysteresis)


def _is_beyond(gauge: _Gauge, measured: float, threshold: float) -> bool:
    if gauge.at_least:
        return measured < threshold
    return measured >= threshold if gauge.name == "sandboxes" else measured > threshold


def _refusal(gauge: _Gauge, measured: float, threshold: float) -> Refusal:
    return Refusal(
        gauge=gauge.name,
        code=gauge.code,
        measured=float(measured),
        threshold=float(threshold),
        brief=gauge.form.format(measured=_shown(gauge, measured), threshold=_shown(gauge, threshold)),
        resolution=f"{gauge.resolution}; ask again in {gauge.retry_after_s:g} s",
        retry_after_s=gauge.retry_after_s,
    )


def _shown(gauge: _Gauge, value: float) -> str:
    if gauge.name.endswith("_bytes"):
        return format_size(int(value))
    return f"{value:.0f}" if gauge.name == "sandboxes" else f"{100 * value:.1f}%"
