"""Part of `snapshot`: many sandboxes of one image that do nearly the same, each saved at every step.

As in a group of attempts at one task: all install the same dependencies (200 files, 16 MB, none of it compressible),
and then each makes edits of its own for some steps: lines in files that the others have too, and small new files.

Beside what the store was given stand two sums without sharing: every snapshot whole, which is what archives would
write; and the first one of each sandbox whole and after that only what changed in it, so that what is shared *between*
sandboxes shows by itself.
"""

from __future__ import annotations

import io
import random
import tarfile
from typing import Any

from dsec.bench.context import BenchContext
from dsec.model.sandbox import Resources, SandboxSpec
from dsec.model.state import SnapshotInfo, SnapshotRequest
from dsec.node.node import Node
from dsec.sdk.state import state_of

_SANDBOXES = 16
_STEPS = 3
_DEPENDENCIES = 200
_DEPENDENCY_BYTES = 80_000
_EDITS = 10
_NEW_BYTES = 4_000
_SEED = 1


async def measure_workload(context: BenchContext, node: Node) -> dict[str, Any]:
    """Run the workload and return its row."""
    count = context.options.count or _SANDBOXES
    archive = _dependencies()
    spec = SandboxSpec(image=context.workplace.image, resources=Resources(disk_bytes=256 << 20))
    infos: list[list[SnapshotInfo]] = []
    with context.progress.counting("sandboxes that share", count) as advance:
        for number in range(count):
            sandbox_id = (await node.create(spec)).sandbox_id
            infos.append(await _session(node, sandbox_id, number, archive))
            await node.remove(sandbox_id)
            advance()
    stored = sum(info.stored_bytes for each in infos for info in each)
    whole = sum(info.content_bytes for each in infos for info in each)
    alone = sum(each[0].content_bytes + sum(info.stored_bytes for info in each[1:]) for each in infos)
    return {
        "what": "many sandboxes of one image",
        "sandboxes": count,
        "snapshots": count * (1 + _STEPS),
        "stored_bytes": stored,
        "every_snapshot_whole_bytes": whole,
        "differences_without_sharing_bytes": alone,
        "less_than_whole": round(1 - stored / whole, 4),
        "less_than_without_sharing": round(1 - stored / alone, 4),
    }


async def _session(node: Node, sandbox_id: str, number: int, archive: bytes) -> list[SnapshotInfo]:
    """Install, and edit step by step; return a snapshot of each."""
    state, chance = state_of(node), random.Random(f"{_SEED} {number}")

    async def content() -> Any:
        yield archive

    await node.upload(sandbox_id, "/home/user", content())
    infos = [await state.snapshot(sandbox_id, SnapshotRequest(name=f"attempt-{number}"))]
    for step in range(_STEPS):
        for chosen in chance.sample(range(_DEPENDENCIES), _EDITS):
            line = f"\n# {number} {step}\n".encode()
            await node.write_file(sandbox_id, f"/home/user/{_name(chosen)}", line, append=True)
        new = chance.randbytes(_NEW_BYTES)
        await node.write_file(sandbox_id, f"/home/user/new-{step}", new)
        infos.append(await state.snapshot(sandbox_id, SnapshotRequest(name=f"attempt-{number}")))
    return infos


def _name(number: int) -> str:
    return f"dependencies/file-{number:03}"


def _dependencies() -> bytes:
    """Return an archive of files that are the same in every sandbox."""
    chance, buffer = random.Random(_SEED), io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for number in range(_DEPENDENCIES):
            entry = tarfile.TarInfo(_name(number))
            entry.size, entry.mtime, entry.mode = _DEPENDENCY_BYTES, 1_700_000_000, 0o644
            archive.addfile(entry, io.BytesIO(chance.randbytes(_DEPENDENCY_BYTES)))
    return buffer.getvalue()
