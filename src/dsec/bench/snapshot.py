"""`snapshot`: make what changed in a large tree durable; restore from a chain of such differences; share between many.

Three questions, each with its reference in the same run:

- What does it cost to keep a step? 15 MB change in a tree of 800 MB: some blocks of large files, some files anew, many
  small new ones, none of it compressible. One reference is what one would do without: an archive of the tree, inside
  the sandbox, and a sync. The other is the least that any store on this disk could take: as many bytes written to one
  file from memory, and synced.
- What does a long chain cost who restores it? The same state from a chain of 20 differences, and merged.
- What do many sandboxes of one image cost together? See `dsec.bench.snapshot_workload`.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from dsec.base.errors import RuntimeFailedError
from dsec.base.units import MIB
from dsec.bench.context import BenchContext
from dsec.bench.distribution import distribution
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import alternate, timed
from dsec.bench.snapshot_workload import measure_workload
from dsec.model.process import CommandRequest
from dsec.model.sandbox import Resources, SandboxSpec
from dsec.model.state import SnapshotInfo, SnapshotRequest
from dsec.node.node import Node
from dsec.sdk.state import state_of

TREE_BYTES = 800_000_000
_CHANGED_SHARE = 15 / 800
_CHAIN = 20
_BLOCK_BYTES = 65_536
_BIG_FILES = 8
_ARCHIVE = "archive the tree inside the sandbox and sync"
_BARE = "write and sync as many bytes from memory"
_TAR = CommandRequest(argv=("sh", "-c", "cd /home/user && tar -cf /home/user/archive.tar tree && sync"), timeout_s=600)
_FORGET_TAR = CommandRequest(argv=("sh", "-c", "rm /home/user/archive.tar; sync"), timeout_s=300)
_MERGED_WAIT_S = 120.0


class _Tree:
    """A tree in a sandbox, and changes of it.

    Attributes:
        changed_bytes: what one change writes.
    """

    def __init__(self, node: Node, sandbox_id: str, size_bytes: int) -> None:
        self.node, self.sandbox_id, self._size_bytes = node, sandbox_id, size_bytes
        self._step = 0
        change = round(size_bytes * _CHANGED_SHARE)
        self._blocks = max(1, change // 4 // _BLOCK_BYTES)
        self._new = max(1, change // 2 // 25_000)
        self._anew = max(1, change // 4 // 200_000)
        self.changed_bytes = self._blocks * _BLOCK_BYTES + self._new * 25_000 + self._anew * 200_000

    async def make(self) -> None:
        """Write a tenth into large files and the rest into files of 200 kB."""
        big = max(_BLOCK_BYTES, self._size_bytes // 10 // _BIG_FILES)
        await self._run(
            f"""set -e; mkdir -p /home/user/tree/small; cd /home/user/tree
            for n in $(seq {_BIG_FILES}); do head -c {big} /dev/urandom > big-$n; done
            cd small; head -c {self._size_bytes * 9 // 10} /dev/urandom | split -b 200000 -a 5 -d - file-
            sync"""
        )
        self._blocks_of_a_file = max(1, big // _BLOCK_BYTES)

    async def change(self) -> None:
        """Change it once more, each time in other places."""
        self._step += 1
        await self._run(
            f"""set -e; cd /home/user/tree
            for n in $(seq {self._blocks}); do
              dd if=/dev/urandom of=big-$((n % {_BIG_FILES} + 1)) bs={_BLOCK_BYTES} count=1 conv=notrunc 2>/dev/null \
                seek=$(((n / {_BIG_FILES} * 3 + {self._step}) % {self._blocks_of_a_file}))
            done
            set -- $(ls small | head -n $(({self._anew} * {self._step})) | tail -n {self._anew})
            for name; do head -c 200000 /dev/urandom > small/$name; done
            mkdir new-{self._step}; cd new-{self._step}
            head -c {self._new * 25_000} /dev/urandom | split -b 25000 -a 5 -d - file-
            sync"""
        )

    async def saved(self, request: SnapshotRequest = SnapshotRequest()) -> SnapshotInfo:
        return await state_of(self.node).snapshot(self.sandbox_id, request)

    async def archived(self) -> float:
        with timed() as watch:
            await self._must(_TAR)
        await self._must(_FORGET_TAR)
        return watch.seconds

    async def _run(self, script: str) -> None:
        await self._must(CommandRequest(argv=("sh", "-c", script), timeout_s=600))

    async def _must(self, request: CommandRequest) -> None:
        result = await self.node.run(self.sandbox_id, request)
        if result.status.exit_code != 0:
            raise RuntimeFailedError("the guest could not do its part", detail=result.stderr.decode(errors="replace"))


async def bench_snapshot(context: BenchContext) -> Report:
    """Measure differences, chains, and what is shared."""
    size = min(context.options.size_bytes, TREE_BYTES)
    spec = SandboxSpec(image=context.workplace.image, resources=Resources(disk_bytes=6 * size + 256 * MIB))
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(context.workplace.embedded())
        tree = _Tree(node, (await node.create(spec)).sandbox_id, size)
        await tree.make()
        with timed() as whole:
            first = await tree.saved()
        seconds, infos = await _differences(context, tree)
        await node.remove(tree.sandbox_id)
        # Smaller, so that both can be restored often enough to tell them apart.
        small = _Tree(node, (await node.create(spec)).sandbox_id, size // 4)
        chain = await _chain(context, node, small)
        workload = await measure_workload(context, node)
    per_changed = [info.stored_bytes / tree.changed_bytes for info in infos]
    series: list[dict[str, Any]] = [
        {
            "what": "difference",
            "tree_bytes": first.content_bytes,
            "changed_bytes": tree.changed_bytes,
            "stored_bytes": distribution([float(info.stored_bytes) for info in infos]),
            "stored_per_changed": distribution(per_changed),
        },
        {"what": "first, whole", "ms": round(whole.seconds * 1e3, 1), "stored_bytes": first.stored_bytes},
        chain,
        workload,
    ]
    return make_report(
        "snapshot",
        "ms",
        "lower",
        ours=distribution(seconds["ours"], scale=1e3),
        references={name: distribution(seconds[name], scale=1e3) for name in (_ARCHIVE, _BARE)},
        series=series,
        host=context.host,
    )


async def _differences(context: BenchContext, tree: _Tree) -> tuple[dict[str, list[float]], list[SnapshotInfo]]:
    infos: list[SnapshotInfo] = []

    async def difference() -> float:
        await tree.change()
        with timed() as watch:
            infos.append(await tree.saved())
        return watch.seconds

    async def bare() -> float:
        data = os.urandom(tree.changed_bytes)
        with timed() as watch:
            await anyio.to_thread.run_sync(_write_synced, context.workplace.directory / "bare", data)
        return watch.seconds

    rounds = max(3, context.options.samples // 3)
    contestants = {"ours": difference, _ARCHIVE: tree.archived, _BARE: bare}
    seconds = await alternate(contestants, rounds=rounds, progress=context.progress)
    return seconds, infos[-rounds:]


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    path.unlink()


async def _chain(context: BenchContext, node: Node, tree: _Tree) -> dict[str, Any]:
    """Restore one state from a chain of differences and merged, in turn."""
    state = state_of(node)
    context.progress.say(f"growing a chain of {_CHAIN}")
    await tree.make()
    long = await _grow(tree)
    # A snapshot of the same checkpoint upon it is longer than a chain may be, and is merged in the background.
    point = (await state.list_checkpoints(tree.sandbox_id))[-1].checkpoint_id
    short = await tree.saved(SnapshotRequest(checkpoint=point, name="merged"))
    with anyio.fail_after(_MERGED_WAIT_S):
        while (await _depth(node, short)) > 0:  # noqa: ASYNC110 - what tells is in the store.
            await anyio.sleep(0.1)

    async def restored(info: SnapshotInfo) -> float:
        with timed() as watch:
            box = (await state.restore(info.snapshot_id)).sandbox_id
        await node.remove(box)
        return watch.seconds

    seconds = await alternate(
        {"chain": lambda: restored(long), "merged": lambda: restored(short)},
        rounds=max(3, context.options.samples // 2),
        progress=context.progress,
        warm_ups=1,
    )
    chain, merged = (distribution(seconds[name], scale=1e3) for name in ("chain", "merged"))
    return {
        "what": "restore",
        "content_bytes": long.content_bytes,
        "differences": await _depth(node, long),
        "chain_ms": chain,
        "merged_ms": merged,
        "chain_per_merged": round(chain.p50 / merged.p50, 3),
    }


async def _grow(tree: _Tree) -> SnapshotInfo:
    """Return a snapshot that is as many differences away from a whole one as may be."""
    for _ in range(3 * _CHAIN):
        await tree.change()
        info = await tree.saved()
        if info.depth == _CHAIN:
            return info
    raise RuntimeFailedError(f"no chain grew to {_CHAIN} differences")


async def _depth(node: Node, wanted: SnapshotInfo) -> int:
    listed = await state_of(node).list_snapshots()
    return next(info.depth for info in listed if info.snapshot_id == wanted.snapshot_id)
