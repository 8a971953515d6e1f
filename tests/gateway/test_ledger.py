"""The ledger: what is written stays, whatever cuts it off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.base.clock import ManualClock
from dsec.base.errors import HostDiskFullError, StateCorruptedError, StateLockedError
from dsec.gateway.ledger import Ledger, is_held, ledger_files, read_attempts
from dsec.gateway.ledger_record import Began, Cost, Ended, Outcome
from dsec.gateway.spending import By, spending, total_spending
from dsec.routing.usage import Count, Usage


def began(number: int, *, episode: str = "e", usd: float = 0.5) -> Began:
    estimate = Usage(plain_input=Count(tokens=100), visible=Count(tokens=50))
    return Began(
        attempt=f"att-{number}", call=f"call-{number // 2}", number=number % 2 + 1, wall_s=1.0, key="k", project="p",
        api="chat", model="m", backend="b", group="m", episode=episode, estimate=estimate, estimated_usd=usd,
    )  # fmt: skip


def ended(number: int, *, outcome: Outcome = Outcome.ANSWERED, usd: float = 0.25) -> Ended:
    usage = Usage(plain_input=Count(tokens=10), visible=Count(tokens=5))
    return Ended(attempt=f"att-{number}", wall_s=2.0, outcome=outcome, usage=usage, cost=Cost(visible=usd))


@contextmanager
def opened(directory: Path, segment_bytes: int = 1 << 20) -> Iterator[Ledger]:
    ledger = Ledger(directory, ManualClock(), segment_bytes=segment_bytes)
    try:
        yield ledger
    finally:
        ledger.close()


def test_an_attempt_without_an_end_reads_as_of_unknown_outcome_with_its_estimate(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger:
        ledger.write(began(1))
        ledger.write(began(2))
        ledger.write(ended(1))
        assert [attempt.began.attempt for attempt in read_attempts(tmp_path)] == ["att-1"]  # The other is under way.
    done, unknown = read_attempts(tmp_path)
    assert done.ended.outcome is Outcome.ANSWERED
    assert (unknown.ended.outcome, unknown.ended.cost.total, unknown.ended.cost.estimated) == (
        Outcome.UNKNOWN,
        0.5,
        True,
    )
    assert unknown.ended.usage.input_tokens == 100


@given(cut=st.integers(1, 400))
@settings(max_examples=30)
def test_a_torn_end_takes_nothing_else_with_it(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    directory = tmp_path_factory.mktemp("ledger")
    with opened(directory) as ledger:
        ledger.write(began(1))
        ledger.write(ended(1))
        ledger.write(began(2))
    (file,) = ledger_files(directory)
    whole = file.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    file.write_bytes(whole[: len(whole) - min(cut, last)])
    with opened(directory) as ledger:
        ledger.write(began(3))
        ledger.write(ended(3))
    assert {attempt.began.attempt for attempt in read_attempts(directory)} == {"att-1", "att-3"}


def test_damage_in_the_middle_is_said(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger:
        ledger.write(began(1))
        ledger.write(ended(1))
    (file,) = ledger_files(tmp_path)
    file.write_bytes(file.read_bytes().replace(b"att-1", b"att-X", 1))
    with pytest.raises(StateCorruptedError, match="line 2"):
        list(read_attempts(tmp_path))


def test_a_full_file_is_followed_by_the_next_and_both_are_read(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1500) as ledger:
        for number in range(20):
            ledger.write(began(number))
            ledger.write(ended(number))
    assert len(ledger_files(tmp_path)) > 3
    assert len(list(read_attempts(tmp_path))) == 20


def test_one_gateway_holds_a_directory_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path):
        assert is_held(tmp_path)
        with pytest.raises(StateLockedError):
            Ledger(tmp_path, ManualClock(), segment_bytes=1 << 20)
    assert not is_held(tmp_path)


def test_sums_count_every_attempt_once(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger:
        for number in range(6):
            ledger.write(began(number, episode=f"e{number // 4}"))
        ledger.write(ended(0, outcome=Outcome.FAILED))
        for number in range(1, 5):
            ledger.write(ended(number))
    found = list(read_attempts(tmp_path))
    rows = {one.name: one for one in spending(found, By.EPISODE)}
    total = total_spending(found)
    assert (rows["e0"].calls, rows["e0"].attempts, rows["e0"].failed) == (2, 4, 1)
    assert (rows["e1"].calls, rows["e1"].unknown, rows["e1"].answered) == (1, 1, 1)
    assert total.usd == pytest.approx(5 * 0.25 + 0.5) == pytest.approx(sum(one.usd for one in rows.values()))
    assert total.estimated_usd == 0.5
    assert total.lost_usd == pytest.approx(0.25 + 0.5)


def test_a_next_file_that_cannot_be_made_is_a_typed_error_and_the_ledger_goes_on_later(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1) as ledger:
        (tmp_path / "ledger-000002.jsonl").mkdir()
        with pytest.raises(HostDiskFullError, match="cannot grow"):
            ledger.write(began(1))
        (tmp_path / "ledger-000002.jsonl").rmdir()
        ledger.write(began(1))
    assert [attempt.began.attempt for attempt in read_attempts(tmp_path)] == ["att-1"]
