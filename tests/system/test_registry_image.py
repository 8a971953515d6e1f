"""Sandboxes of an image that lies in a registry which wants tokens run, and go on when the registry has gone."""

from __future__ import annotations

import shutil
import uuid
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

from dsec.api.server import serve
from dsec.images.lazy.serving.client import LayerDaemon, end_daemon
from dsec.images.lazy.serving.daemon_options import DaemonOptions
from dsec.images.registry.client import RegistryClient
from dsec.images.registry.pull import PullRequest, pull_from_registry
from dsec.images.registry.push import PushRequest, push_image
from dsec.images.registry.reference import parse_reference
from dsec.images.store import LocalImageStore
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec
from dsec.node.builder import open_node
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.sdk._async.client import AsyncClient
from dsec.testing.registry_server import RegistryServer, auth_file, run_registry, run_token_server

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]


async def _said(node: Node, sandbox_id: str, script: str) -> str:
    result = await node.run(sandbox_id, CommandRequest(argv=("sh", "-c", script)))
    assert result.status.exit_code == 0, result.stderr
    return result.stdout.decode()


async def test_a_sandbox_of_an_image_in_a_registry(
    state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry_program: str
) -> None:
    daemon = LayerDaemon(state_dir / "images/lazy", DaemonOptions(store_url=(state_dir / "store").as_uri()))
    with (
        run_token_server(tmp_path / "tokens") as tokens,
        run_registry(tmp_path / "registry", registry_program, auth=tokens.section) as server,
    ):
        # The daemon that serves layers finds credentials as every program of this host's owner does.
        environment = auth_file(tmp_path / "auth.json", server.host)
        monkeypatch.setenv("REGISTRY_AUTH_FILE", environment["REGISTRY_AUTH_FILE"])
        reference = parse_reference(f"{server.host}/team/guest:v1")
        client = RegistryClient(server.host)
        here = LocalImageStore(state_dir / "images")
        await push_image(here, PushRequest(name="guest", reference=reference), client)
        here.close()
        shutil.rmtree(state_dir / "images")
        there = LocalImageStore(state_dir / "images")
        await pull_from_registry(there, PullRequest(reference=reference, name="guest"), client)
        there.close()
        await client.aclose()
        given = tokens.given
        async with open_node(NodeSettings(state_dir=str(state_dir))) as node:
            box = (await node.create(SandboxSpec(image="guest"))).sandbox_id
            assert await _said(node, box, "echo here; ls /bin/wc") == "here\n/bin/wc\n"
            assert tokens.given > given
            status = daemon.status()
            assert 0 < status.cached_bytes <= status.fetched_bytes
            server.process.kill()
            assert (
                await _said(node, box, "echo still here; ls /bin | wc -l > /dev/null; echo all") == "still here\nall\n"
            )
            await node.remove(box)
    await anyio.to_thread.run_sync(partial(end_daemon, state_dir / "images/lazy"))


async def test_a_trainer_pulls_an_image_over_http_and_runs_it(
    state_dir: Path, tmp_path: Path, registry: RegistryServer
) -> None:
    """Without a shell on the node: what it published and pushed comes again, and runs."""
    place = f"{registry.host}/{uuid.uuid4().hex}"
    async with (
        open_node(NodeSettings(state_dir=str(state_dir))) as node,
        serve(node, socket_path=state_dir / "api.sock"),
        AsyncClient(f"unix:{state_dir}/api.sock") as client,
    ):
        pushed = await client.push_image("guest", f"{place}:v1")
        published = await client.publish_image("guest", tag="guest-in-store")
        for reference, eager in ((pushed.reference, False), (published.reference, True)):
            pulled = await client.pull_image(reference, name="again", eager=eager)
            assert pulled.name == "again"
            box = await client.create("again")
            assert (await box.run("echo here; ls /bin/wc")).stdout == "here\n/bin/wc\n"
            await box.aclose()
        assert (await client.verify_image("again", full=True)).ok
        assert {use.image for use in await client.image_statistics()} >= {"again", "guest"}
    await anyio.to_thread.run_sync(partial(end_daemon, state_dir / "images/lazy"))
