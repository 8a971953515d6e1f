"""What the cache of a simulated backend holds, in exact numbers of tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsec.gateway.fake.prefix_store import BLOCK_TOKENS, Found, Part, PrefixStore, block_marks

PREFIX = Part("system", b"p" * 32_000)
MARKED = Part("system", b"p" * 32_000, marked=True)
parts = st.lists(st.builds(Part, st.sampled_from(["user", "assistant"]), st.binary(max_size=300)), max_size=6)


def store(capacity_tokens: int = 100_000, lifetime_s: float | None = None, minimum_tokens: int = 0) -> PrefixStore:
    return PrefixStore(capacity_tokens, lifetime_s, minimum_tokens)


def new(text: bytes) -> Part:
    return Part("user", text * 2000)


def test_a_marked_prefix_is_written_once_and_read_from_then_on() -> None:
    cache = store()
    assert cache.read_and_keep((MARKED, new(b"aaaa")), 0.0) == Found(0, 8000)
    assert cache.read_and_keep((MARKED, new(b"bbbb")), 1.0) == Found(8000, 0)
    assert cache.read_and_keep((PREFIX, new(b"bbbb")), 1.0) == Found(0, 0)


def test_a_longer_prefix_reads_the_shorter_one_and_writes_the_rest() -> None:
    cache = store()
    cache.read_and_keep((MARKED,), 0.0)
    more = Part("user", b"m" * 400, marked=True)
    assert cache.read_and_keep((MARKED, more), 0.0) == Found(8000, 100)
    assert cache.held_tokens == 8100


def test_an_automatic_cache_finds_whole_blocks_and_never_all() -> None:
    cache = store()
    assert cache.read((PREFIX, new(b"aaaa")), 0.0) == Found(0, 0)
    cache.keep((PREFIX, new(b"aaaa")), 0.0)
    assert cache.read((PREFIX, new(b"bbbb")), 0.0).read == 8000
    assert cache.read((PREFIX,), 0.0).read == 8000 - BLOCK_TOKENS


def test_what_was_not_used_for_its_lifetime_is_gone() -> None:
    cache = store(lifetime_s=300.0)
    cache.read_and_keep((MARKED,), 0.0)
    assert cache.read_and_keep((MARKED,), 299.0) == Found(8000, 0)
    assert cache.read_and_keep((MARKED,), 598.0) == Found(8000, 0)
    assert cache.read_and_keep((MARKED,), 900.0) == Found(0, 8000)


def test_short_prefixes_are_not_kept() -> None:
    cache = store(minimum_tokens=8001)
    assert cache.read_and_keep((MARKED,), 0.0) == Found(0, 0)
    assert cache.held_tokens == 0


@given(st.lists(parts, max_size=8), st.integers(0, 200))
def test_it_never_holds_more_than_it_can_nor_finds_more_than_a_prompt_has(
    prompts: list[list[Part]], capacity: int
) -> None:
    cache = store(capacity)
    for prompt in prompts:
        found = cache.read(prompt, 0.0)
        assert 0 <= found.read <= sum(part.tokens for part in prompt)
        cache.keep(prompt, 0.0)
        assert cache.held_tokens <= capacity


@given(parts, parts)
def test_prompts_share_marks_exactly_as_far_as_they_are_equal(first: list[Part], rest: list[Part]) -> None:
    before = block_marks(first)
    assert block_marks([*first, *rest])[: len(before)] == before
