"""Operations on saved state, one after another: what stands before each, what it leads to, and what may be in between.

They are played on real nodes that die or have no room (`dsec.testing.step_ring`). Sandboxes are made of the image
`guest` (`dsec.testing.guest_image`), or of one with hooks upon the same files (`HOOKED`, made by `add_hooked`).
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from dsec.base.errors import AlreadyExistsError, SnapshotNotFoundError
from dsec.model.pool import PoolChange
from dsec.model.sandbox import Resources, SandboxSpec, SandboxState
from dsec.model.state import CheckpointRequest, ForkRequest, PackRequest, RestoreRequest, SnapshotRequest
from dsec.sdk.pools import pools_of
from dsec.sdk.state import state_of
from dsec.service.port import SandboxService
from dsec.testing.forest_model import Box, Files, Forest
from dsec.testing.step_ring import HOME, Act, Case, Scene

BOX, CHILDREN = "sbx-box", ("sbx-child1", "sbx-child2")
SNAPSHOT, PACKED, HOOKED = "kept", "packed", "hooked"
SPEC = SandboxSpec(
    image="guest", workdir=HOME, resources=Resources(memory_bytes=128 << 20, disk_bytes=64 << 20, pids=64), seed=7
)
POOL = PoolChange(floor=1, maximum=2, spreads=0.0, concurrency_share=0.0)


def content(text: bytes) -> Files:
    return {"f": ("file", 0o644, text)}


IMAGES: Mapping[str, Files] = {"guest": {}, HOOKED: {}}
EMPTY = Box(files={}, clean={})
BRANCHED = replace(
    replace(replace(EMPTY, files=content(b"one")).saved("one"), files=content(b"two")).saved("two"),
    files=content(b"three"),
)
PAUSED = BRANCHED.in_state(SandboxState.PAUSED)


def forest(box: Box | None) -> Forest:
    return Forest({} if box is None else {BOX: box}, images=IMAGES)


async def nothing(service: SandboxService) -> None:
    return None


async def branch(service: SandboxService, image: str = "guest") -> None:
    await service.create(msgspec.structs.replace(SPEC, image=image), sandbox_id=BOX)
    for name in ("one", "two"):
        await service.write_file(BOX, "f", name.encode())
        await state_of(service).checkpoint(BOX, CheckpointRequest(name=name))
    await service.write_file(BOX, "f", b"three")


async def branch_and_pause(service: SandboxService) -> None:
    await branch(service)
    await service.pause(BOX)


async def branch_and_save(service: SandboxService) -> None:
    await branch(service)
    await snapshot(service)


async def branch_with_hooks(service: SandboxService) -> None:
    await branch(service, HOOKED)


async def branch_from_pool(service: SandboxService) -> None:
    await pools_of(service).set_pool(SPEC, POOL)
    await branch(service)


async def be_the_next_tenant(service: SandboxService) -> None:
    """Whoever comes next is served, and sees nothing of who was there before."""
    await service.create(SPEC, sandbox_id="sbx-next")
    assert not await service.list_files("sbx-next", HOME)
    await service.remove("sbx-next")


async def checkpoint(service: SandboxService) -> None:
    try:
        await state_of(service).checkpoint(BOX, CheckpointRequest(name="three"))
    except AlreadyExistsError:
        pass  # Who does not know whether it happened asks again by name.


async def remove_checkpoint(service: SandboxService) -> None:
    try:
        await state_of(service).remove_checkpoint(BOX, "one")
    except SnapshotNotFoundError:
        pass


def fork(checkpoint: str | None) -> Act:
    request = ForkRequest(count=len(CHILDREN), sandbox_ids=CHILDREN, checkpoint=checkpoint)
    return lambda service: state_of(service).fork(BOX, request)


async def snapshot(service: SandboxService) -> None:
    if SNAPSHOT not in {info.name for info in await state_of(service).list_snapshots()}:
        await state_of(service).snapshot(BOX, SnapshotRequest(checkpoint="one", name=SNAPSHOT))


async def restore(service: SandboxService) -> None:
    await state_of(service).restore(SNAPSHOT, RestoreRequest(sandbox_id=CHILDREN[0]))


async def pack(service: SandboxService) -> None:
    try:
        await state_of(service).pack(BOX, PackRequest(name=PACKED, checkpoint="one"))
    except AlreadyExistsError:
        pass


def with_children(key: str | None) -> Forest:
    return forest(BRANCHED).having(dict.fromkeys(CHILDREN, BRANCHED.child(key)))


def hooked(box: Box) -> Box:
    """What the import hook makes of a sandbox: it tells what was exported."""
    return replace(box, files={**box.files, "imported": box.files["f"]})


NOTHING = Scene(forest(None), nothing)
A_TREE = Scene(forest(BRANCHED), branch)
A_PAUSED_TREE = Scene(forest(PAUSED), branch_and_pause)
A_SAVED_TREE = Scene(forest(BRANCHED).with_snapshot(SNAPSHOT, content(b"one")), branch_and_save)
A_TREE_WITH_HOOKS = Scene(forest(BRANCHED), branch_with_hooks)
A_TREE_FROM_A_POOL = Scene(forest(BRANCHED), branch_from_pool, is_pooled=True)
RESTORED = A_SAVED_TREE.forest.having({CHILDREN[0]: BRANCHED.child("one")})


CASES = [
    Case(name="create", scene=NOTHING, act=lambda s: s.create(SPEC, sandbox_id=BOX), after=forest(EMPTY), steps=8),
    Case(name="checkpoint", scene=A_TREE, act=checkpoint, after=forest(BRANCHED.saved("three")), steps=12),
    Case(name="checkpoint-paused", scene=A_PAUSED_TREE, act=checkpoint, after=forest(PAUSED.saved("three")), steps=8),
    Case(
        name="rollback",
        scene=A_TREE,
        act=lambda s: s.rollback(BOX),
        after=forest(BRANCHED.rolled_back(None)),
        repeats=False,
        steps=16,
    ),
    Case(
        name="rollback-to-checkpoint",
        scene=A_TREE,
        act=lambda s: s.rollback(BOX, snapshot="one"),
        after=forest(BRANCHED.rolled_back("one")),
        repeats=False,
        steps=16,
    ),
    Case(name="remove-checkpoint", scene=A_TREE, act=remove_checkpoint, after=forest(BRANCHED.without("one")), steps=6),
    Case(name="fork", scene=A_TREE, act=fork(None), after=with_children(None), steps=20, frozen=1),
    Case(name="fork-from-checkpoint", scene=A_TREE, act=fork("one"), after=with_children("one"), steps=12),
    Case(name="snapshot", scene=A_TREE, act=snapshot, after=A_SAVED_TREE.forest, steps=8),
    Case(name="restore", scene=A_SAVED_TREE, act=restore, after=RESTORED, steps=18, frozen=1),
    Case(name="pack", scene=A_TREE, act=pack, after=forest(BRANCHED).with_image(PACKED, content(b"one")), steps=4),
    Case(name="pause", scene=A_TREE, act=lambda s: s.pause(BOX), after=forest(PAUSED), steps=8),
    Case(name="resume", scene=A_PAUSED_TREE, act=lambda s: s.resume(BOX), after=forest(BRANCHED), steps=6),
    Case(name="stop", scene=A_TREE, act=lambda s: s.stop(BOX), after=forest(BRANCHED.stopped()), steps=20),
    Case(
        name="rollback-with-hooks",
        scene=A_TREE_WITH_HOOKS,
        act=lambda s: s.rollback(BOX, snapshot="one"),
        after=forest(hooked(BRANCHED.rolled_back("one"))),
        repeats=False,
        steps=22,
    ),
    Case(
        name="fork-with-hooks",
        scene=A_TREE_WITH_HOOKS,
        act=fork(None),
        after=forest(BRANCHED).having(dict.fromkeys(CHILDREN, hooked(BRANCHED.child(None)))),
        steps=36,
        frozen=1,
    ),
    Case(
        name="recycle",
        scene=A_TREE_FROM_A_POOL,
        act=lambda s: s.remove(BOX),
        after=forest(None),
        between=(forest(BRANCHED.stopped()),),
        repeats=False,
        steps=30,
        probe=be_the_next_tenant,
    ),
    Case(
        name="remove",
        scene=A_TREE,
        act=lambda s: s.remove(BOX),
        after=forest(None),
        between=(forest(BRANCHED.stopped()),),
        repeats=False,
        steps=22,
    ),
]


def add_hooked(state_dir: Path, root: Path) -> None:
    """Import the image with hooks. Its import takes a while, so that kills come into it."""
    import_hook = shlex.join(["sh", "-c", "cat > .new; sleep 0.05; mv .new imported"])
    command = [sys.executable, "-m", "dsec", "--state-dir", str(state_dir), "image", "import", str(root)]
    command += ["--name", HOOKED, "--workdir", HOME, "--export-hook", "cat f", "--import-hook", import_hook]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
