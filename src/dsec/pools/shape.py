"""Which sandboxes a pool can serve: what is set when a sandbox is handed out, and what must have been set before.

A sandbox that stands ready has its image mounted, its quota in force and its namespaces made: the image, the
layers, the quota, the limit of open files, the processor class and the network policy must match. Everything else
belongs to the tenant and is given with it: id, host name, limits of processor, memory and processes, environment,
metadata, seed, default user and directory, lifetime. A predecessor's cannot be seen, since the instance itself is a
new one, launched on an empty layer, and these were never part of it.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from dsec.model.sandbox import Lifetime, SandboxSpec

ShapeKey = tuple[object, ...]
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9]+")


def shape_key(spec: SandboxSpec) -> ShapeKey:
    """Return what must match, of a spec with the node's defaults filled in."""
    limits = (spec.resources.disk_bytes, spec.resources.open_files)
    layers = tuple(name.removesuffix(":latest") for name in spec.layers)
    return (spec.image.removesuffix(":latest"), layers, *limits, spec.qos, spec.network.rules)


def shape_of(spec: SandboxSpec) -> SandboxSpec:
    """Return the spec without what a tenant brings."""
    return msgspec.structs.replace(
        spec, user=None, env={}, workdir=None, hostname=None, lifetime=NEVER_ENDS, metadata={}, seed=None
    )


NEVER_ENDS = Lifetime(idle_timeout_s=None, maximum_s=None)
"""The lifetime of a sandbox that nobody has."""


def pool_id(spec: SandboxSpec) -> str:
    """Name the pool of a resolved spec: the image for people, a digest for the rest; such as ``python-3fa85c21``."""
    digest = hashlib.sha256(repr(shape_key(spec)).encode()).hexdigest()[:8]
    image = _NOT_IN_A_NAME.sub("-", spec.image.removesuffix(":latest").lower()).strip("-")[:40]
    return f"{image or 'image'}-{digest}"


def group_of(metadata: dict[str, str]) -> str:
    """Return whose turn a request counts as: all requests of one task; of one job where no task is named."""
    for name in ("task_id", "task", "job_id", "job", "rollout"):
        if metadata.get(name):
            return f"{name}={metadata[name]}"
    return ""


def task_of(metadata: dict[str, str]) -> str:
    """Return the task that a request says it is for; empty: it names none."""
    return metadata.get("task_id") or metadata.get("task") or ""
