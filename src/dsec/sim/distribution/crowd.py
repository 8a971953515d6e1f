"""Make the nodes of a scenario: when each begins, in which order it fetches, and which of them mean ill."""

from __future__ import annotations

import random
from collections import deque

from dsec.distribution.announcer import Announcer
from dsec.distribution.order import spread
from dsec.distribution.uploads import Uploads
from dsec.sim.distribution.node import Nature, SimNode
from dsec.sim.distribution.scenario import DistributionScenario
from dsec.sim.fleet.links import Link

_LIFE = "one"


class Crowd:
    """Makes nodes.

    Args:
        scenario: says which.
        names: of the image's chunks.
        chance: decides which of them things befall.
    """

    def __init__(self, scenario: DistributionScenario, names: list[str], chance: random.Random) -> None:
        self._scenario = scenario
        self._names = names
        self._chance = chance
        self._numbers = {name: number for number, name in enumerate(names)}
        self._first = [self._numbers[name] for name in spread(names, "first")[: scenario.first]]

    def nodes(self) -> list[SimNode]:
        """Return those that begin with nothing."""
        return [self._node(number) for number in range(self._scenario.nodes)]

    def seeds(self) -> list[SimNode]:
        """Return those that have everything."""
        seeds = []
        for number in range(self._scenario.seeds):
            node = self._made(f"seed-{number}", self._scenario.link_bytes_per_s, Nature.HONEST, 0.0, deque())
            node.have = set(range(self._scenario.chunks))
            seeds.append(node)
        return seeds

    def _node(self, number: int) -> SimNode:
        scenario, troubles = self._scenario, self._scenario.troubles
        a_wave = -(-scenario.nodes // scenario.waves)
        wave, place = divmod(number, a_wave)
        start_s = wave * scenario.wave_every_s + scenario.spread_s * place / a_wave
        rate = troubles.slow_bytes_per_s if self._chance.random() < troubles.slow_share else scenario.link_bytes_per_s
        return self._made(f"node-{number}", rate, self._nature(), start_s, self._wanted(f"node-{number}"))

    def _wanted(self, name: str) -> deque[int]:
        """Return the chunks of the first command, in the same order for all, and the rest in an order of the node's."""
        wanted = deque(self._first)
        if self._scenario.all:
            first = set(self._first)
            rest = [each for at, each in enumerate(self._names) if at not in first]
            wanted.extend(self._numbers[each] for each in spread(rest, name))
        return wanted

    def _made(self, name: str, rate: float, nature: Nature, start_s: float, wanted: deque[int]) -> SimNode:
        return SimNode(
            name=name,
            up=Link(rate),
            down=Link(rate),
            uploads=Uploads(self._scenario.uploads),
            announcer=Announcer(name, name, _LIFE),
            nature=nature,
            start_s=start_s,
            first=frozenset(self._first),
            wanted=wanted,
            first_left=len(self._first),
        )

    def _nature(self) -> Nature:
        draw, troubles = self._chance.random(), self._scenario.troubles
        for nature, share in (
            (Nature.WRONG, troubles.wrong_share),
            (Nature.STALLING, troubles.stalling_share),
            (Nature.LYING, troubles.lying_share),
        ):
            if draw < share:
                return nature
            draw -= share
        return Nature.HONEST
