"""A real node (crun, btrfs) is killed at the n-th call of a mechanism, for every n of every operation that concerns
saved state, and started again: nothing is lost, nothing is there by half, nothing is left on the host.

What may be there then is said by plain dictionaries (`dsec.testing.forest_model`). A normal run draws half of the
operations and a step of each; `DSEC_CRASH_STEPS=all` walks through all of them (some minutes), and lets the node that
cleans up die on its way, too. `DSEC_CRASH_SEED` repeats a draw.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from dsec.testing.state_cases import CASES, add_hooked, forest
from dsec.testing.step_ring import Case, Ring

IS_FULL = os.environ.get("DSEC_CRASH_STEPS") == "all"
pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(1800 if IS_FULL else 900)]
DRAWN = 9


@pytest.fixture(scope="module")
def seed() -> int:
    return int(os.environ.get("DSEC_CRASH_SEED") or secrets.randbits(32))


@pytest.fixture
def hooked_dir(image_root: Path, state_dir: Path) -> Path:
    add_hooked(state_dir, image_root)
    return state_dir


def play(ring: Ring, seed: int, plot: Callable[[], Awaitable[None]]) -> None:
    try:
        anyio.run(plot)
    except BaseException as error:
        error.add_note(f"killed at {ring.struck[-3:]}; repeat with DSEC_CRASH_SEED={seed}")
        error.add_note(f"the node's log ends with:\n{ring.node.log_tail()}")
        raise
    finally:
        ring.node.kill()
    sys.stderr.write(f"killed at {len(ring.struck)} steps: {ring.struck}; seed {seed}\n")


def test_a_real_node_killed_at_drawn_steps_of_operations_loses_and_leaves_nothing(seed: int, hooked_dir: Path) -> None:
    chance = random.Random(seed)
    ring = Ring(hooked_dir, forest(None), chance)
    play(ring, seed, partial(ring.draw, chance.sample(CASES, DRAWN)))


@pytest.mark.skipif(not IS_FULL, reason="DSEC_CRASH_STEPS=all walks through every step")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_real_node_killed_at_any_step_of_an_operation_loses_and_leaves_nothing(
    case: Case, seed: int, hooked_dir: Path
) -> None:
    ring = Ring(hooked_dir, forest(None), random.Random(f"{seed} {case.name}"))
    play(ring, seed, partial(ring.walk, case))
    assert ring.struck, "the ports were not watched"
