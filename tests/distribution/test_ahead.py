"""Whom to name for chunks that are asked for ahead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsec.distribution.ahead import share_out

_CHUNKS = st.integers(0, 20).map(str)


@given(
    st.lists(_CHUNKS, unique=True),
    st.dictionaries(st.sampled_from("abcdef"), st.frozensets(_CHUNKS)),
    st.dictionaries(_CHUNKS, st.lists(st.sampled_from("xyz"), unique=True)),
    st.integers(1, 4),
)
def test_each_chunk_is_given_to_who_has_it_and_nobody_to_more_than_he_must(
    wanted: list[str], peers: dict[str, frozenset[str]], others: dict[str, list[str]], most: int
) -> None:
    shared, given_to = share_out(wanted, list(peers.items()), lambda chunk: others.get(chunk, []), most)
    assert [chunk for chunk, _ in shared] == [
        chunk for chunk in wanted if any(chunk in has for has in peers.values()) or others.get(chunk)
    ]
    counts = dict.fromkeys([*peers, *"xyz"], 0)
    for chunk, named in shared:
        having = [peer for peer, has in peers.items() if chunk in has] or others[chunk]
        assert len(named) == len(set(named)) == min(most, len(having))
        assert set(named) <= set(having)
        assert counts[named[0]] == min(counts[peer] for peer in having)
        counts[named[0]] += 1
    assert {peer: count for peer, count in counts.items() if count} == given_to


def test_the_better_one_of_equals_comes_first() -> None:
    shared, _ = share_out("1234", [("a", frozenset("1234")), ("b", frozenset("1234"))], lambda _: [], 2)
    assert [named for _, named in shared] == [["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"]]
