"""A hostile guest hides what it changed, on the real container runtime: what is seen is said, and a rollback undoes all
of it. What is not seen is shown too, so that docs/formats/fingerprints.md stays true."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import msgspec
import pytest

from dsec.base.errors import HookFailedError, StateMismatchError
from dsec.images.importers.detect import import_image
from dsec.images.importers.request import ImportRequest
from dsec.images.store import LocalImageStore
from dsec.linux import inodes
from dsec.model.event import EventKind
from dsec.model.image import FingerprintRules
from dsec.model.pool import PoolChange
from dsec.model.process import CommandRequest
from dsec.model.sandbox import Resources, SandboxFilter, SandboxSpec, SandboxState
from dsec.model.state import FingerprintReport
from dsec.node.builder import open_node
from dsec.node.node import Node
from dsec.node.sandbox import Sandbox
from dsec.node.settings import NodeSettings
from dsec.node.state import fingerprints
from dsec.node.state.image_check import ask

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.anyio]

BOX = "sbx-box"
HOST_IDS = (3 << 29) + (1 << 24)
"""Far above the default range, and apart from the other fingerprint tests'."""
SPEC = SandboxSpec(image="ruled", resources=Resources(memory_bytes=128 << 20, disk_bytes=64 << 20, pids=64), seed=7)
RULES = FingerprintRules(
    files=("/etc/group", "/etc/ld.so.preload"),
    contents=("/etc/passwd",),
    ignored=("/etc", "/tmp"),
    command=("sh", "/usr/lib/check"),
    timeout_s=60.0,
    maximum_bytes=10_000,
)
CHECK = "#!/bin/sh\necho x > /tmp/cache; cat /etc/passwd\n"
SAME_SIZE = "touch -r {0} /tmp/when; sed -i s/home/HOME/ {0}; touch -r /tmp/when {0}"
"""Another content of the same length, with its time of change set back."""
ATTACKS = {
    "a declared content, same size, time set back": (SAME_SIZE.format("/etc/passwd"), "/etc/passwd content of"),
    "declared metadata, time of change": ("touch /etc/group", "/etc/group file mode 644 owner 0:0 size"),
    "declared metadata, mode": ("chmod 666 /etc/group", "/etc/group file mode 666"),
    "a declared file turned into a link": ("rm /etc/group; ln -s /tmp/group /etc/group", "/etc/group symlink to"),
    "a declared file that was missing": ("echo /tmp/x.so > /etc/ld.so.preload", "/etc/ld.so.preload file"),
    "the image's check, replaced": ("echo 'echo fine' > /usr/lib/check", "/usr/lib/check mode 100644"),
    "a renamed process": ("(exec -a '[kworker/0:0]' setsid sleep 31536000 >/dev/null 2>&1 &)", "processes run"),
    "the seed's file with other rights": ("chmod 666 /dev/dsec-seed", "/dev/dsec-seed mode 100666"),
    "the seed's file as a link": (
        "cp /dev/dsec-seed /dev/shm/s; rm /dev/dsec-seed; ln -s /dev/shm/s /dev/dsec-seed",
        "/dev/dsec-seed mode 120777",
    ),
    "a whiteout over a directory": ("rm -r /home", "/home mode 20"),
    "a name that looks like a fact": (r"touch '/var/x mode 100644 owner 0:0'; mkdir '/tmp mode 40755'", "/var/x mode"),
}


@pytest.fixture
def ruled(state_dir: Path, image_root: Path, tmp_path: Path) -> Path:
    """The state directory, with an image that declares rules."""
    check = image_root / "usr/lib/check"
    check.write_text(CHECK)
    store = LocalImageStore(state_dir / "images")
    try:
        import_image(store, ImportRequest(path=image_root, name="ruled", fingerprint=RULES))
    finally:
        store.close()
        check.unlink()
    return state_dir


@pytest.fixture
async def node(ruled: Path) -> AsyncIterator[Node]:
    async with open_node(NodeSettings(state_dir=str(ruled), first_host_id=HOST_IDS)) as opened:
        yield opened
        for info in await opened.pools.list_pools():
            await opened.pools.remove_pool(info.pool_id)
        for sandbox in await opened.list(SandboxFilter(states=tuple(SandboxState))):
            await opened.remove(sandbox.sandbox_id)


def inside(node: Node, name: str = BOX) -> Sandbox:
    return node._core.registry.find(name)


def init_of(node: Node) -> int:
    return int(inside(node).running().instance.init_pid)  # type: ignore[attr-defined]


async def shell(node: Node, script: str, name: str = BOX) -> str:
    result = await node.run(name, CommandRequest(argv=("bash", "-c", script)))
    assert result.status.exit_code == 0, result.stderr
    return result.stdout.decode()


async def clean_then(node: Node) -> FingerprintReport:
    await node.create(SPEC, sandbox_id=BOX)
    report = await node.state.fingerprint(BOX)
    assert report.is_clean, report.differences
    return report


async def gone_after_a_rollback(node: Node, before: FingerprintReport) -> None:
    await node.rollback(BOX)
    after = await node.state.fingerprint(BOX)
    assert after.is_clean, after.differences
    assert after.fingerprint == before.fingerprint


@pytest.mark.parametrize("attack", ATTACKS)
async def test_what_a_guest_hides_is_seen_and_gone_after_a_rollback(node: Node, attack: str) -> None:
    script, words = ATTACKS[attack]
    before = await clean_then(node)
    await shell(node, script)
    said = (await node.state.fingerprint(BOX)).differences
    assert any(words in each for each in said), said
    await gone_after_a_rollback(node, before)


async def test_what_is_ignored_is_not_seen_while_in_use_and_not_there_after_a_rollback(node: Node) -> None:
    before = await clean_then(node)
    await shell(node, "echo x > /tmp/left; echo x > /etc/left; mkdir -p /tmp/a/b")
    # Metadata alone is forged, and ignored besides: declare the content where it matters.
    await shell(node, SAME_SIZE.format("/etc/group").replace("home/HOME", "user/USER"))
    assert (await node.state.fingerprint(BOX)).is_clean
    await gone_after_a_rollback(node, before)
    assert await shell(node, "ls /tmp; grep -c USER /etc/group || true") == "cache\n0\n"


async def test_a_hidden_mount_is_refused_and_would_be_seen(node: Node) -> None:
    before = await clean_then(node)
    assert "refused" in await shell(node, "mount -t tmpfs none /home 2>/dev/null || echo refused")
    for where in ("/home", "/dev/shm"):  # The second one hides what is mounted there already.
        enter = ["nsenter", "-t", str(init_of(node)), "-U", "-m", "-S", "0", "-G", "0"]
        done = await anyio.run_process([*enter, "mount", "-t", "tmpfs", "none", where], check=False)
        assert done.returncode == 0, done.stderr
    said = "; ".join((await node.state.fingerprint(BOX)).differences)
    assert "mounts that a fresh one has not: /dev/shm tmpfs" in said
    assert "/home tmpfs" in said
    await gone_after_a_rollback(node, before)


async def test_a_changed_environment_of_the_init_is_seen(node: Node) -> None:
    before = await clean_then(node)
    pid = init_of(node)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[47]), int(fields[48])
    assert end > begin, "the init has variables"
    # The init has no rights that its guest has not, and is the guest's to break.
    await shell(node, f"printf X | dd of=/proc/1/mem bs=1 seek={begin} conv=notrunc 2>/dev/null")
    assert any("settings of the init" in each for each in (await node.state.fingerprint(BOX)).differences)
    await gone_after_a_rollback(node, before)


async def test_addresses_and_routes_are_seen(node: Node) -> None:
    before = await clean_then(node)
    for command in ("link set lo up", "addr add 10.9.8.7/32 dev lo", "route add 10.7.0.0/16 dev lo"):
        await anyio.run_process(["nsenter", "-t", str(init_of(node)), "-n", "ip", *command.split()])
    said = "; ".join((await node.state.fingerprint(BOX)).differences)
    assert "interfaces and sockets that a fresh one has not: " in said
    assert "route 10." in said
    await gone_after_a_rollback(node, before)


async def test_attributes_and_flags_of_the_root_directory_are_seen(node: Node) -> None:
    before = await clean_then(node)
    upper = node._core.parts.layers.get(inside(node).record.layer).upper  # type: ignore[union-attr]
    os.setxattr(upper, "user.left", b"x")
    fd = os.open(upper, os.O_RDONLY)
    try:
        assert inodes.change_flags(fd, add=inodes.NOCOW)
    finally:
        os.close(fd)
    said = "; ".join((await node.state.fingerprint(BOX)).differences)
    assert "/ has user.left" in said
    assert "/ has flags 800000" in said
    await gone_after_a_rollback(node, before)


async def test_more_attributes_of_the_root_directory_than_can_be_listed_are_seen(node: Node) -> None:
    before = await clean_then(node)
    upper = node._core.parts.layers.get(inside(node).record.layer).upper  # type: ignore[union-attr]
    for number in range(1000):
        os.setxattr(upper, f"user.{number:0100}", b"")
    assert "more attributes than can be listed" in "; ".join((await node.state.fingerprint(BOX)).differences)
    await gone_after_a_rollback(node, before)


async def test_attributes_of_a_file_bring_it_into_the_writable_layer(node: Node) -> None:
    before = await clean_then(node)
    os.setxattr(f"/proc/{init_of(node)}/root/bin/sh", "user.left", b"x")
    assert any("/bin/sh mode" in each for each in (await node.state.fingerprint(BOX)).differences)
    await gone_after_a_rollback(node, before)


async def test_a_check_that_a_guest_replaced_is_the_images_own_again(node: Node) -> None:
    await clean_then(node)
    await shell(node, "echo 'echo owned > /usr/owned; yes' > /usr/lib/check; echo 'sleep 1000' > /bin/sh")
    await node.rollback(BOX)
    assert await shell(node, "cat /usr/lib/check; ls /usr/owned 2>/dev/null || true") == CHECK


@pytest.mark.parametrize(
    ("becomes", "why"),
    [
        ("exit 3", "exit status 3"),
        ("sleep 1000 & sleep 1000", "did not end within 1 s"),
        ("yes", "wrote more than"),
        ("yes >&2", "wrote more than"),
        ("cat /etc/passwd; echo x > /usr/left", "files of the writable layer that a fresh one has not: /usr"),
        ("rm /bin/sh", "exit status 0, output 0 bytes"),
    ],
)
async def test_a_check_that_misbehaves_ends_its_sandbox_in_a_rollback_and_a_recycle(
    node: Node, monkeypatch: pytest.MonkeyPatch, becomes: str, why: str
) -> None:
    await node.pools.set_pool(SPEC, PoolChange(floor=1, maximum=1, spreads=0.0, concurrency_share=0.0))
    await ready(node)

    def turn_bad() -> None:
        timeout_s = 1.0 if "sleep" in becomes else RULES.timeout_s
        bad = msgspec.structs.replace(RULES, command=("bash", "-c", becomes), timeout_s=timeout_s)
        monkeypatch.setattr(fingerprints, "ask", lambda core, generation, rules: ask(core, generation, bad))

    await node.create(SPEC, sandbox_id=BOX)
    assert inside(node).record.pool
    turn_bad()
    with pytest.raises(StateMismatchError) as failed:
        await node.rollback(BOX)
    assert why in failed.value.detail
    assert inside(node).state is SandboxState.FAILED
    monkeypatch.undo()
    await node.remove(BOX)
    await ready(node)
    await node.create(SPEC, sandbox_id="sbx-other")
    carrier = inside(node, "sbx-other").record.carrier
    turn_bad()
    await node.remove("sbx-other")
    told: list[str] = []
    with anyio.fail_after(60):
        while not told:
            await anyio.sleep(0.01)
            told = [each.text for each in await node.pools.events() if each.kind is EventKind.NOT_CLEAN]
    monkeypatch.undo()
    assert why in told[-1]
    await ready(node)
    assert carrier not in node._core.vacant


async def ready(node: Node) -> None:
    with anyio.fail_after(60):
        while True:
            (info,) = await node.pools.list_pools()
            now = info.statistics
            if now.ready and not (now.creating or now.recycling or now.recycle_queue or now.leaving):
                return
            await anyio.sleep(0.01)


async def test_no_sandbox_is_made_of_an_image_whose_check_fails(ruled: Path, image_root: Path) -> None:
    store = LocalImageStore(ruled / "images")
    bad = FingerprintRules(command=("sh", "-c", "sleep 1000 & yes >/dev/null"), timeout_s=0.3)
    import_image(store, ImportRequest(path=image_root, name="bad", fingerprint=bad))
    store.close()
    async with open_node(NodeSettings(state_dir=str(ruled), first_host_id=HOST_IDS)) as node:
        with pytest.raises(HookFailedError, match="did not end within"):
            await node.create(msgspec.structs.replace(SPEC, image="bad"), sandbox_id=BOX)
        assert await node.list(SandboxFilter(states=tuple(SandboxState))) == []
