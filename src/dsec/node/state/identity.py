"""Who a child of a fork is: what it shares with its parent, and what is its own.

It has the parent's files at the fork point, image layers, limits, network policy, lifetime settings and metadata. Its
own are its id, host name, machine id, seed, range of host ids, the clocks of its lifetime, and what the request adds
to environment and metadata.

A seed is derived by a hash that anybody can compute: the first 8 bytes, big-endian and without the topmost bit, of
SHA-256 over ``dsec fork <seed of the parent> <number of the child>``, numbers beginning at 1. The same fork of the same
parent thus gives the same seeds, on any node.
"""

from __future__ import annotations

import hashlib

import msgspec

from dsec.base.ids import RandomBytes
from dsec.model.sandbox import SandboxSpec
from dsec.model.state import ForkRequest

MACHINE_ID_FILE = "/etc/machine-id"
"""machine-id(5)."""
_SEED_BITS = 63


def derived_seed(seed: int, number: int) -> int:
    """Return the seed of the child of this number."""
    digest = hashlib.sha256(f"dsec fork {seed} {number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") & ((1 << _SEED_BITS) - 1)


def child_spec(parent: SandboxSpec, request: ForkRequest, number: int, *, hostname: str | None) -> SandboxSpec:
    """Return the spec of the child of this number, which begins at 1."""
    if request.seeds:
        seed: int | None = request.seeds[number - 1]
    else:
        seed = None if parent.seed is None else derived_seed(parent.seed, number)
    return msgspec.structs.replace(
        parent,
        env={**parent.env, **request.env},
        metadata={**parent.metadata, **request.metadata},
        seed=seed,
        hostname=hostname,
    )


def new_machine_id(random_bytes: RandomBytes) -> bytes:
    """Return the content of a machine-id file."""
    return f"{random_bytes(16).hex()}\n".encode()
