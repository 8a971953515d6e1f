"""What a way of keeping images saves, and how a length is drawn up from a sample."""

from __future__ import annotations

import random
import zlib

import pytest

from dsec.bench.dedup import _Gzip, _Way
from dsec.bench.dedup_images import BUILDS, TOOLS, RelatedImage


def test_what_images_share_counts_once() -> None:
    way = _Way("x", {"base": {"a": 60, "b": 20}, "old": {"c": 10, "d": 10}, "new": {"c": 10, "e": 10}})
    images = [RelatedImage("one", ("base", "old")), RelatedImage("two", ("base", "new"))]
    assert (way.alone(images), way.together(images)) == (200, 110)
    assert way.saved(images) == pytest.approx(0.45)


def test_a_length_that_is_drawn_up_is_near_the_real_one() -> None:
    chance = random.Random(1)
    words = [chance.randbytes(chance.randrange(3, 9)) for _ in range(3000)]
    gzip, data = _Gzip(), b"".join(chance.choice(words) for _ in range(1 << 20))
    for start in range(0, len(data), 100_000):
        gzip.write(data[start : start + 100_000])
    assert 0.9 < gzip.length() / len(zlib.compress(data, 6)) < 1.1
    small = _Gzip()
    small.write(b"some")
    assert small.length() == len(zlib.compress(b"some", 6))


def test_each_kind_of_tools_says_what_each_build_has() -> None:
    assert len(TOOLS) * BUILDS == 20
    assert all(len(versions) == BUILDS for kind in TOOLS.values() for versions in kind)
