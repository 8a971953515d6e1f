"""Images by reference for an ordinary user, who can mount none of them: pulled whole, and kept as directories."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from dsec.images.lazy.publication.sharing import publish_image
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig
from dsec.stores.objects_folder import FolderObjectStore
from dsec.testing.image_suite import make_tree
from dsec.testing.ordinary_user import OrdinaryUser

pytestmark = [pytest.mark.root, pytest.mark.slow]


class Published:
    """Images that root has published where everybody may read."""

    def __init__(self, top: Path) -> None:
        self.objects = FolderObjectStore(top / "objects")
        self._images = LocalImageStore(top / "images")

    def publish(self, tree: Path) -> tuple[str, str]:
        """Publish a tree and return the image's reference and its layer."""
        digest = self._images.add_layer(tree)
        self._images.add_image("mine", [digest], ImageConfig(), source="test")
        published = anyio.run(publish_image, self._images, "mine", self.objects)
        subprocess.run(["chmod", "-R", "a+rX", self.objects.url.removeprefix("file://")], check=True)
        return published.reference, digest

    def close(self) -> None:
        self._images.close()


@pytest.fixture
def top() -> Iterator[Path]:
    top = Path(tempfile.mkdtemp(prefix="dsec-"))
    top.chmod(0o755)
    yield top
    shutil.rmtree(top)


@pytest.fixture
def published(top: Path) -> Iterator[Published]:
    published = Published(top)
    yield published
    published.close()


@pytest.fixture
def state(user: OrdinaryUser) -> Iterator[Path]:
    """A state directory of the user's, whose namespace ends with the test."""
    state = Path(tempfile.mkdtemp(prefix="state-", dir=user.home))
    os.chown(state, user.uid, user.gid)
    yield state
    done = user.run(user.dsec(state, "down", "--destroy"))
    assert done.returncode == 0, done.stderr
    assert not (state / "namespace.keeper").exists()


def test_an_image_is_pulled_whole_without_root(
    top: Path, user: OrdinaryUser, state: Path, published: Published
) -> None:
    tree = make_tree(top / "tree", a="1", d__b="22")
    os.chown(tree / "a", 1000, 7)
    os.link(tree / "a", tree / "again")
    os.setxattr(tree / "a", "user.note", b"kept")
    os.mknod(tree / "gone", 0o020600, 0)
    reference, digest = published.publish(tree)
    options = ("--set", f"store={published.objects.url}", "image")
    lazily = user.run(user.dsec(state, *options, "pull", reference))
    assert lazily.returncode == 0, lazily.stderr
    assert "the same command with --eager" in lazily.stderr
    whole = user.run(user.dsec(state, *options, "pull", reference, "--eager", "--json"))
    assert whole.returncode == 0, whole.stderr
    (layer,) = json.loads(whole.stdout)["layers"]
    assert (layer["digest"], layer["format"]) == (digest, "directory")
    verified = user.run(user.dsec(state, *options, "verify", "--image", "mine", "--full"))
    assert "[layer-1] OK (hash matched)" in verified.stdout


def test_what_an_ordinary_user_cannot_keep_is_said(
    top: Path, user: OrdinaryUser, state: Path, published: Published
) -> None:
    tree = make_tree(top / "tree", opaque__file="1")
    os.setxattr(tree / "opaque", "trusted.overlay.opaque", b"y")
    os.mknod(tree / "null", 0o020666, os.makedev(1, 3))
    reference, _ = published.publish(tree)
    pull = ("--set", f"store={published.objects.url}", "image", "pull", "--eager", reference)
    refused = user.run(user.dsec(state, *pull))
    assert refused.returncode not in (0, 1), refused.stderr
    assert "Traceback" not in refused.stderr
    assert "trusted.overlay.opaque left out" in refused.stderr
    assert "1 x device nodes left out" in refused.stderr
    assert "pull the image as root" in refused.stderr
