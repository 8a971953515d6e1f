"""`dsec image push` and `pull` with a registry, as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig
from dsec.testing.ended_layers import layers_ended
from dsec.testing.image_suite import make_tree
from dsec.testing.servers import GuardedRegistry

pytestmark = [pytest.mark.root, pytest.mark.slow]


def test_an_image_goes_to_a_registry_and_comes_from_it(tmp_path: Path, password_registry: GuardedRegistry) -> None:
    environment = dict(password_registry.environment)
    place = f"{password_registry.server.host}/{uuid.uuid4().hex}"

    def dsec(state: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dsec", "--state-dir", str(tmp_path / state), "image", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)

    store = LocalImageStore(tmp_path / "here/images")
    layer = store.add_layer(make_tree(tmp_path / "tree", a="1" * 5000))
    store.add_image("mine:v1", [layer], ImageConfig(), source="test")
    store.close()
    pushed = dsec("here", "push", "mine:v1", f"{place}/mine:v1")
    assert pushed.returncode == 0, pushed.stderr
    assert pushed.stdout.startswith(f"{place}/mine:v1@sha256:")
    pulled = dsec("there", "pull", pushed.stdout.strip(), "--json")
    assert pulled.returncode == 0, pulled.stderr
    (shown,) = json.loads(pulled.stdout)["layers"]
    assert (shown["digest"], shown["format"]) == (layer, "lazy")
    with layers_ended(tmp_path / "there/images/lazy"):
        eager = dsec("there", "pull", f"{place}/mine:v1", "--eager", "--name", "whole", "--json")
        assert json.loads(eager.stdout)["layers"][0]["format"] == "erofs"
    environment["REGISTRY_AUTH_FILE"] = str(tmp_path / "none.json")
    refused = dsec("there", "pull", f"{place}/mine:v1")
    assert refused.returncode == 77
    assert f"podman login {password_registry.server.host}" in refused.stderr
    refused = dsec("here", "push", "mine:v1", f"{place}/mine:v2")
    assert refused.returncode == 77
    assert "cutting" not in refused.stderr  # What takes long has not begun.
