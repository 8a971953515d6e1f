"""Tasks keep their scheduler: shards are even, and as few move as can."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.placement.hashing import hash64, jump
from dsec.placement.shards import ShardTable, first_table, newer_table, rebalanced, shard_of

INSTANCES = st.sets(st.integers(0, 40).map(lambda number: f"scheduler-{number}"), min_size=1, max_size=12)


def counts(table: ShardTable, instances: set[str]) -> list[int]:
    return [len(table.owned_by(instance)) for instance in instances]


def moved(before: ShardTable, after: ShardTable) -> set[int]:
    return {shard for shard, owner in enumerate(before.owners) if after.owners[shard] != owner}


def fewest_moves(before: ShardTable, instances: set[str]) -> int:
    """How many shards must move for the result to be even, by counting alone."""
    shards, least = len(before.owners), len(before.owners) // len(instances)
    kept = sorted((len(before.owned_by(instance)) for instance in instances), reverse=True)
    larger = shards - least * len(instances)
    targets = [least + 1] * larger + [least] * (len(instances) - larger)
    return shards - sum(min(have, target) for have, target in zip(kept, targets, strict=True))


@given(INSTANCES, INSTANCES)
def test_shards_stay_even_and_as_few_move_as_must(before: set[str], after: set[str]) -> None:
    table = first_table(before)
    assert counts(table, before) == [4] * len(before)
    changed = rebalanced(table, after)
    assert max(counts(changed, after)) - min(counts(changed, after)) <= 1
    assert sum(counts(changed, after)) == len(table.owners)
    assert len(moved(table, changed)) == fewest_moves(table, after)


@given(INSTANCES.filter(lambda instances: len(instances) > 1), st.data())
def test_a_loss_moves_the_lost_shards_and_no_others(instances: set[str], data: st.DataObject) -> None:
    table = first_table(instances)
    lost = data.draw(st.sampled_from(sorted(instances)))
    changed = rebalanced(table, instances - {lost})
    assert moved(table, changed) == set(table.owned_by(lost))
    assert changed.epoch == table.epoch + 1


def test_a_lost_instance_is_shared_out_among_as_many_as_it_had_shards() -> None:
    instances = {f"s{number}" for number in range(8)}
    table = first_table(instances)
    changed = rebalanced(table, instances - {"s3"})
    assert len({changed.owners[shard] for shard in table.owned_by("s3")}) == 4


@given(INSTANCES, st.text(max_size=30))
def test_a_task_moves_only_with_its_shard(instances: set[str], task_id: str) -> None:
    table = first_table(instances | {"other"})
    changed = rebalanced(table, instances)
    if table.owners[shard_of(task_id, len(table.owners))] in instances - {"other"}:
        same = shard_of(task_id, len(table.owners)) not in moved(table, changed)
        assert same == (table.owner_of(task_id) == changed.owner_of(task_id))


@given(INSTANCES)
def test_nothing_moves_when_nothing_changed(instances: set[str]) -> None:
    table = first_table(instances)
    assert rebalanced(table, instances) is table


@pytest.mark.slow
@given(INSTANCES, INSTANCES)
def test_everybody_computes_the_same_table(before: set[str], after: set[str]) -> None:
    one = rebalanced(first_table(before), sorted(after))
    other = rebalanced(first_table(sorted(before, reverse=True)), sorted(after, reverse=True))
    assert one == other


@pytest.mark.slow
@given(INSTANCES, INSTANCES, INSTANCES)
def test_two_sides_of_a_partition_agree_on_one_table(everybody: set[str], left: set[str], right: set[str]) -> None:
    table = first_table(everybody)
    one, other = rebalanced(table, left), rebalanced(table, right)
    agreed = newer_table(one, other)
    assert agreed == newer_table(other, one)
    assert newer_table(agreed, agreed) == agreed
    assert newer_table(newer_table(one, table), other) == newer_table(one, newer_table(table, other))


@given(st.integers(0, 2**64 - 1), st.integers(1, 300))
def test_more_shards_take_tasks_only_to_the_new_ones(key: int, buckets: int) -> None:
    before, after = jump(key, buckets), jump(key, buckets + 1)
    assert 0 <= before < buckets
    assert after in (before, buckets)


def test_tasks_are_spread_evenly_over_shards() -> None:
    shards, tasks = 32, 32_000
    filled = [0] * shards
    for number in range(tasks):
        filled[shard_of(f"task-{number}", shards)] += 1
    mean = tasks / shards
    # Six standard deviations of a fair draw.
    assert all(abs(count - mean) < 6 * math.sqrt(mean) for count in filled)


def test_hashes_are_the_same_on_every_host() -> None:
    assert hash64("task", "task-789") == 0xEED1CF9B4A57FD6D
    assert hash64("ab", "c") != hash64("a", "bc")


@pytest.mark.parametrize("instances", [[], ()])
def test_no_instances_are_refused(instances: list[str]) -> None:
    with pytest.raises(InvalidRequestError):
        first_table(instances)
    with pytest.raises(InvalidRequestError):
        rebalanced(first_table(["a"]), instances)


def test_a_shard_without_an_owner_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        ShardTable(owners=("a", ""))
