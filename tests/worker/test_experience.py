"""What recoveries came to is kept by episode, and the last word on an episode counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.base.errors import StateCorruptedError
from dsec.episode.failure_kinds import FailureKind
from dsec.episode.recovery_experience import Step, StepTaken
from dsec.worker import experience
from dsec.worker.experience import EXPERIENCE_NAME, ExperienceBook, read_experience

pytestmark = pytest.mark.anyio

CHECK = FailureKind.CHECK_FAILED
GOOD = StepTaken(step=Step.REPAIR, model="m", after=CHECK, time_s=2.0)
BAD = StepTaken(step=Step.REPAIR, model="m", after=CHECK, failed=CHECK, time_s=2.0)


async def test_what_was_learned_is_there_after_reopening_and_a_new_grade_replaces_it(tmp_path: Path) -> None:
    with ExperienceBook(tmp_path, prior_weight=0.0) as book:
        await book.learn("ep-a", (GOOD,))
        await book.learn("ep-b", (GOOD, BAD))
        await book.learn("ep-b", (GOOD, BAD))
        assert book.experience.estimate(Step.REPAIR, CHECK, "m").passes == pytest.approx(2 / 3)
        await book.learn("ep-a", (BAD,))
        assert book.experience.estimate(Step.REPAIR, CHECK, "m").passes == pytest.approx(1 / 3)
    assert len((tmp_path / EXPERIENCE_NAME).read_bytes().splitlines()) == 3
    with ExperienceBook(tmp_path, prior_weight=0.0) as book:
        assert book.experience.estimate(Step.REPAIR, CHECK, "m").passes == pytest.approx(1 / 3)
    read = read_experience(tmp_path / EXPERIENCE_NAME, prior_weight=0.0)
    assert read.tries(Step.REPAIR, CHECK) == 3


async def test_damage_is_an_error_that_says_the_file_can_go(tmp_path: Path) -> None:
    with ExperienceBook(tmp_path) as book:
        await book.learn("ep-a", (GOOD,))
    path = tmp_path / EXPERIENCE_NAME
    path.write_bytes(b"{}\n" + path.read_bytes())
    with pytest.raises(StateCorruptedError):
        read_experience(path)
    assert read_experience(tmp_path / "none").tries(Step.REPAIR, CHECK) == 0


async def test_of_very_many_episodes_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experience, "MAXIMUM_EPISODES", 3)
    with ExperienceBook(tmp_path) as book:
        for number in range(6):
            await book.learn(f"ep-{number}", (GOOD,))
        await book.learn("ep-0", (BAD,))
    with ExperienceBook(tmp_path, prior_weight=0.0) as book:
        # Those that were learned last are episodes 4, 5 and, anew, 0.
        assert book.experience.tries(Step.REPAIR, CHECK) == 3
        assert book.experience.estimate(Step.REPAIR, CHECK, "m").passes == pytest.approx(2 / 3)
    assert len((tmp_path / EXPERIENCE_NAME).read_bytes().splitlines()) == 3
