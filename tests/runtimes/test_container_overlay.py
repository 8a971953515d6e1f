"""Both ways of mounting a root give the same sandbox."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.base.errors import RuntimeFailedError
from dsec.runtimes.container.overlay import OverlayMounter
from dsec.runtimes.container.runtime import RUN_DIRECTORY, ContainerRuntime
from dsec.testing.host_state import HostState
from dsec.testing.opened_runtime import opened_runtime
from dsec.testing.runtime_suite import Commands, MakeRequest, collect

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]


@pytest.fixture(params=[True, False], ids=["detached", "attached"])
async def runtime(
    node_id: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ContainerRuntime]:
    async with opened_runtime("crun", node_id) as runtime:
        monkeypatch.setattr(runtime, "_mounter", OverlayMounter(detached=request.param))
        yield runtime


async def test_files_of_the_image_are_seen_changed_and_owned_inside(
    runtime: ContainerRuntime, make_request: MakeRequest, image: Path, node_id: str
) -> None:
    commands = Commands()
    request = make_request()
    instance = await runtime.launch(request)
    script = """
        stat -c %u:%g:%a /root /home/user /tmp
        echo changed >>/etc/passwd && tail -n 1 /etc/passwd
        echo new >/root/new && chmod 600 /root/new && cat /root/new"""
    out, err, _ = await collect(await instance.spawn(commands.sh(script)))
    assert out.decode().split() == ["0:0:700", "1000:1000:755", "0:0:1777", "changed", "new"], err
    # What is written has no trace of the mapping on the host, and the layer below is as it was.
    assert (request.upper / "root/new").stat().st_uid == 0
    assert "changed" not in (image / "etc/passwd").read_text()
    assert HostState.read(node_id, RUN_DIRECTORY / node_id).mounts == frozenset()
    await instance.terminate()


async def test_layers_are_stacked_from_the_lowest_up(
    runtime: ContainerRuntime, make_request: MakeRequest, image: Path, tmp_path: Path
) -> None:
    layers = [image, tmp_path / "middle", tmp_path / "top"]
    for layer in layers[1:]:
        (layer / "data").mkdir(parents=True)
        (layer / "data" / layer.name).write_text(layer.name)
        (layer / "data/both").write_text(f"of {layer.name}")
    instance = await runtime.launch(make_request(layer_paths=layers))
    out, _, _ = await collect(await instance.spawn(Commands().sh("ls /data; cat /data/both")))
    assert out.decode().split("\n") == ["both", "middle", "top", "of top"]
    await instance.terminate()


async def test_refused_mount_is_typed_and_leaves_nothing(
    runtime: ContainerRuntime, make_request: MakeRequest, tmp_path: Path, node_id: str
) -> None:
    request = make_request(layer_paths=[tmp_path / "missing"])
    with pytest.raises(RuntimeFailedError):
        await runtime.launch(request)
    assert request.instance_id not in await runtime.instances()
    assert os.listdir(RUN_DIRECTORY / node_id) == []


async def test_no_layer_says_that_something_of_it_is_elsewhere(
    runtime: ContainerRuntime, make_request: MakeRequest, image: Path, tmp_path: Path
) -> None:
    (tmp_path / "top/look").mkdir(parents=True)
    os.setxattr(tmp_path / "top/look", "trusted.overlay.redirect", b"/etc")
    instance = await runtime.launch(make_request(layer_paths=[image, tmp_path / "top"]))
    out, _, _ = await collect(await instance.spawn(Commands().sh("ls -d /look/*; echo done")))
    assert out == b"done\n"
    await instance.terminate()
