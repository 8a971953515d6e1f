"""What is brought beforehand: order, budget, and that it never stands in a read's way."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.units import MIB
from dsec.distribution.prefetch import Piece, Prefetcher, PrefetchSettings, Start, Wait
from dsec.distribution.prefetch_budget import BandwidthMeter, Budget, BudgetSettings

_CHUNK = 4 * MIB
_RICH = PrefetchSettings(budget=BudgetSettings(share=1.0, bandwidth_bytes_s=1e12), at_once=1)


def _pieces(layer: str, *positions: int) -> list[Piece]:
    return [Piece(layer, position, _CHUNK) for position in positions]


class Run:
    """A prefetcher and what came."""

    def __init__(self, settings: PrefetchSettings = _RICH) -> None:
        self.prefetcher = Prefetcher(settings)
        self.here: set[Piece] = set()
        self.now_s = 0.0

    def next(self, waiting_reads: int = 0) -> Start | Wait:
        return self.prefetcher.next(self.now_s, is_here=self.here.__contains__, waiting_reads=waiting_reads)

    def step(self) -> Piece | None:
        """Bring one chunk."""
        decision = self.next()
        if isinstance(decision, Wait):
            return None
        self.prefetcher.done(decision.piece, was_brought=True)
        self.here.add(decision.piece)
        return decision.piece

    def all(self) -> list[Piece]:
        found = []
        while (piece := self.step()) is not None:
            found.append(piece)
        return found


def test_chunks_come_in_the_order_of_the_trace_and_steps_one_after_the_other() -> None:
    run = Run()
    run.prefetcher.begin("box", [_pieces("a", 5, 1), _pieces("b", 0), _pieces("a", 2), _pieces("a", 9)])
    assert run.all() == [*_pieces("a", 5, 1), *_pieces("b", 0), *_pieces("a", 2)], "the window has three steps"
    assert run.prefetcher.progress("box").brought == 4
    assert run.prefetcher.progress("box").is_over


def test_everybody_s_current_step_comes_before_anybody_s_next_one() -> None:
    run = Run()
    run.prefetcher.begin("first", [_pieces("a", 0, 1), _pieces("a", 7)])
    run.prefetcher.begin("second", [_pieces("b", 0, 1)])
    came = run.all()
    assert {piece.layer for piece in came[:2]} == {"a", "b"}, "whoever was served least comes next"
    assert came[-1] == Piece("a", 7, _CHUNK)


def test_sandboxes_of_one_image_share_what_is_brought() -> None:
    run = Run(PrefetchSettings(budget=_RICH.budget, at_once=4))
    run.prefetcher.begin("one", [_pieces("a", 0, 1)])
    run.prefetcher.begin("other", [_pieces("a", 0, 1)])
    started = [run.next(), run.next()]
    assert [each.piece for each in started if isinstance(each, Start)] == _pieces("a", 0, 1)
    assert run.next() == Wait(None, "nothing is wanted")
    for piece in _pieces("a", 0, 1):
        run.prefetcher.done(piece, was_brought=True)
    for owner in ("one", "other"):
        assert run.prefetcher.progress(owner).brought == 2
        assert run.prefetcher.progress(owner).is_over
    assert sum(run.prefetcher.progress(owner).brought_bytes for owner in ("one", "other")) == 2 * _CHUNK


def test_nothing_is_begun_while_a_read_waits() -> None:
    run = Run()
    run.prefetcher.begin("box", [_pieces("a", 0)])
    assert run.next(waiting_reads=1) == Wait(None, "1 reads wait")
    assert isinstance(run.next(), Start)


def test_who_wants_nothing_is_done() -> None:
    run = Run()
    run.prefetcher.begin("box", [[], []])
    assert run.prefetcher.progress("box").is_over


def test_what_is_here_is_passed_over() -> None:
    run = Run()
    run.here.update(_pieces("a", 0, 2))
    run.prefetcher.begin("box", [_pieces("a", 0, 1, 2)])
    assert run.all() == _pieces("a", 1)
    assert run.prefetcher.progress("box").here == 2


def test_a_sandbox_that_stopped_has_nothing_more_brought() -> None:
    run = Run()
    run.prefetcher.begin("box", [_pieces("a", 0, 1)])
    started = run.next()
    assert isinstance(started, Start)
    assert run.prefetcher.stop("box")
    run.prefetcher.done(started.piece, was_brought=True)
    assert run.all() == []
    assert not run.prefetcher.stop("box")


def test_what_cannot_be_had_is_not_tried_again_and_holds_nobody_up() -> None:
    run = Run()
    run.prefetcher.begin("box", [_pieces("a", 0, 1)])
    started = run.next()
    assert isinstance(started, Start)
    run.prefetcher.done(started.piece, was_brought=False)
    assert run.all() == _pieces("a", 1)
    progress = run.prefetcher.progress("box")
    assert (progress.failed, progress.brought, progress.is_over) == (1, 1, True)


def test_a_layer_is_given_up_when_several_of_its_chunks_in_a_row_cannot_be_had() -> None:
    run = Run()
    run.prefetcher.begin("box", [[*_pieces("away", 0, 1, 2, 3), *_pieces("here", 0)], _pieces("away", 4, 5, 6)])
    run.here.update(_pieces("away", 6))
    tried = []
    while isinstance(started := run.next(), Start):
        tried.append(started.piece)
        run.prefetcher.done(started.piece, was_brought=started.piece.layer == "here" or started.piece.position == 0)
    assert tried == [*_pieces("away", 0, 1, 2, 3), *_pieces("here", 0)]
    progress = run.prefetcher.progress("box")
    assert (progress.wanted, progress.here, progress.brought, progress.failed) == (8, 1, 2, 5)
    assert progress.is_over


def test_a_wait_for_the_budget_is_as_long_as_it_has_to_be() -> None:
    settings = PrefetchSettings(budget=BudgetSettings(share=0.25, bandwidth_bytes_s=16 * MIB, burst_s=1.0), at_once=9)
    run = Run(settings)
    run.prefetcher.begin("box", [_pieces("a", 0, 1)])
    assert isinstance(run.next(), Start)
    waited = run.next()
    assert isinstance(waited, Wait)
    assert waited.for_s == pytest.approx(1.0)
    run.now_s += 1.0
    assert isinstance(run.next(), Start)


def test_who_asks_by_hand_may_go_at_full_speed() -> None:
    settings = PrefetchSettings(budget=BudgetSettings(share=0.0), at_once=1, at_once_full_speed=2)
    run = Run(settings)
    run.prefetcher.begin("box", [_pieces("a", 0)])
    assert run.next() == Wait(None, "the budget is spent")
    run.prefetcher.begin("hand", [_pieces("b", 0, 1, 2)], is_limited=False)
    assert isinstance(run.next(), Start)
    assert isinstance(run.next(), Start)
    assert run.next() == Wait(None, "2 are under way")


@given(
    share=st.floats(0.05, 1.0),
    bandwidth=st.floats(1e6, 1e10),
    gaps=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=60),
)
def test_no_more_than_the_share_comes_in_any_stretch_of_time(share: float, bandwidth: float, gaps: list[float]) -> None:
    settings = BudgetSettings(share=share, bandwidth_bytes_s=bandwidth)
    budget, now_s, spent = Budget(settings, BandwidthMeter()), 0.0, [(0.0, 0)]
    for gap in gaps:
        now_s += gap
        while len(spent) < 500 and budget.wait_s(now_s, _CHUNK) <= 0:
            budget.spend(_CHUNK)
            spent.append((now_s, spent[-1][1] + _CHUNK))
    rate = share * bandwidth
    allowed = max(rate * settings.burst_s, _CHUNK)
    for (early_s, before), (late_s, after) in pairwise(spent):
        assert early_s <= late_s
        assert after - before <= _CHUNK
    for start, (start_s, before) in enumerate(spent):
        for end_s, after in spent[start + 1 :]:
            assert after - before <= allowed + rate * (end_s - start_s) * 1.001 + 1


def test_the_bandwidth_is_what_came_while_something_was_under_way() -> None:
    meter = BandwidthMeter()
    meter.began(0.0)
    meter.ended(1.0, 10 * MIB)
    assert meter.bytes_s == 10 * MIB
    meter.began(100.0)
    meter.began(100.0)
    meter.ended(101.0, 20 * MIB)
    assert meter.bytes_s == 20 * MIB, "a pause does not count, and more counts at once"
    meter.ended(102.0, 4 * MIB)
    assert 4 * MIB < meter.bytes_s < 20 * MIB, "less counts by and by"


def test_a_piece_larger_than_the_bucket_still_comes() -> None:
    budget = Budget(BudgetSettings(share=0.3, bandwidth_bytes_s=MIB, burst_s=0.1), BandwidthMeter())
    waits = [budget.wait_s(now_s, _CHUNK) for now_s in (0.0, 5.0, 14.0)]
    assert all(earlier > later for earlier, later in pairwise(waits))
    assert waits[-1] == 0
