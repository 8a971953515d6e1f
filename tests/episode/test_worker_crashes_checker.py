"""The judge of histories is judged: it accepts a good one, and finds each promise that is broken on purpose."""

from __future__ import annotations

import ast
import copy
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsec.testing import episode_bytes, episode_checker
from dsec.testing.episode_bytes import read_log
from dsec.testing.episode_checker import Claim, Effect, History, Reported, check_history

Event = dict[str, Any]
NAME = "0000000001-000001.jsonl"


def framed(document: Event) -> bytes:
    data = json.dumps(document, separators=(",", ":")).encode()
    return data[:-1] + f',"crc32":"{zlib.crc32(data):08x}"}}\n'.encode()


def segment(events: list[Event], *, first: int = 1, epoch: int = 1, previous: str = "", whole: bool = False) -> bytes:
    head: Event = {"event": "segment", "version": 1, "episode": "ep-x", "epoch": epoch, "first": first}
    head |= {"previous": previous} if previous else {}
    head |= {"events": len(events)} if whole else {}
    return b"".join(framed(document) for document in [head, *events])


def operation(name: str, kind: str) -> Event:
    call = {"tool": "outside", "name": kind}
    # The format leaves the default out: an operation that names no kind of effect is of the kind *once*.
    return {"operation_id": name, "call": call} | ({} if kind == "once" else {"effect": kind})


def answered(name: str) -> Event:
    return {"result": "answered", "content": {"text": name}}


def decided(number: int, decision: Event) -> Event:
    return {"event": "decided", "number": number, "decision": decision}


def running(name: str, attempt: int = 1) -> Event:
    return {"event": "running", "number": 1, "operations": [name]} | ({"attempt": attempt} if attempt > 1 else {})


def finished(name: str) -> Event:
    return {"event": "finished", "number": 1, "operation": name, "result": answered(name)}


def committed(number: int, decision: Event) -> Event:
    results = [
        {"result": "wrote", "size_bytes": 3} if each.get("effect") == "workspace" else answered(each["operation_id"])
        for each in decision["operations"]
    ]
    return {"event": "round", "record": {"number": number, "decision": decision, "results": results}}


KINDS = ("once", "asked", "deduplicated", "compensated")
FIRST = {"operations": [operation(f"r1.{kind}", kind) for kind in (*KINDS, "workspace")]}
SECOND = {"operations": [operation("r2.workspace", "workspace"), operation("r2.none", "none")]}
LIFE = {"event": "life", "worker": "wrk-1"}


def good_events() -> list[Event]:
    """One life and its death in the middle of the operation that was undone, then another life."""
    events: list[Event] = [{"event": "began", "identity": {"episode_id": "ep-x"}}, LIFE, decided(1, FIRST)]
    for kind in KINDS[:3]:
        events += [running(f"r1.{kind}"), finished(f"r1.{kind}")]
    events += [running("r1.compensated"), LIFE, running("r1.compensated", 2), finished("r1.compensated")]
    return copy.deepcopy([*events, committed(1, FIRST), committed(2, SECOND), {"event": "ended", "reason": "done"}])


def history(events: list[Event], **more: Any) -> History:
    effects = [Effect(operation=f"r1.{kind}") for kind in KINDS]
    effects[3:] = [Effect(operation="r1.compensated", by=by) for by in (1, -1, 1)]
    known: dict[str, Any] = {
        "disk": {NAME: segment(events), "epoch-000001": b"{}"},
        "effects": effects,
        "told": list(enumerate(events, start=1)),
        "ended": events[-1]["event"] == "ended",
        "files": ["r1.workspace", "r2.workspace"],
    }
    return History(**{**known, **more})


def test_a_good_history_is_accepted() -> None:
    assert check_history(history(good_events())) == []


def test_the_judge_shares_nothing_with_what_it_judges() -> None:
    for module in (episode_bytes, episode_checker):
        tree = ast.parse(Path(module.__file__).read_text())
        named = {
            node.module or "" if isinstance(node, ast.ImportFrom) else name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in node.names
        }
        assert {name for name in named if name.startswith("dsec")} <= {"dsec.testing.episode_bytes"}


# -- what is on the disk, and what was told ----------------------------------------------------------------------------


def edited(edit: Callable[[list[Event]], Any], **more: Any) -> History:
    """A history whose log and trainer agree on something wrong."""
    events = good_events()
    edit(events)
    return history(events, **more)


def at(events: list[Event], kind: str, **fields: Any) -> int:
    return next(n for n, each in enumerate(events) if each["event"] == kind and fields.items() <= each.items())


def lost_end() -> History:
    events = good_events()
    return history(events, disk={NAME: segment(events[:-2])})


def changed_round() -> History:
    events = good_events()
    told = copy.deepcopy(list(enumerate(events, start=1)))
    told[-2][1]["record"]["decision"]["message"] = "something else"
    return history(events, told=told)


def damaged_line() -> History:
    events = good_events()
    data = bytearray(segment(events))
    data[len(data) // 2] ^= 1
    return history(events, disk={NAME: bytes(data)})


def missing_segment() -> History:
    events = good_events()
    last = f"{len(events):010}-000001.jsonl"
    return history(events, disk={NAME: segment(events[:4]), last: segment(events[-1:], first=len(events))})


def cut_by_a_newer_epoch() -> History:
    events = good_events()
    return history(events, disk={NAME: segment(events), "0000000005-000002.jsonl": segment([], first=5, epoch=2)})


def insert_before(kind: str, *inserted: Event, **fields: Any) -> Callable[[list[Event]], None]:
    def edit(events: list[Event]) -> None:
        place = at(events, kind, **fields)
        events[place:place] = inserted

    return edit


def delete(kind: str, **fields: Any) -> Callable[[list[Event]], None]:
    def edit(events: list[Event]) -> None:
        del events[at(events, kind, **fields)]

    return edit


def change_result(events: list[Event]) -> None:
    events[at(events, "round")]["record"]["results"][0] = answered("something else")


def no_results(events: list[Event]) -> None:
    events[at(events, "round")]["record"]["results"] = []


ONCE = "r1.once"
LOGS: dict[str, tuple[Callable[[], History], str]] = {
    "an acknowledged end is lost": (lost_end, "was told and is lost"),
    "a round is not what was told": (changed_round, "was told as"),
    "a line is damaged": (damaged_line, "not whole"),
    "a segment is missing": (missing_segment, "is lost"),
    "a writer that was succeeded still acknowledged": (cut_by_a_newer_epoch, "is lost"),
    "an operation was not announced": (lambda: edited(delete("running", operations=["r1.asked"])), "never began"),
    "a round is missing": (lambda: edited(delete("round")), "follows round 0"),
    "a round has other results": (lambda: edited(change_result), "has two results"),
    "a round has no results": (lambda: edited(no_results), "0 results of 5"),
    "an operation has a second result": (
        lambda: edited(insert_before("round", finished(ONCE))),
        "a second result",
    ),
    "an operation with a result begins again": (
        lambda: edited(insert_before("round", running(ONCE, 2))),
        "although it has a result",
    ),
    "an unknown operation begins again": (
        lambda: edited(insert_before("finished", LIFE, running(ONCE, 2), operation=ONCE)),
        "nobody knows what became of it",
    ),
    "an unknown operation has a result from nowhere": (
        lambda: edited(insert_before("finished", LIFE, operation=ONCE)),
        "in a life of the loop in which it did not begin",
    ),
    "an attempt begins twice": (
        lambda: edited(insert_before("finished", LIFE, running("r1.asked"), operation="r1.asked")),
        "begins twice",
    ),
    "a verdict nobody asked for": (
        lambda: edited(insert_before("round", {"event": "settled", "number": 1, "operation": ONCE, "verdict": "x"})),
        "was not unknown",
    ),
    "an open round is given up": (
        lambda: edited(insert_before("finished", {"event": "abandoned", "number": 1}, operation=ONCE)),
        "given up while nobody knows",
    ),
    "a round is decided twice": (lambda: edited(insert_before("round", decided(1, FIRST))), "out of turn"),
    "something follows the end": (lambda: edited(lambda events: events.append(LIFE)), "follows the end"),
    "an end that was told is not there": (
        lambda: edited(lambda events: events.pop(), ended=True),
        "the end was told",
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_broken_log_is_found(name: str) -> None:
    made, expected = LOGS[name]
    assert any(expected in problem for problem in check_history(made())), check_history(made())


def test_a_watcher_that_misses_or_repeats_an_event_is_found() -> None:
    told = list(enumerate(good_events(), start=1))
    assert any("comes next" in problem for problem in check_history(history(good_events(), told=told[:3] + told[4:])))
    assert any("comes next" in problem for problem in check_history(history(good_events(), told=[*told, told[-1]])))


# -- the world ---------------------------------------------------------------------------------------------------------


EFFECTS: dict[str, tuple[Callable[[list[Effect]], Any], str]] = {
    "twice": (lambda effects: effects.append(Effect(operation=ONCE)), "in effect 2 times"),
    "twice, in between": (lambda effects: effects.pop(4), "in effect 2 times"),
    "never": (lambda effects: effects.pop(0), "in effect 0 times"),
    "undone": (lambda effects: effects.append(Effect(operation=ONCE, by=-1)), "not of the kind"),
    "undone before it happened": (
        lambda effects: effects.insert(0, Effect(operation="r1.compensated", by=-1)),
        "had not happened",
    ),
    "undecided": (lambda effects: effects.append(Effect(operation="r9.once")), "nothing says that it was decided"),
}


@pytest.mark.parametrize("name", EFFECTS)
def test_an_effect_that_should_not_be_is_found(name: str) -> None:
    edit, expected = EFFECTS[name]
    good = history(good_events())
    effects = list(good.effects)
    edit(effects)
    problems = check_history(history(good_events(), effects=effects))
    assert any(expected in problem for problem in problems), problems


def test_an_effect_without_an_announcement_on_the_disk_is_found() -> None:
    events = good_events()[:3]
    problems = check_history(history(events, effects=[Effect(operation=ONCE)], files=None))
    assert any("no announcement says so" in problem for problem in problems), problems


@pytest.mark.parametrize("files", [[], ["r1.workspace"], ["r2.workspace", "r1.workspace"], ["r1.workspace"] * 2])
def test_a_workspace_that_is_not_what_the_rounds_say_is_found(files: list[str]) -> None:
    assert any("the workspace holds" in problem for problem in check_history(history(good_events(), files=files)))


# -- what is unknown ---------------------------------------------------------------------------------------------------


def reported(events: list[Event], *names: str) -> list[str]:
    log = {NAME: segment(events)}
    return check_history(history(good_events(), reported=[Reported(operations=names, log=log)]))


def test_unknown_is_said_of_an_operation_that_began_and_has_no_result() -> None:
    begun = good_events()[:4]
    assert reported(begun, ONCE) == []
    for names in ((), (ONCE, "r1.asked"), ("r1.asked",)):
        assert any("called unknown" in problem for problem in reported(begun, *names)), names


@pytest.mark.parametrize("length", [2, 3, 5, 6, 12])
def test_unknown_is_said_of_nothing_else(length: int) -> None:
    """Before it is decided, before it begins, once it has a result, of another kind, and in a committed round."""
    assert any("called unknown" in problem for problem in reported(good_events()[:length], ONCE))


def test_nothing_is_unknown_where_nothing_died() -> None:
    known = Reported(operations=(ONCE,), log={NAME: segment(good_events()[:4])})
    assert any(
        "nothing died" in each for each in check_history(history(good_events(), reported=[known], crashed=False))
    )


# -- the store ---------------------------------------------------------------------------------------------------------


def objects() -> dict[str, bytes]:
    events = good_events()
    return {
        "episodes/ep-x/log/0000000001-000001.jsonl": segment(events[:5], whole=True),
        "episodes/ep-x/log/0000000006-000001.jsonl": segment(events[5:9], first=6, whole=True),
        "episodes/ep-x/log/0000000010-000002.jsonl": segment(events[9:], first=10, epoch=2, whole=True),
        "episodes/ep-x/watermark.json": b"{}",
    }


def claimed(word: str, rounds: int, lying_there: dict[str, bytes]) -> list[str]:
    return check_history(history(good_events(), claims=[Claim(word=word, rounds=rounds, objects=lying_there)]))


def test_a_whole_copy_may_be_called_complete() -> None:
    assert read_log(objects()).has_ended
    assert claimed("complete", 2, objects()) == []
    assert claimed("incomplete", 0, objects()) == []


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_gap_that_is_called_complete_is_found(missing: int) -> None:
    left = objects()
    del left[sorted(left)[missing]]
    assert any("called complete" in problem for problem in claimed("complete", 0, left))
    if missing < 2:
        assert any("called open" in problem for problem in claimed("open", 0, left))
    assert claimed("incomplete", 0, left) == []


def test_a_short_object_that_is_called_complete_is_found() -> None:
    left = objects()
    name = "episodes/ep-x/log/0000000006-000001.jsonl"
    left[name] = left[name][: len(left[name]) // 2]
    assert any("called complete" in problem for problem in claimed("complete", 2, left))


def test_rounds_that_are_not_proven_are_found() -> None:
    left = objects()
    del left["episodes/ep-x/log/0000000010-000002.jsonl"]
    assert any("2 rounds" in problem for problem in claimed("incomplete", 2, left))


def test_a_watermark_that_promises_what_is_not_there_is_found() -> None:
    left = objects()
    assert check_history(history(good_events(), watermarks=[(15, left)])) == []
    del left["episodes/ep-x/log/0000000010-000002.jsonl"]
    assert check_history(history(good_events(), watermarks=[(9, left)])) == []
    problems = check_history(history(good_events(), watermarks=[(10, left)]))
    assert any("the watermark promises event 10" in problem for problem in problems)
