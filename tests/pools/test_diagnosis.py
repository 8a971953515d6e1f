"""A diagnosis names the scheduler's figures, then the node's, each beside its threshold, and suggests what follows."""

from __future__ import annotations

import msgspec
import pytest

from dsec.base.errors import InvalidRequestError, NotFoundError
from dsec.model.diagnosis import Diagnosis, Finding
from dsec.model.event import EventKind, EventReading, NodeEvent
from dsec.pools.diagnosis import diagnose, percentile, read_trace

TASK = "task-789"


def event(at_s: float, kind: EventKind, **fields: object) -> NodeEvent:
    return NodeEvent(at_s=at_s, kind=kind, **fields)  # type: ignore[arg-type]


def reading(at_s: float, **fields: object) -> NodeEvent:
    return event(at_s, EventKind.READING, pool="python-1", reading=EventReading(**fields))  # type: ignore[arg-type]


def asked(at_s: float, waited_s: float, task: str = TASK) -> list[NodeEvent]:
    name = f"sbx-{at_s:g}"
    return [
        event(at_s, EventKind.ARRIVED, sandbox_id=name, task=task),
        event(at_s + waited_s, EventKind.READY, sandbox_id=name, task=task, duration_s=waited_s),
    ]


def found(events: list[NodeEvent], task: str = TASK) -> tuple[Diagnosis, dict[str, Finding]]:
    diagnosis = diagnose(sorted(events, key=lambda each: each.at_s), task)
    return diagnosis, {finding.name: finding for finding in diagnosis.findings}


def test_the_example_of_the_report_is_told_as_it_is() -> None:
    """Three ready of twenty, 45/s in, 30/s made, images at 12.3 s: raise the level, look at the images' bandwidth."""
    drained = reading(
        105.0, ready=3, level=20, waiting=20, in_use=800, arrival_rate_per_s=45.0, supply_rate_per_s=30.0,
        hold_time_s=20.0, disk_wait_s=0.34, network_repeated=0.001,
    )  # fmt: skip
    images = [event(101.0, EventKind.IMAGE_LOADED, duration_s=12.3)]
    launches = [event(102.0, EventKind.CREATED, duration_s=0.4) for _ in range(9)]
    diagnosis, named = found([*asked(100.0, 8.0), drained, *images, *launches])
    assert [finding.side for finding in diagnosis.findings] == ["scheduler"] * 4 + ["node"] * 4
    assert named["ready"].text == "3 of 20 wanted, below 10; 20 tasks wait"
    assert named["arrival rate"].text == "45.0/s, more than the 30.0/s that are made or recycled"
    assert named["hold time"].text == "20.0 s"
    assert named["image load, p99"].text == "12.3 s, above 8.0 s"
    assert named["disk wait, worst second"].text == "340 ms"
    wrong = {name for name, finding in named.items() if not finding.is_fine}
    assert wrong == {"ready", "arrival rate", "creation rate", "image load, p99"}
    assert diagnosis.suggestions[0] == "raise the pool's ready level to 170: dsec pool set IMAGE --floor 170"
    assert "bandwidth" in diagnosis.suggestions[1]
    assert len(diagnosis.suggestions) == 2


def test_a_cap_that_is_too_small_for_the_hold_time_is_named_with_what_is_needed() -> None:
    full = reading(100.5, ready=0, level=20, waiting=50, arrival_rate_per_s=10.0, supply_rate_per_s=2.0,
                   hold_time_s=60.0, maximum=100)  # fmt: skip
    diagnosis, named = found([*asked(100.0, 5.0), full])
    assert "600 sandboxes would be in use at once, the pool may hold 100" in named["hold time"].text
    assert diagnosis.suggestions[0].startswith("raise the pool's maximum to 620")


def test_a_slow_disk_a_lossy_network_refusals_and_dirty_recycles_are_each_named() -> None:
    slow = reading(101.0, disk_wait_s=0.9, network_repeated=0.05)
    refused = event(101.0, EventKind.REFUSED, text="the host has 1 B of memory left, the node keeps 256 MiB free")
    dirty = event(101.0, EventKind.NOT_CLEAN, text="mounts that a fresh one has not: /mnt")
    diagnosis, named = found([*asked(100.0, 9.0), slow, refused, dirty])
    assert named["disk wait, worst second"].text == "900 ms, above 500 ms"
    assert named["network, sent again"].text == "5.0% of segments, above 2.0%"
    assert "1 B of memory left" in named["admission"].text
    assert "/mnt" in named["clean check"].text
    told = " ".join(diagnosis.suggestions)
    assert "the disk is the bottleneck" in told
    assert "segments are lost" in told
    assert "another node" in told


def test_without_a_pool_one_is_suggested_when_creations_are_slow() -> None:
    launches = [event(104.0, EventKind.CREATED, duration_s=6.0)]
    diagnosis, named = found([*asked(100.0, 6.5), *launches])
    assert "no pool serves" in named["ready"].text
    assert not named["launch, p99"].is_fine
    assert diagnosis.suggestions[0] == "keep sandboxes ready: dsec pool set IMAGE"


def test_when_all_is_well_nothing_is_suggested() -> None:
    well = reading(100.0, ready=20, level=20, waiting=0, arrival_rate_per_s=1.0, supply_rate_per_s=1.0, hold_time_s=3.0)
    diagnosis, _ = found([*asked(100.0, 0.002), well])
    assert diagnosis.suggestions == ("nothing is beyond its threshold",)
    assert all(finding.is_fine for finding in diagnosis.findings)


def test_only_the_time_in_which_the_task_waited_counts() -> None:
    long_ago = reading(10.0, ready=0, level=20, waiting=99, arrival_rate_per_s=9.0, supply_rate_per_s=1.0)
    later = reading(500.0, ready=0, level=20, waiting=99, arrival_rate_per_s=9.0, supply_rate_per_s=1.0)
    _, named = found([long_ago, *asked(100.0, 1.0), later])
    assert named["ready"].measured is None


def test_other_tasks_are_counted_as_arrivals_and_not_as_the_task() -> None:
    diagnosis, _ = found([*asked(100.0, 1.0), *asked(100.5, 1.0, "other")])
    assert [each.sandbox_id for each in diagnosis.asked] == ["sbx-100"]
    everybody = diagnose([*asked(100.0, 1.0), *asked(102.5, 1.0, "other")])
    assert len(everybody.asked) == 2


def test_what_was_never_answered_or_failed_is_told() -> None:
    events = [
        event(100.0, EventKind.ARRIVED, sandbox_id="sbx-a", task=TASK),
        event(101.0, EventKind.ARRIVED, sandbox_id="sbx-b", task=TASK),
        event(103.0, EventKind.FAILED, sandbox_id="sbx-b", task=TASK, duration_s=2.0, text="host_disk_full: full"),
    ]
    diagnosis = diagnose(events, TASK)
    assert {each.sandbox_id: each.outcome for each in diagnosis.asked} == {
        "sbx-a": "waits",
        "sbx-b": "host_disk_full: full",
    }
    assert diagnosis.end_s == 103.0


def test_an_unknown_task_and_an_empty_memory_are_errors() -> None:
    with pytest.raises(NotFoundError, match="task 'nobody'"):
        diagnose(asked(1.0, 1.0), "nobody")
    with pytest.raises(NotFoundError, match="no event tells of a creation"):
        diagnose([])


def test_a_saved_trace_is_read_back_and_a_broken_line_is_named() -> None:
    events = [*asked(1.0, 0.5), reading(1.0, ready=1, level=2)]
    data = b"\n".join(msgspec.json.encode(each) for each in events) + b"\n\n"
    assert read_trace(data, "events.jsonl") == events
    for broken in (
        b"{",
        b'{"at_s": 1}',
        b'{"at_s": 1, "kind": "dreamt"}',
        b'{"at_s": 1, "kind": "ready", "x": 1}',
        b"\xff",
        b'{"at_s": 1e300, "kind": "ready"}',
        b'{"at_s": -1, "kind": "ready"}',
        b'{"at_s": 1, "kind": "ready", "duration_s": -0.5}',
        b'{"at_s": 1, "kind": "ready", "duration_s": 1e308}',
        b'{"at_s": 1, "kind": "reading", "reading": {"hold_time_s": 1e308}}',
    ):
        with pytest.raises(InvalidRequestError, match=r"events.jsonl, line 5: this is no event"):
            read_trace(data + broken, "events.jsonl")


def test_percentiles_are_values_that_were_seen() -> None:
    assert percentile([], 0.99) is None
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([1.0], 0.99) == 1.0


def test_a_full_host_is_not_told_to_keep_more_ready() -> None:
    drained = reading(100.5, ready=0, level=20, waiting=9, arrival_rate_per_s=10.0, supply_rate_per_s=2.0)
    refused = event(100.2, EventKind.REFUSED, text="the host has 1 B of memory left, the node keeps 256 MiB free")
    diagnosis, _ = found([*asked(100.0, 3.0), drained, refused])
    assert diagnosis.suggestions == ("the host is full: stop sandboxes or use another node",)


def test_creations_that_were_slow_without_a_pool_are_not_called_fine() -> None:
    diagnosis, _ = found(asked(100.0, 9.0))
    assert diagnosis.suggestions == ("keep sandboxes ready: dsec pool set IMAGE",)
