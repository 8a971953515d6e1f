"""What an image declares of its clean state is held to, and a check of its own does no harm when it misbehaves."""

from __future__ import annotations

import re

import anyio
import msgspec
import pytest

from dsec.base.errors import HookFailedError, StateMismatchError
from dsec.images.memory import MemoryImages
from dsec.model.image import FingerprintRules, ImageConfig
from dsec.model.pool import PoolChange
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.node.state import clean
from dsec.node.state.clean import CleanState
from dsec.testing.faults import check_no_leak
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio
BOX = "sbx-box"


def host_with(rules: FingerprintRules) -> MemoryHost:
    images = MemoryImages()
    base = images.get("python")
    images.add_image("ruled", [layer.digest for layer in base.layers], ImageConfig(fingerprint=rules), source="test")
    return MemoryHost(images=images, settings=NodeSettings(runtime="memory"))


def shell(script: str, **rules: object) -> FingerprintRules:
    return FingerprintRules(command=("sh", "-c", script), **rules)  # type: ignore[arg-type]


async def begin(node: Node) -> None:
    await node.create(SandboxSpec(image="ruled"), sandbox_id=BOX)


async def test_declared_files_are_compared_by_metadata_or_content_and_missing_ones_must_stay_missing() -> None:
    host = host_with(FingerprintRules(files=("/tmp", "/etc/ld.so.preload"), contents=("/home/user/data",)))
    async with host.node() as node:
        await begin(node)
        assert (await node.state.fingerprint(BOX)).is_clean
        await node.write_file(BOX, "/home/user/data", b"x")
        await node.write_file(BOX, "/etc/ld.so.preload", b"evil.so")
        said = "; ".join((await node.state.fingerprint(BOX)).differences)
        assert "declared files that a fresh one has not: " in said
        assert "/etc/ld.so.preload file" in said
        assert "/home/user/data content of 1 bytes" in said
        await node.rollback(BOX)
        assert (await node.state.fingerprint(BOX)).is_clean


async def test_a_check_that_says_the_same_lets_a_rollback_pass_and_is_not_run_on_demand() -> None:
    async with host_with(shell("echo fine; cat /tmp/state; true")).node() as node:
        await begin(node)
        await node.write_file(BOX, "/tmp/state", b"changed")
        assert not any("check" in each for each in (await node.state.fingerprint(BOX)).differences)
        await node.rollback(BOX)
        assert (await node.state.fingerprint(BOX)).is_clean


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (shell("echo no; exit 3"), "check of the image: exit status 3"),
        (shell("sleep 100", timeout_s=0.05), "did not end within"),
        (FingerprintRules(command=("yes",), maximum_bytes=10_000), "wrote more than"),
        (FingerprintRules(command=("no-such-program",)), "cannot start"),
    ],
)
async def test_no_sandbox_is_made_of_an_image_whose_check_fails_in_a_fresh_one(
    rules: FingerprintRules, why: str
) -> None:
    host = host_with(rules)
    async with host.node() as node:
        with pytest.raises(HookFailedError, match=why):
            await begin(node)
        assert await node.list() == []
        await anyio.wait_all_tasks_blocked()
        await check_no_leak(host, node)


@pytest.mark.parametrize(
    ("becomes", "why"),
    [
        (shell("exit 3"), "the image's check: exit status 3"),
        (shell("sleep 100", timeout_s=0.05), "did not end within"),
        (FingerprintRules(command=("yes",), maximum_bytes=10_000), "wrote more than"),
        (shell("echo other"), "output 6 bytes blake3:.* other"),
    ],
)
async def test_a_check_that_says_something_else_after_a_rollback_fails_the_sandbox(
    becomes: FingerprintRules, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with host_with(shell("echo fine")).node() as node:
        await begin(node)
        sandbox = node._core.registry.find(BOX)
        known = node._core.clean_states.find(sandbox.record)
        # What is recorded stays; the command turns into one that misbehaves.
        config = msgspec.structs.replace(sandbox.record.image_config, fingerprint=becomes)
        await node._core.put(sandbox, image_config=config)
        monkeypatch.setattr(node._core.clean_states, "find", lambda record: known)
        with pytest.raises(StateMismatchError) as failed:
            await node.rollback(BOX)
        assert failed.match("is not clean: the image's check")
        assert re.search(why, failed.value.detail), failed.value.detail
        assert sandbox.state is SandboxState.FAILED
        with pytest.raises(StateMismatchError):
            await node.run(BOX, CommandRequest(argv=("true",)))


def state(*lines: str, volatile: tuple[str, ...] = ()) -> CleanState:
    return CleanState(facts={clean.WRITTEN: lines, clean.VOLATILE: volatile, clean.MOUNTS: ("/tmp tmpfs",)})


def test_what_is_ignored_is_left_out_with_the_directories_that_lead_there_and_nothing_else() -> None:
    below = (
        "/home mode 40755 owner 0:0",
        "/home/u mode 40755 owner 0:0",
        "/home/u/x mode 1 y mode 100644 owner 0:0 size 1",
    )
    beside = (
        "/ has user.x",
        "/ mode 40755 owner 0:0",
        "/home mode 100644 owner 0:0 size 1",
        "/home/user mode 40755 owner 0:0",
        "/home/u mode 40755 owner 0:0 mode 100644 owner 0:0 size 0",
        "/x mode /home/u/y mode 100644 owner 0:0 size 0",
    )
    found = state(*below, *beside, volatile=("/dev/shm/a mode 100644 owner 0:0",)).ignoring(("/home/u", "/dev/shm"))
    assert found == state(*beside)


async def test_a_pool_of_an_image_whose_check_fails_says_so_and_hands_out_nothing() -> None:
    host = host_with(shell("echo broken; exit 3"))
    async with host.node() as node:
        await node.pools.set_pool(SandboxSpec(image="ruled"), PoolChange(floor=1, maximum=1))
        with anyio.fail_after(60):
            while not (told := [each.text for each in await node.pools.events() if "check of the image" in each.text]):
                await anyio.wait_all_tasks_blocked()
        assert told[0].startswith("hook_failed: the check of the image: exit status 3")
        (info,) = await node.pools.list_pools()
        assert info.statistics.ready == 0
        await node.pools.remove_pool(info.pool_id)
        await anyio.wait_all_tasks_blocked()
        await check_no_leak(host, node)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            ("/ has trusted.overlay.impure", "/etc mode 40755 owner 0:0", "/etc/x mode 100644 owner 0:0 size 3"),
            "/etc/x",
        ),
        (("/a mode 40755 owner 0:0", "/a-b mode 100644 owner 0:0 size 1"), "/a mode 40755 owner 0:0, /a-b"),
        (("/ has trusted.overlay.impure",), "/ has trusted.overlay.impure"),
        (("/a mode 40755 owner 0:0", "/a/b mode 40700 owner 0:0"), "/a/b mode 40700"),
    ],
)
def test_what_overlayfs_does_of_itself_is_not_told_beside_what_was_done(more: tuple[str, ...], told: str) -> None:
    clean_state = CleanState(facts={clean.WRITTEN: ("/ mode 40755 owner 0:0",)})
    seen = CleanState(facts={clean.WRITTEN: ("/ mode 40755 owner 0:0", *more)})
    (said,) = clean.differences(clean_state, seen)
    assert said.startswith(f"{clean.WRITTEN} that a fresh one has not: {told}")
    assert clean_state.fingerprint() != seen.fingerprint()
