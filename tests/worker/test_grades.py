"""Grades outlive whoever gave them, and the last one counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.base.errors import InvalidRequestError, StateCorruptedError
from dsec.episode.spec import EpisodeGrade
from dsec.worker.grades import GRADES_NAME, GradeBook, read_grades

PASSED, FAILED = EpisodeGrade(passed=True, reward=0.5, by="tests"), EpisodeGrade(passed=False)


@pytest.mark.anyio
async def test_the_last_grade_of_an_episode_counts_also_after_reopening(tmp_path: Path) -> None:
    with GradeBook(tmp_path) as book:
        assert book.get("ep-a") is None
        await book.grade("ep-a", FAILED, at_s=1.0)
        await book.grade("ep-a", PASSED, at_s=2.0)
        await book.grade("ep-b", FAILED, at_s=3.0)
        assert read_grades(tmp_path / GRADES_NAME) == {"ep-a": PASSED, "ep-b": FAILED}
    with GradeBook(tmp_path) as book:
        assert (book.get("ep-a"), book.get("ep-b")) == (PASSED, FAILED)


@pytest.mark.anyio
async def test_a_torn_grade_was_never_given_and_damage_is_an_error(tmp_path: Path) -> None:
    with GradeBook(tmp_path) as book:
        await book.grade("ep-a", PASSED, at_s=1.0)
        await book.grade("ep-a", FAILED, at_s=2.0)
    path = tmp_path / GRADES_NAME
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert read_grades(path) == {"ep-a": PASSED}
    with GradeBook(tmp_path) as book:
        assert book.get("ep-a") == PASSED
    path.write_bytes(b"x" + whole)
    with pytest.raises(StateCorruptedError, match="line 1"):
        read_grades(path)


@pytest.mark.anyio
async def test_only_episodes_are_graded(tmp_path: Path) -> None:
    assert read_grades(tmp_path / GRADES_NAME) == {}
    with GradeBook(tmp_path) as book:
        with pytest.raises(InvalidRequestError, match="not an episode id"):
            await book.grade("../../etc", PASSED, at_s=1.0)
        assert book.get("../../etc") is None
