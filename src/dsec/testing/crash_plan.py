"""What a history of deaths may hold, drawn from one number; see `dsec.testing.worker_crashes`."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dsec.episode.durability import EVERY_ROUND, Durability, asynchronous, every_n_rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashPlan:
    """What a history may hold; drawn from its seed.

    Attributes:
        seed: of everything.
        rounds: of the episode.
        durability: of its log.
        deaths: of workers.
        kills: at which step each of the first lives ends; the others end at a drawn one.
        node_deaths: of nodes.
        power: a death of the worker may be one of its machine.
        store: share of the store's calls that fail, or are done and not answered; half as many puts are acknowledged
            and lost.
        trouble: share of the calls outside in which something goes wrong.
        state_bytes: a whole state is saved when the log has grown by so much.
        disk: share of the lives in which the disk fills for a while, or fails to sync once.
        outages: share of the lives in which the store is gone for a while.
        meddling: share of the trainer's turns in which it tells the episode something, or lets it stand still.
        dear_s: a version is saved inside a round behind operations on files that took so long.
    """

    seed: int
    rounds: int = 4
    durability: Durability = EVERY_ROUND
    deaths: int = 3
    kills: tuple[int, ...] = ()
    node_deaths: int = 1
    power: bool = True
    store: float = 0.1
    trouble: float = 0.2
    state_bytes: int = 1 << 30
    disk: float = 0.0
    outages: float = 0.0
    meddling: float = 0.0
    dear_s: float = 60.0

    @classmethod
    def drawn(cls, seed: int) -> CrashPlan:
        """Draw a plan."""
        draw = random.Random(f"plan {seed}")
        durabilities = [EVERY_ROUND, EVERY_ROUND, every_n_rounds(2), asynchronous(2)]
        return cls(
            seed=seed,
            rounds=draw.randint(2, 5),
            durability=draw.choice(durabilities),
            deaths=draw.choice([0, 1, 1, 2, 3, 5, 8]),
            node_deaths=draw.choice([0, 0, 1, 2]),
            power=draw.random() < 0.5,
            store=draw.choice([0.0, 0.05, 0.15]),
            trouble=draw.choice([0.0, 0.2, 0.4]),
            state_bytes=draw.choice([1 << 30, 1 << 30, 1500]),
            dear_s=draw.choice([60.0, 0.0]),
            disk=draw.choice([0.0, 0.0, 0.5]),
            outages=draw.choice([0.0, 0.0, 0.5]),
            meddling=draw.choice([0.0, 0.0, 0.02]),
        )
