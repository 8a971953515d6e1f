"""`dsec image publish` and `pull`, as a user types them; sandboxes of such images: tests/system/test_lazy_image.py."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig
from dsec.testing.ended_layers import layers_ended
from dsec.testing.image_suite import make_tree

pytestmark = [pytest.mark.root, pytest.mark.slow]


def _dsec(state: Path, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dsec", "--state-dir", str(state), "--set", f"store={url}", "image", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_an_image_is_published_here_and_pulled_there(tmp_path: Path) -> None:
    url = (tmp_path / "objects").as_uri()
    store = LocalImageStore(tmp_path / "here/images")
    digest = store.add_layer(make_tree(tmp_path / "tree", a="1"))
    store.add_image("mine:v1", [digest], ImageConfig(), source="test")
    store.close()
    published = _dsec(tmp_path / "here", url, "publish", "mine:v1")
    reference = published.stdout.strip()
    assert reference.startswith("b3:"), published.stderr
    pulled = _dsec(tmp_path / "there", url, "pull", reference, "--json")
    assert json.loads(pulled.stdout)["layers"] == [{"digest": digest, "format": "lazy", "size_bytes": 4096}]
    (listed,) = json.loads(_dsec(tmp_path / "there", url, "ls", "--json").stdout)
    assert listed["layers"][0]["here_bytes"] == 0
    shown = _dsec(tmp_path / "there", url, "inspect", "mine:v1")
    assert f"{digest} lazy 4.0 KiB, 0 B of it here" in shown.stdout
    with layers_ended(tmp_path / "there/images/lazy"):
        whole = _dsec(tmp_path / "there", url, "pull", reference, "--eager", "--json")
    assert json.loads(whole.stdout)["layers"] == [{"digest": digest, "format": "erofs", "size_bytes": 4096}]
    assert whole.stderr.endswith("pulling: 4.0 KiB of 4.0 KiB\n")


def test_who_pulls_a_tag_has_it_under_the_tag_from_the_store_that_is_named(tmp_path: Path) -> None:
    url = (tmp_path / "objects").as_uri()
    store = LocalImageStore(tmp_path / "here/images")
    store.add_image("mine", [store.add_layer(make_tree(tmp_path / "tree", a="1"))], ImageConfig(), source="test")
    store.close()
    refused = _dsec(tmp_path / "here", url, "publish", "mine", "--tag", "localhost:5000/mine")
    assert (refused.returncode, "pulled from the registry" in refused.stderr) == (64, True)
    own = _dsec(tmp_path / "here", "", "publish", "mine", "--tag", "team:v1")
    assert "set `store` to one that all hosts reach" in own.stderr
    shared = _dsec(tmp_path / "here", url, "publish", "mine", "--tag", "team:v1")
    assert "on other hosts: dsec image pull team:v1" in shared.stderr
    there, none = tmp_path / "there", (tmp_path / "none").as_uri()
    apart = _dsec(tmp_path / "here", none, "publish", "mine", "--tag", "team:v1", "--store", url)
    assert f"dsec image pull team:v1 --store {url}" in apart.stderr
    pulled = _dsec(there, none, "pull", "team:v1", "--store", url)
    assert pulled.stdout.startswith("team:v1  ")
    assert pulled.stderr == "make a sandbox of it: dsec sandbox create team:v1\n"
    refused = _dsec(there, none, "pull", "team:v1")
    assert refused.returncode == 66
    assert "is not there" in refused.stderr
    assert not (tmp_path / "none").exists()


def test_what_cannot_be_read_of_a_lazy_layer_is_said_in_words(tmp_path: Path) -> None:
    url = (tmp_path / "objects").as_uri()
    store = LocalImageStore(tmp_path / "here/images")
    digest = store.add_layer(make_tree(tmp_path / "tree", a="precious" * 200_000))
    store.add_image("mine:v1", [digest], ImageConfig(), source="test")
    store.close()
    _dsec(tmp_path / "here", url, "publish", "mine:v1", "--tag", "mine:v1")
    (manifest,) = (tmp_path / "objects/layers/manifests").iterdir()
    parts = json.loads(manifest.read_bytes())
    metadata = {name for name, _ in parts["metadata_chunks"]}
    for chunk in (tmp_path / "objects/layers/chunks").glob("*/*"):
        if chunk.name not in metadata:
            chunk.unlink()
    with layers_ended(tmp_path / "there/images/lazy"):
        _dsec(tmp_path / "there", url, "pull", "mine:v1")
        for command in (["inspect", "mine:v1", "--verify"], ["export", "mine:v1", str(tmp_path / "layout")]):
            failed = _dsec(tmp_path / "there", url, *command)
            assert (failed.returncode, "cannot be read" in failed.stderr) == (69, True), failed.stderr
    assert not (tmp_path / "layout").exists()


def test_what_cannot_be_pulled_is_said_with_its_code(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    url = (tmp_path / "objects").as_uri()
    refused = _dsec(tmp_path / "there", url, "pull", "b3:" + "0" * 64)
    assert refused.returncode == 66
    assert "has no image" in refused.stderr
    assert "tagged 'mine'" in (unknown := _dsec(tmp_path / "there", url, "pull", "mine")).stderr
    assert unknown.returncode == 66


def test_an_image_is_verified_in_the_words_of_its_parts(tmp_path: Path) -> None:
    url = (tmp_path / "objects").as_uri()
    store = LocalImageStore(tmp_path / "here/images")
    digest = store.add_layer(make_tree(tmp_path / "tree", a="precious" * 2000))
    store.add_image("mine:v1", [digest], ImageConfig(), source="test")
    path, _ = store.stored_layer(digest)
    store.close()
    sound = _dsec(tmp_path / "here", url, "verify", "--image", "mine:v1", "--full")
    assert sound.stdout.splitlines()[1] == "[layer-1] OK (hash matched)"
    path.write_bytes(path.read_bytes().replace(b"precious", b"tampered"))
    rotten = _dsec(tmp_path / "here", url, "verify", "--image", "mine:v1", "--full")
    assert rotten.returncode == 70
    assert re.search(r"\[layer-1\] FAILED on \S+ \(hash mismatch, expected", rotten.stdout)
    assert "advice: import or pull layer-1 again" in rotten.stdout
