"""What a host meets that nobody planned for: another version's cache, two pulls of one image, stores that turn bad."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import anyio
import pytest

from dsec.base.errors import CapabilityMissingError, PermissionDeniedError
from dsec.images.lazy.publication.sharing import publish_image, pull_image
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig
from dsec.testing.faulty_store import FaultyObjectStore
from dsec.testing.image_hosts import ImageHosts, image_hosts
from dsec.testing.image_suite import make_tree

pytestmark = [pytest.mark.root, pytest.mark.slow]

T = TypeVar("T")


def _run(act: Callable[[], Awaitable[T]]) -> T:
    return anyio.run(act)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[ImageHosts]:
    with image_hosts(tmp_path) as made:
        yield made


def _publish(hosts: ImageHosts, tmp_path: Path) -> str:
    here = hosts.host("here")
    layers = [here.add_layer(make_tree(tmp_path / name, **{name: name * 5000})) for name in "ab"]
    here.add_image("mine:v1", layers, ImageConfig(), source="test")
    return _run(lambda: publish_image(here, "mine:v1", hosts.objects)).reference


@pytest.mark.parametrize("version", ['{"version": 9}', "garbage"])
def test_a_cache_of_another_version_is_left_alone_and_named_to_whoever_needs_a_layer(
    hosts: ImageHosts, tmp_path: Path, version: str
) -> None:
    reference = _publish(hosts, tmp_path)
    there = hosts.host("there")
    cache = there.root / "lazy/cache"
    cache.mkdir(parents=True)
    (cache / "format.json").write_text(version)
    (cache / "precious").write_text("of the other version")
    _run(lambda: pull_image(there, reference, hosts.objects))
    with pytest.raises(CapabilityMissingError) as caught:
        there.mount(["mine:v1"])
    said = f"{caught.value.brief} {caught.value.detail} {caught.value.resolution}"
    assert "is not of version 1" in said
    assert f"remove {cache}" in said
    assert (cache / "precious").read_text() == "of the other version"
    (cache / "format.json").unlink()
    assert (there.mount(["mine:v1"]).layer_paths[0] / "a").read_text() == "a" * 5000


_PULL = """
import sys, anyio
from pathlib import Path
from dsec.images.lazy.publication.sharing import pull_image
from dsec.images.store import LocalImageStore
from dsec.stores.objects_folder import FolderObjectStore
images = LocalImageStore(Path(sys.argv[1]))
objects = FolderObjectStore(Path(sys.argv[2]))
sys.stdin.readline()
for _ in range(5):
    anyio.run(lambda: pull_image(images, sys.argv[3], objects))
images.close()
"""


def test_pulls_of_one_image_at_once_make_one_image(hosts: ImageHosts, tmp_path: Path) -> None:
    reference = _publish(hosts, tmp_path)
    command = [sys.executable, "-c", _PULL, str(tmp_path / "there"), str(tmp_path / "objects"), reference]
    pulls = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(3)]
    for pull in pulls:
        assert pull.stdin is not None
        pull.stdin.write(b"\n")
        pull.stdin.close()
    assert [pull.wait(60) for pull in pulls] == [0, 0, 0]
    there: LocalImageStore = hosts.host("there")
    (image,) = there.list()
    assert len(list((there.root / "layers").iterdir())) == 2
    assert list((there.root / "staging").iterdir()) == []
    paths = there.mount([image.name]).layer_paths
    assert [(path / name).read_text() for path, name in zip(paths, "ab", strict=True)] == ["a" * 5000, "b" * 5000]


def test_whoever_may_only_read_a_store_pulls_and_holds_nothing_there(hosts: ImageHosts, tmp_path: Path) -> None:
    reference = _publish(hosts, tmp_path)

    class ReadOnly(FaultyObjectStore):
        async def put(self, key: str, data: bytes, *, if_absent: bool = False, timeout_s: float = 60.0) -> bool:
            raise PermissionDeniedError("this store may be read only")

    there = hosts.host("there")
    _run(lambda: pull_image(there, reference, ReadOnly(hosts.objects)))
    assert (there.mount(["mine:v1"]).layer_paths[0] / "a").read_text() == "a" * 5000
    assert not (tmp_path / "objects/layers/pins").exists()
