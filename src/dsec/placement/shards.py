"""Which scheduler instance places which task.

A task belongs to a shard by consistent hashing of its id, and a shard belongs to an instance by a table. Two steps,
since each alone lacks something:

- A ring of instances (Karger and others, STOC 1997) with four points each is uneven: the fullest of eight instances
  gets about twice its share. Hundreds of points would even it out, and on a loss would scatter the tasks over
  everybody.
- Jump hashing (`dsec.placement.hashing.jump`) is even and moves the fewest keys when buckets are *added*, but cannot
  lose one in the middle.

So tasks jump to one of a fixed number of shards, four for each instance at the beginning, and the table says who owns
each. When an instance is lost, the others take over its four shards, each by another instance where there are as
many; when one comes, it gets shards from the fullest until no two instances differ by more than one. Nothing else
moves: this is consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2018) with the tightest
bound, at the price of a table that instances must agree on.

They agree by gossip: a table has an epoch, the higher epoch wins, and of two with the same epoch (made on two sides
of a partition) the one with the greater hash. Until they agree, two may own one shard. That is safe: both place by
the same rule, the sandbox id is the key of idempotency, and `dsec.placement.duplicates` clears up what exists twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from dsec.base.errors import InvalidRequestError
from dsec.model.value import Value
from dsec.placement.hashing import hash64, jump

SHARDS_PER_INSTANCE = 4
"""From the training report: small enough a table, and a lost instance's work goes to up to four others."""

_LONGEST_NAME = 255


class ShardTable(Value, frozen=True):
    """Who owns which shard.

    Attributes:
        owners: id of the instance, by the shard's number.
        epoch: grows with each change.
    """

    owners: tuple[str, ...]
    epoch: int = 1

    def __post_init__(self) -> None:
        if not self.owners or not all(0 < len(owner) <= _LONGEST_NAME for owner in self.owners):
            raise InvalidRequestError(
                "a table of shards without shards, or a shard without an owner", resolution="give every shard an owner"
            )

    def owner_of(self, task_id: str) -> str:
        """Return the instance that places a task."""
        return self.owners[shard_of(task_id, len(self.owners))]

    def owned_by(self, instance: str) -> tuple[int, ...]:
        """Return the numbers of an instance's shards."""
        return tuple(shard for shard, owner in enumerate(self.owners) if owner == instance)


def shard_of(task_id: str, shards: int) -> int:
    """Return the shard of a task, of so many."""
    return jump(hash64("task", task_id), shards)


def first_table(instances: Iterable[str], *, per_instance: int = SHARDS_PER_INSTANCE) -> ShardTable:
    """Return the table with which instances begin: each has the same number of shards.

    Raises:
        InvalidRequestError: there are no instances, or none would get a shard.
    """
    members = sorted(set(instances))
    if not members or per_instance < 1:
        raise InvalidRequestError(
            f"{len(members)} instances with {per_instance} shards each",
            resolution="name at least one instance, and give each at least one shard",
        )
    return ShardTable(owners=tuple(member for member in members for _ in range(per_instance)))


def rebalanced(table: ShardTable, instances: Iterable[str]) -> ShardTable:
    """Return the table for these instances, moving as few shards as can be.

    What a lost instance had goes to those that have least. Then shards go from the fullest to the emptiest until they
    differ by one at most. Whoever computes it from the same table gets the same one. It is the same table, not a
    newer one, if nothing moves.

    Raises:
        InvalidRequestError: there are no instances.
    """
    members = sorted(set(instances))
    if not members:
        raise InvalidRequestError("no instance is left to own shards", resolution="start a scheduler instance")
    owned: dict[str, list[int]] = {member: [] for member in members}
    orphans: list[int] = []
    for shard, owner in enumerate(table.owners):
        owned.get(owner, orphans).append(shard)
    for shard in orphans:
        _emptiest(owned, shard).append(shard)
    while (giver := _fullest(owned)) and len(giver) - min(map(len, owned.values())) > 1:
        shard = min(giver, key=lambda one: hash64("moves", str(one), str(table.epoch)))
        giver.remove(shard)
        _emptiest(owned, shard).append(shard)
    owners = list(table.owners)
    for member, shards in owned.items():
        for shard in shards:
            owners[shard] = member
    changed = tuple(owners) != table.owners
    return ShardTable(owners=tuple(owners), epoch=table.epoch + 1) if changed else table


def _emptiest(owned: dict[str, list[int]], shard: int) -> list[int]:
    """Return the shards of whoever has least; of equals the one that this shard's hash prefers, so that they spread."""
    return owned[min(owned, key=lambda member: (len(owned[member]), hash64("takes", member, str(shard))))]


def _fullest(owned: dict[str, list[int]]) -> list[int]:
    return owned[max(owned, key=lambda member: (len(owned[member]), member))]


def newer_table(one: ShardTable, other: ShardTable) -> ShardTable:
    """Return the table that two instances agree on: the same whichever asks."""
    return max(one, other, key=lambda table: (table.epoch, hash64(*table.owners), table.owners))
