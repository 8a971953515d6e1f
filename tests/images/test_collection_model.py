"""No interleaving of who collects, publishes, pulls and unpublishes loses anything, and each rule is needed for that.

A normal run looks at the nearest states from each beginning; `DSEC_MODEL_STATES` says how many from each.
"""

from __future__ import annotations

import inspect
import itertools
import os
import types

import pytest

from dsec.images.lazy.collection import rules
from dsec.images.lazy.collection.objects import TombstoneState
from dsec.testing.collection_model import GRACE, WINDOW, Collector, Model, Publisher, World

_STATES = int(os.environ.get("DSEC_MODEL_STATES", "6000"))
_LOOK = Publisher("look")
_OLD = (TombstoneState.DOOMED, GRACE)
_SENT = Collector(0, "Delete sent", left=WINDOW // 2)
BEGINNINGS = {
    "nothing is known of the chunk": World(publisher=_LOOK),
    "it may be relied on for the last time": World(mark=(TombstoneState.DOOMED, GRACE // 2 - 1), publisher=_LOOK),
    "it will be due at once": World(mark=(TombstoneState.DOOMED, GRACE - 1), publisher=_LOOK),
    "it is due": World(mark=_OLD, publisher=_LOOK),
    "it is due, and its publisher stood still": World(mark=_OLD, publisher=Publisher("confirm", looked=GRACE // 4)),
    "a collector stands still that will delete it": World(mark=_OLD, first=Collector(0, "Delete"), publisher=_LOOK),
    "two deletions are on their way": World(mark=_OLD, first=_SENT, second=_SENT, publisher=_LOOK),
    "it is published, and was doomed": World(
        mark=_OLD, is_document=True, is_published=True, may_unpublish=True, publisher=_LOOK
    ),
    "it is published and pulled": World(is_document=True, is_published=True, may_unpublish=True, puller=0),
}
"""Places to begin from; those in the middle are reached from the first, too, by longer ways."""

_RELY_DOOMED = "        return age_s < grace_s / 2\n    return tombstone.state"
LOSING = {
    "due after half of the grace period": ("- tombstone.since_s >= grace_s", "- tombstone.since_s >= grace_s / 2"),
    "old dooms are forgotten": ("return age_s < grace_s / 2 if", "return True if"),
    "what was kept is forgotten at once": ("age_s >= 2 * window_s(grace_s)", "age_s >= 0"),
    "publishers rely until it is due": (_RELY_DOOMED, _RELY_DOOMED.replace(" / 2", "")),
    "publishers rely on what is deleted": (
        "return tombstone.state is TombstoneState.KEPT and",
        "return tombstone.state is TombstoneState.DELETED or",
    ),
    "publishers rely at once on what was kept": ("KEPT and age_s >= window_s(grace_s)", "KEPT and age_s >= 0"),
    "what is needed is deleted": ("            if part in view.reachable:", "            if False:"),
}
"""Rules that are weaker than the real ones by one condition, under which something is lost."""
STANDING = {
    "nothing is doomed": ("        if is_old and", "        if False and"),
    "nothing is due": ("is TombstoneState.DOOMED and now_s -", "is TombstoneState.KEPT and now_s -"),
    "tombstones stay": ("else age_s >= 2 * window_s(grace_s)", "else False"),
}
"""Rules under which something stays for ever."""
WAITING = {"nobody relies on what was kept": ("KEPT and age_s >= window_s(grace_s)", "KEPT and False")}
"""Rules under which publishers wait for ever."""


def _weakened(text: str, other: str) -> types.ModuleType:
    source = inspect.getsource(rules)
    assert source.count(text) == 1, "the rule reads otherwise now: say here how it is weakened"
    module = types.ModuleType("weakened_rules")
    # Values are made by the real module's classes, and looked up by name where this one's are defined.
    module.__dict__.update(rules.__dict__, __name__=rules.__name__)
    exec(compile(source.replace(text, other), "weakened_rules", "exec"), module.__dict__)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_no_interleaving_loses_anything(beginning: str) -> None:
    found = Model().explore(BEGINNINGS[beginning], _STATES)
    assert found.way == ()


@pytest.mark.slow
@pytest.mark.parametrize("weakness", LOSING)
def test_without_any_of_the_rules_something_is_lost(weakness: str) -> None:
    model = Model(_weakened(*LOSING[weakness]))
    assert any(model.explore(beginning, 3000).way for beginning in BEGINNINGS.values())


@pytest.mark.slow
@pytest.mark.parametrize("model", [Model(judges_by_view=False), Model(reads_again=False)], ids=["by now", "unread"])
def test_a_collector_that_stood_still_reads_again_and_judges_by_its_view(model: Model) -> None:
    beginning = BEGINNINGS["a collector stands still that will delete it"]
    assert model.explore(beginning, 8000).way


def _places() -> list[World]:
    """Whatever the store may hold of a chunk that nobody needs."""
    ages = (0, WINDOW, GRACE // 2, GRACE)
    marks = [None, *itertools.product(TombstoneState, ages)]
    return [World(mark=mark, age=age) for mark in marks for age in (None, 0, GRACE)]


def test_what_nobody_needs_goes_and_publishers_end_wherever_they_begin() -> None:
    model = Model()
    assert all(model.settles(place) for place in _places())
    assert all(model.ends(place) for place in _places())


@pytest.mark.parametrize("weakness", STANDING)
def test_without_any_of_the_rules_something_stays(weakness: str) -> None:
    model = Model(_weakened(*STANDING[weakness]))
    assert not all(model.settles(place) for place in _places())


@pytest.mark.parametrize("weakness", WAITING)
def test_without_any_of_the_rules_publishers_wait_for_ever(weakness: str) -> None:
    model = Model(_weakened(*WAITING[weakness]))
    assert not all(model.ends(place) for place in _places())
