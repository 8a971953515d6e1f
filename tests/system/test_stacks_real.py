"""Sandboxes of a base, a workspace and toolkits: real overlays, and everything that is made of such a sandbox later."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.base.errors import ImagesConflictError
from dsec.images.importers.detect import import_image
from dsec.images.importers.request import ImportRequest
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig
from dsec.model.pool import PoolChange
from dsec.model.process import CommandRequest
from dsec.model.sandbox import Resources, SandboxSpec
from dsec.model.state import ForkRequest, PackRequest
from dsec.node.builder import open_node
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.testing.guest_image import make_root

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]

SPEC = SandboxSpec(
    image="base", layers=("repo:v7", "linter:0.6"), resources=Resources(memory_bytes=256 << 20, disk_bytes=64 << 20)
)
SEEN = """pwd; echo $PATH; echo $LINTER; cat notes; lint; id -u
ls -A /opt/linter; ls /opt/linter/__pycache__ 2>/dev/null | wc -l; stat -c %a / /tmp /opt"""


async def shell(node: Node, sandbox_id: str, script: str) -> str:
    result = await node.run(sandbox_id, CommandRequest(argv=("sh", "-c", script)))
    assert result.status.exit_code == 0, result.stderr
    return result.stdout.decode()


def _tree(tmp_path: Path, name: str, files: dict[str, str]) -> Path:
    tree = tmp_path / name
    tree.mkdir(mode=0o700)
    for path, text in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
        (tree / path).chmod(0o755)
    return tree


def _import(state_dir: Path, tmp_path: Path) -> None:
    store = LocalImageStore(state_dir / "images")
    base = make_root(tmp_path / "base", python=True)
    import_image(store, ImportRequest(path=base, name="base", config=ImageConfig(workdir="/home/user")))
    repo = _tree(tmp_path, "repo", {"notes": "of the repository\n", "lib.py": "value = 42\n"})
    workdir = ImageConfig(workdir="/workspace")
    import_image(store, ImportRequest(path=repo, name="repo:v7", config=workdir, as_layer=True, at=b"workspace"))
    linter = _tree(
        tmp_path,
        "linter",
        {
            "bin/lint": "#!/bin/sh\nPYTHONPATH=/opt/linter:. python3 -c 'import rules'\n",
            "rules.py": "import lib\nprint(lib.value)\n",
        },
    )
    env = ImageConfig(env={"PATH": "/opt/linter/bin", "LINTER": "0.6"})
    import_image(store, ImportRequest(path=linter, name="linter:0.6", config=env, as_layer=True, at=b"opt/linter"))
    import_image(store, ImportRequest(path=_tree(tmp_path, "odd", {"bin": "no directory"}), name="odd", as_layer=True))
    store.close()


async def test_a_stack_is_one_environment_for_all_that_is_made_of_it(state_dir: Path, tmp_path: Path) -> None:
    _import(state_dir, tmp_path)
    async with open_node(NodeSettings(state_dir=str(state_dir))) as node:
        box = (await node.create(SPEC)).sandbox_id
        first = (await shell(node, box, SEEN)).splitlines()
        assert first[0] == "/workspace"
        assert first[1].endswith(":/opt/linter/bin")
        assert first[2:6] == ["0.6", "of the repository", "42", "0"]
        # Python wrote its cache beside the toolkit's module, through the overlay.
        assert first[6:10] == ["__pycache__", "bin", "rules.py", "1"]
        assert first[10:] == ["755", "1777", "755"]

        await shell(node, box, "rm -r /opt/linter/bin; echo mine > /workspace/notes; ls /opt/linter")
        changed = await shell(node, box, "ls -A /opt/linter; cat notes")
        (child,) = await node.state.fork(box, ForkRequest())
        assert await shell(node, child.sandbox_id, "ls -A /opt/linter; cat notes") == changed
        snapshot = await node.state.snapshot(box)
        report = await node.state.pack(box, PackRequest(name="packed"))
        restored = (await node.state.restore(snapshot.snapshot_id)).sandbox_id
        packed = (await node.create(SandboxSpec(image="packed"))).sandbox_id
        for each in (restored, packed):
            assert await shell(
                node, each, "cat notes; ls /opt/linter/bin 2>/dev/null || echo gone; pwd; echo $LINTER"
            ) == ("mine\ngone\n/workspace\n0.6\n")
        images = {image.name: image for image in await node.images()}
        assert [layer.digest for layer in images["packed"].layers] == [
            *(images[name].layers[0].digest for name in ("base", "repo:v7", "linter:0.6")),
            report.layer,
        ]
        await node.rollback(box)
        again = (await shell(node, box, SEEN)).splitlines()
        assert again == first
        await node.shutdown(destroy=True)


async def test_a_pool_keeps_stacks_ready_and_a_stack_that_cannot_be_is_refused(state_dir: Path, tmp_path: Path) -> None:
    _import(state_dir, tmp_path)
    async with open_node(NodeSettings(state_dir=str(state_dir))) as node:
        pool = await node.pools.set_pool(SPEC, PoolChange(floor=1, maximum=2, spreads=0.0, concurrency_share=0.0))
        box = await node.create(SPEC)
        assert "42" in await shell(node, box.sandbox_id, SEEN)
        (info,) = await node.pools.list_pools()
        assert info.statistics.hand_outs == 1
        with pytest.raises(ImagesConflictError, match="/bin"):
            await node.create(SandboxSpec(image="base", layers=("odd",)))
        await node.pools.remove_pool(pool.pool_id)
        await node.shutdown(destroy=True)
