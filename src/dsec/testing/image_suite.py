"""What every implementation of `dsec.images.port.ImageStore` does.

`ImageStoreSuite` runs over every driver, the in-memory fake included: subclass it in a test module with a fixture
`store`. `StoredImageSuite` adds what only stores with content can show; it needs a fixture `open_store` too, which
opens the same state again as another process would.
"""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dsec.base.errors import DsecError, ImageNotFoundError, StateCorruptedError
from dsec.images.listing import directory_digest
from dsec.images.port import ImageStore
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig, LayerFormat

OpenStore = Callable[..., LocalImageStore]
"""Opens the store under test; keyword arguments go to `LocalImageStore`."""

CONFIG = ImageConfig(env={"A": "1"}, workdir="/w", user="7:8")

_ADD_LAYER = """
import sys
from pathlib import Path
from dsec.images.store import LocalImageStore
from dsec.model.image import LayerFormat
store = LocalImageStore(Path(sys.argv[1]), layer_format=LayerFormat(sys.argv[2]))
print("open", flush=True)
print(store.add_layer(Path(sys.argv[3])), flush=True)
sys.stdin.read()
"""


def make_tree(root: Path, **files: str) -> Path:
    """Write text files below `root` and return it; ``__`` in a name stands for a slash."""
    root.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (1_600_000_000, 1_600_000_000))
    return root


def _plain(name: str) -> str:
    return name.removesuffix(":latest")


class ImageStoreSuite:
    """The part of the contract that needs no content."""

    def test_unknown_name_is_an_error_that_says_what_to_do(self, store: ImageStore) -> None:
        with pytest.raises(ImageNotFoundError) as caught:
            store.get("no-such-image")
        assert "no-such-image" in caught.value.brief
        assert "import" in caught.value.resolution

    def test_unknown_name_names_the_closest(self, store: ImageStore, tmp_path: Path) -> None:
        store.add_image("numpy-env", [store.add_layer(make_tree(tmp_path / "t", a="1"))], CONFIG, source="test")
        with pytest.raises(ImageNotFoundError) as caught:
            store.get("numpi-env")
        assert "numpy-env" in str(caught.value)

    def test_added_image_is_returned_by_get_and_list(self, store: ImageStore, tmp_path: Path) -> None:
        digest = store.add_layer(make_tree(tmp_path / "t", a="1"))
        added = store.add_image("mine:v1", [digest], CONFIG, source="test")
        assert store.get("mine:v1") == added
        assert added in store.list()
        assert [layer.digest for layer in added.layers] == [digest]
        assert (added.config, added.source) == (CONFIG, "test")

    def test_no_tag_means_latest(self, store: ImageStore, tmp_path: Path) -> None:
        store.add_image("mine", [store.add_layer(make_tree(tmp_path / "t", a="1"))], CONFIG, source="test")
        assert store.get("mine:latest") == store.get("mine")

    def test_equal_trees_are_one_layer_and_different_trees_are_two(self, store: ImageStore, tmp_path: Path) -> None:
        one = store.add_layer(make_tree(tmp_path / "one", a="1", d__b="2"))
        same = store.add_layer(make_tree(tmp_path / "same", d__b="2", a="1"))
        other = store.add_layer(make_tree(tmp_path / "other", a="1", d__b="3"))
        assert one == same != other
        assert one.startswith("sha256:")

    def test_equal_images_have_equal_ids_under_any_name(self, store: ImageStore, tmp_path: Path) -> None:
        digest = store.add_layer(make_tree(tmp_path / "t", a="1"))
        one = store.add_image("one", [digest], CONFIG, source="here")
        two = store.add_image("two", [digest], CONFIG, source="there")
        other = store.add_image("other", [digest], ImageConfig(), source="here")
        assert one.image_id == two.image_id != other.image_id

    def test_importing_under_a_taken_name_moves_the_name(self, store: ImageStore, tmp_path: Path) -> None:
        first = store.add_image("mine", [store.add_layer(make_tree(tmp_path / "a", a="1"))], CONFIG, source="1")
        second = store.add_image("mine", [store.add_layer(make_tree(tmp_path / "b", a="2"))], CONFIG, source="2")
        assert store.get("mine") == second != first
        assert [image.name for image in store.list()].count(second.name) == 1
        assert store.mount(["mine"]).info == second

    def test_image_of_a_layer_that_is_not_stored_is_refused(self, store: ImageStore) -> None:
        with pytest.raises(DsecError):
            store.add_image("mine", ["sha256:" + "0" * 64], CONFIG, source="test")
        with pytest.raises(ImageNotFoundError):
            store.get("mine")

    def test_removed_name_is_unknown_and_cannot_be_removed_twice(self, store: ImageStore, tmp_path: Path) -> None:
        store.add_image("mine", [store.add_layer(make_tree(tmp_path / "t", a="1"))], CONFIG, source="test")
        store.remove("mine")
        with pytest.raises(ImageNotFoundError):
            store.get("mine")
        with pytest.raises(ImageNotFoundError):
            store.remove("mine")
        with pytest.raises(ImageNotFoundError):
            store.mount(["mine"])

    def test_mount_stacks_images_in_order_and_merges_what_they_say(self, store: ImageStore, tmp_path: Path) -> None:
        layers = [store.add_layer(make_tree(tmp_path / name, name=name)) for name in "abc"]
        base = store.add_image("base", layers[:2], CONFIG, source="test")
        tools = store.add_image("tools", layers[2:], ImageConfig(env={"B": "2"}), source="test")
        mounted = store.mount(["base", "tools"])
        assert mounted.info.name == base.name
        assert mounted.info.layers == base.layers + tools.layers
        assert mounted.info.config == ImageConfig(env={"A": "1", "B": "2"}, workdir="/w", user="7:8")
        assert len(mounted.layer_paths) == 3
        assert mounted.layer_paths[:2] == store.mount(["base"]).layer_paths
        assert mounted.layer_paths[2:] == store.mount(["tools"]).layer_paths


class StoredImageSuite(ImageStoreSuite):
    """The part that needs content on disk, and other processes."""

    layer_format: LayerFormat

    def test_layers_are_readable_from_the_lowest_up(self, store: LocalImageStore, tmp_path: Path) -> None:
        layers = [store.add_layer(make_tree(tmp_path / name, name=name)) for name in "ab"]
        store.add_image("mine", layers, CONFIG, source="test")
        paths = store.mount(["mine"]).layer_paths
        assert [(path / "name").read_text() for path in paths] == ["a", "b"]

    def test_digest_is_that_of_the_tree_in_whatever_format(self, store: LocalImageStore, tmp_path: Path) -> None:
        tree = make_tree(tmp_path / "t", a="1", d__b="2")
        assert store.add_layer(tree) == directory_digest(tree)[0]

    @pytest.mark.root
    def test_layer_keeps_everything_that_a_tree_can_hold(self, store: LocalImageStore, tmp_path: Path) -> None:
        tree = tree_with_everything(tmp_path / "t")
        digest = store.add_layer(tree)
        store.add_image("mine", [digest], CONFIG, source="test")
        (mounted,) = store.mount(["mine"]).layer_paths
        assert directory_digest(mounted)[0] == directory_digest(tree)[0] == digest
        assert os.stat(mounted / "set-uid").st_mode & 0o7777 == 0o4755
        assert os.stat(mounted / "set-uid").st_uid == 1000
        assert os.stat(mounted / "one").st_ino == os.stat(mounted / "two").st_ino
        assert stat.S_ISCHR(os.lstat(mounted / "gone").st_mode)
        assert os.getxattr(mounted / "opaque", "trusted.overlay.opaque") == b"y"
        assert os.readlink(mounted / "link") == "/nowhere"
        assert os.path.exists(os.fsencode(mounted) + b"/not utf-8 \xff")

    @pytest.mark.root
    def test_mounted_layer_cannot_be_written_even_by_root(self, store: LocalImageStore, tmp_path: Path) -> None:
        store.add_image("mine", [store.add_layer(make_tree(tmp_path / "t", a="1"))], CONFIG, source="test")
        (mounted,) = store.mount(["mine"]).layer_paths
        with pytest.raises(OSError, match="Read-only file system"):
            (mounted / "a").write_text("2")
        with pytest.raises(OSError, match="Read-only file system"):
            (mounted / "new").write_text("2")

    def test_changing_the_tree_afterwards_does_not_change_the_layer(
        self, store: LocalImageStore, tmp_path: Path
    ) -> None:
        tree = make_tree(tmp_path / "t", a="1")
        store.add_image("mine", [store.add_layer(tree)], CONFIG, source="test")
        (tree / "a").write_text("2")
        assert (store.mount(["mine"]).layer_paths[0] / "a").read_text() == "1"
        store.verify("mine")

    def test_removed_image_stays_readable_where_it_is_mounted(self, store: LocalImageStore, tmp_path: Path) -> None:
        digest = store.add_layer(make_tree(tmp_path / "t", a="1"))
        store.add_image("mine", [digest], CONFIG, source="test")
        (mounted,) = store.mount(["mine"]).layer_paths
        store.remove("mine")
        assert (mounted / "a").read_text() == "1"
        store.release()
        assert not (mounted / "a").exists()
        assert list((store.root / "layers").iterdir()) == []

    def test_remove_deletes_layers_of_no_other_name(self, store: LocalImageStore, tmp_path: Path) -> None:
        shared, own = (store.add_layer(make_tree(tmp_path / name, name=name)) for name in "ab")
        store.add_image("one", [shared, own], CONFIG, source="test")
        store.add_image("two", [shared], CONFIG, source="test")
        store.remove("one")
        assert [path.name for path in (store.root / "layers").iterdir()] == [shared.removeprefix("sha256:")]
        store.verify("two")

    def test_release_spares_what_sandboxes_use(self, open_store: OpenStore, tmp_path: Path) -> None:
        used: set[str] = set()
        store = open_store(layers_in_use=lambda: frozenset(used))
        used.add(store.add_layer(make_tree(tmp_path / "t", a="1")))
        store.add_image("mine", sorted(used), CONFIG, source="test")
        (mounted,) = store.mount(["mine"]).layer_paths
        store.remove("mine")
        store.release()
        assert (mounted / "a").read_text() == "1"
        used.clear()
        store.release()
        assert not mounted.exists()

    def test_nothing_is_collected_while_it_is_not_known_what_sandboxes_use(
        self, open_store: OpenStore, tmp_path: Path
    ) -> None:
        store = open_store(layers_in_use=lambda: None)
        store.add_image("mine", [store.add_layer(make_tree(tmp_path / "t", a="1"))], CONFIG, source="test")
        (mounted,) = store.mount(["mine"]).layer_paths
        store.remove("mine")
        store.release()
        assert (mounted / "a").read_text() == "1"
        known = open_store()
        known.release()
        store.close()
        known.release()
        assert list((store.root / "layers").iterdir()) == []

    def test_mount_again_after_release(self, store: LocalImageStore, tmp_path: Path) -> None:
        store.add_image("mine", [store.add_layer(make_tree(tmp_path / "t", a="1"))], CONFIG, source="test")
        store.mount(["mine"])
        store.release()
        assert (store.mount(["mine"]).layer_paths[0] / "a").read_text() == "1"

    def test_mounts_are_found_again_after_a_restart(self, open_store: OpenStore, tmp_path: Path) -> None:
        first = open_store()
        first.add_image("mine", [first.add_layer(make_tree(tmp_path / "t", a="1"))], CONFIG, source="test")
        paths = first.mount(["mine"]).layer_paths
        before = [os.stat(path).st_dev for path in paths]
        first.close()
        second = open_store()
        assert second.mount(["mine"]).layer_paths == paths
        assert [os.stat(path).st_dev for path in paths] == before

    def test_name_moved_by_another_process_is_seen_at_once(self, open_store: OpenStore, tmp_path: Path) -> None:
        one, two = open_store(), open_store()
        one.add_image("mine", [one.add_layer(make_tree(tmp_path / "a", a="1"))], CONFIG, source="test")
        assert (two.mount(["mine"]).layer_paths[0] / "a").read_text() == "1"
        one.add_image("mine", [one.add_layer(make_tree(tmp_path / "b", a="2"))], CONFIG, source="test")
        assert (two.mount(["mine"]).layer_paths[0] / "a").read_text() == "2"

    def test_layer_that_another_process_has_not_named_yet_is_not_collected(
        self, open_store: OpenStore, tmp_path: Path
    ) -> None:
        one, two = open_store(), open_store()
        digest = one.add_layer(make_tree(tmp_path / "t", a="1"))
        two.add_image("other", [two.add_layer(make_tree(tmp_path / "o", a="2"))], CONFIG, source="test")
        two.remove("other")
        one.add_image("mine", [digest], CONFIG, source="test")
        one.verify("mine")

    def test_damaged_layer_is_not_mounted(self, store: LocalImageStore, tmp_path: Path) -> None:
        digest = store.add_layer(make_tree(tmp_path / "t", a="1"))
        store.add_image("mine", [digest], CONFIG, source="test")
        (store.root / "layers" / digest.removeprefix("sha256:") / "layer.json").write_text("{}")
        with pytest.raises(StateCorruptedError):
            store.mount(["mine"])

    def test_two_processes_add_the_same_layer_at_once(self, open_store: OpenStore, tmp_path: Path) -> None:
        store = open_store()
        tree = make_tree(tmp_path / "t", **{f"f{number}": str(number) for number in range(200)})
        workers = [self._adder(store, tree) for _ in range(2)]
        digests = {_result_of(worker) for worker in workers}
        assert len(digests) == 1
        store.add_image("mine", list(digests), CONFIG, source="test")
        store.verify("mine")
        for worker in workers:
            worker.communicate()
        assert len(list((store.root / "layers").iterdir())) == 1

    @pytest.mark.slow
    def test_killed_while_adding_leaves_a_whole_layer_or_none(self, open_store: OpenStore, tmp_path: Path) -> None:
        store = open_store()
        tree = make_tree(tmp_path / "t", **{f"f{number}": "x" * number for number in range(1500)})
        expected = directory_digest(tree)[0].removeprefix("sha256:")
        for seed in range(5):
            worker = self._adder(store, tree)
            assert worker.stdout is not None
            assert worker.stdout.readline() == "open\n"
            time.sleep(random.Random(seed).uniform(0.0, 0.15))  # The moment of the kill is the input of this test.
            worker.send_signal(signal.SIGKILL)
            worker.communicate()
            assert {path.name for path in (store.root / "layers").iterdir()} <= {expected}
            open_store().close()
            assert list((store.root / "layers").iterdir()) == []
            assert list((store.root / "pins").iterdir()) == []
            _wait_swept(open_store, store.root / "staging")
        assert store.add_layer(tree).removeprefix("sha256:") == expected

    def _adder(self, store: LocalImageStore, tree: Path) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", _ADD_LAYER, str(store.root), self.layer_format.value, str(tree)]
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _result_of(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    assert worker.stdout.readline() == "open\n"
    return worker.stdout.readline().strip()


def _wait_swept(open_store: OpenStore, staging: Path, *, patience_s: float = 30.0) -> None:
    """Open the store until nothing is staged: a program that the killed process had started may run a moment longer."""
    deadline_s = time.monotonic() + patience_s
    while list(staging.iterdir()):
        assert time.monotonic() < deadline_s, f"left behind: {list(staging.iterdir())}"
        open_store().close()


def tree_with_everything(root: Path) -> Path:
    """Make a tree with every kind of entry that a layer may hold. Needs root."""
    make_tree(root, one="1", deep__er__file="2")
    (root / "set-uid").write_text("#!/bin/sh\n")
    os.chown(root / "set-uid", 1000, 1001)
    os.chmod(root / "set-uid", 0o4755)
    os.link(root / "one", root / "two")
    os.symlink("/nowhere", root / "link")
    os.lchown(root / "link", 5, 6)
    os.mkfifo(root / "fifo")
    os.mknod(root / "gone", stat.S_IFCHR | 0o600, 0)
    os.mknod(root / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (root / "opaque").mkdir()
    os.setxattr(root / "opaque", "trusted.overlay.opaque", b"y")
    os.setxattr(root / "one", "user.note", b"\x00\xff")
    capability = bytes.fromhex("0100000200200000000000000000000000000000")
    os.setxattr(root / "two", "security.capability", capability)
    (root / "empty").touch()
    with open(os.fsencode(root) + b"/not utf-8 \xff", "w") as file:
        file.write("name")
    return root
