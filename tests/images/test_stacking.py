"""An environment of base, workspace and toolkits: what their images say is merged by rules that can be told."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dsec.base.errors import ImagesConflictError, InvalidRequestError, UnsafeArchiveError
from dsec.images.importers.detect import import_image
from dsec.images.importers.request import ImportRequest
from dsec.images.memory import MemoryImages
from dsec.images.stacking import MAXIMUM_STACKED_LAYERS, stacked, stacked_config
from dsec.images.store import LocalImageStore
from dsec.model.image import FingerprintRules, ImageConfig, ImageInfo, LayerFormat, LayerInfo, StateHooks

BASE = ImageConfig(env={"PATH": "/usr/bin:/bin", "LANG": "C"}, workdir="/home/user", user="user")


def image(name: str, config: ImageConfig = ImageConfig(), layers: str = "") -> ImageInfo:
    infos = tuple(LayerInfo(digest=f"sha256:{each}", format=LayerFormat.DIRECTORY, size_bytes=0) for each in layers)
    return ImageInfo(name=name, image_id=name, layers=infos, config=config)


def merged(*configs: ImageConfig) -> ImageConfig:
    return stacked_config([image(f"i{number}", config) for number, config in enumerate(configs)])


def digits(info: ImageInfo) -> str:
    return "".join(layer.digest.removeprefix("sha256:") for layer in info.layers)


class TestSettings:
    def test_the_uppermost_value_of_a_variable_counts_and_lists_of_directories_are_appended_to(self) -> None:
        tool = ImageConfig(env={"PATH": "/opt/tool/bin:/usr/bin", "LANG": "C.UTF-8", "TOOL": "1"})
        assert merged(BASE, tool).env == {"PATH": "/usr/bin:/bin:/opt/tool/bin", "LANG": "C.UTF-8", "TOOL": "1"}

    def test_the_usual_path_stands_first_where_the_base_says_nothing(self) -> None:
        tool = ImageConfig(env={"PATH": "/opt/tool/bin"})
        assert merged(ImageConfig(), tool).env["PATH"].endswith(":/usr/bin:/sbin:/bin:/opt/tool/bin")

    def test_the_user_is_the_bases_and_the_directory_that_of_the_uppermost_that_names_one(self) -> None:
        found = merged(BASE, ImageConfig(workdir="/workspace", user="7"), ImageConfig())
        assert (found.user, found.workdir) == ("user", "/workspace")

    def test_what_a_toolkit_has_from_the_base_that_it_was_built_on_is_not_said_by_it(self) -> None:
        workspace = ImageConfig(env={"LANG": "de_DE.UTF-8"}, workdir="/workspace")
        built = ImageConfig(env=BASE.env | {"PATH": "/opt/x:/usr/bin:/bin"}, workdir=BASE.workdir, user=BASE.user)
        found = merged(BASE, workspace, built)
        assert (found.workdir, found.env["LANG"]) == ("/workspace", "de_DE.UTF-8")
        assert found.env["PATH"] == "/usr/bin:/bin:/opt/x"

    def test_hooks_come_from_one_image_alone(self) -> None:
        hooks = StateHooks(export_state=("save",))
        assert merged(BASE, ImageConfig(hooks=hooks)).hooks == hooks
        assert merged(ImageConfig(hooks=hooks), ImageConfig(hooks=hooks)).hooks == hooks
        other = StateHooks(export_state=("other",))
        with pytest.raises(ImagesConflictError, match=r"i1.*i2.*hooks"):
            merged(BASE, ImageConfig(hooks=hooks), ImageConfig(hooks=other))

    def test_paths_of_fingerprint_rules_are_joined_and_there_is_one_command(self) -> None:
        lower = FingerprintRules(files=("/a",), ignored=("/tmp",))
        upper = FingerprintRules(files=("/a", "/b"), contents=("/c",), command=("check",), timeout_s=3.0)
        found = merged(ImageConfig(fingerprint=lower), ImageConfig(fingerprint=upper)).fingerprint
        assert (found.files, found.contents, found.ignored) == (("/a", "/b"), ("/c",), ("/tmp",))
        assert (found.command, found.timeout_s) == (("check",), 3.0)
        other = FingerprintRules(command=("another",))
        with pytest.raises(ImagesConflictError, match="check of their clean state"):
            merged(ImageConfig(fingerprint=upper), ImageConfig(fingerprint=other))


class TestLayers:
    def test_a_shared_layer_is_stacked_once_at_its_lowest_place(self) -> None:
        stack = stacked([image("base", BASE, "ab"), image("workspace", layers="ac"), image("tool", layers="abd")])
        assert digits(stack) == "abcd"
        assert stack.name == "base"

    def test_a_layer_that_an_image_has_twice_counts_where_it_is_uppermost(self) -> None:
        assert digits(stacked([image("odd", layers="aba")])) == "ba"

    def test_more_layers_than_overlayfs_takes_are_refused(self) -> None:
        one = image("one", layers="a")
        layers = tuple(
            LayerInfo(digest=f"sha256:{number}", format=LayerFormat.DIRECTORY, size_bytes=0)
            for number in range(MAXIMUM_STACKED_LAYERS)
        )
        many = ImageInfo(name="many", image_id="many", layers=layers)
        assert len(stacked([many]).layers) == MAXIMUM_STACKED_LAYERS
        with pytest.raises(InvalidRequestError, match=r"one \+ many has 501 layers.*500") as caught:
            stacked([one, many])
        assert "dsec image merge" in caught.value.resolution

    def test_the_store_in_memory_stacks_like_the_one_on_disk(self) -> None:
        images = MemoryImages("base", "tool")
        mounted = images.mount(["base", "tool", "tool"])
        assert len(mounted.layer_paths) == len(mounted.info.layers) == 2


def make(store: LocalImageStore, tmp_path: Path, name: str, content: dict[str, str], **request: Any) -> ImageInfo:
    """Import a directory; a content that begins with an arrow makes a symbolic link."""
    tree = tmp_path / f"tree-{name.replace(':', '-')}"
    tree.mkdir(mode=0o700)
    for path, text in content.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("->"):
            (tree / path).symlink_to(text[2:])
        else:
            (tree / path).write_text(text)
    return import_image(store, ImportRequest(path=tree, name=name, **request))


MERGED_USR = {"usr/bin/sh": "", "bin": "->usr/bin"}


def test_a_directory_that_would_hide_a_link_of_the_base_is_refused(store: LocalImageStore, tmp_path: Path) -> None:
    make(store, tmp_path, "base", MERGED_USR)
    make(store, tmp_path, "tool", {"bin/tool": ""}, as_layer=True)
    make(store, tmp_path, "good", {"usr/bin/tool": ""}, as_layer=True)
    with pytest.raises(
        ImagesConflictError, match="a directory /bin of image 'tool' would hide a symbolic link"
    ) as caught:
        store.mount(["base", "good", "tool"])
    assert "usr/bin" in caught.value.resolution
    assert len(store.mount(["base", "good"]).layer_paths) == 2
    assert len(store.mount(["tool", "good"]).layer_paths) == 2


def test_a_link_that_would_hide_a_directory_of_the_base_is_refused(store: LocalImageStore, tmp_path: Path) -> None:
    make(store, tmp_path, "base", {"opt/some": ""})
    make(store, tmp_path, "tool", {"opt": "->usr/opt"}, as_layer=True)
    with pytest.raises(ImagesConflictError, match="a symbolic link /opt of image 'tool' would hide a directory"):
        store.mount(["base", "tool"])


def test_a_toolkit_on_another_version_of_the_base_is_refused_and_one_on_the_same_is_not(
    store: LocalImageStore, tmp_path: Path
) -> None:
    old = make(store, tmp_path, "base:v1", {"usr/lib/os-release": "1"}).layers[0].digest
    new = make(store, tmp_path, "base:v2", {"usr/lib/os-release": "2"}).layers[0].digest
    tool = make(store, tmp_path, "files", {"opt/tool": ""}, as_layer=True).layers[0].digest
    upgraded = make(store, tmp_path, "upgrade", {"usr/lib/os-release": "3"}, as_layer=True).layers[0].digest
    for name, layers in (("tool:v1", [old, tool]), ("tool:v2", [new, tool, upgraded])):
        store.add_image(name, layers, ImageConfig(), source="test")
    with pytest.raises(ImagesConflictError, match="operating system of its own") as caught:
        store.mount(["base:v2", "tool:v1"])
    assert "--as-layer" in caught.value.resolution
    assert len(store.mount(["base:v2", "tool:v2"]).layer_paths) == 3


def test_a_layer_leaves_directories_of_the_base_as_bases_have_them(store: LocalImageStore, tmp_path: Path) -> None:
    make(store, tmp_path, "tool", {"usr/bin/tool": "", "tmp/x": "", "opt/tool/data": ""}, as_layer=True)
    (root,) = store.mount(["tool"]).layer_paths
    modes = {path: os.stat(root / path).st_mode & 0o7777 for path in (".", "usr", "usr/bin", "tmp")}
    assert modes == {".": 0o755, "usr": 0o755, "usr/bin": 0o755, "tmp": 0o1777}


def test_a_layer_lies_where_it_is_told_to_hard_links_too(store: LocalImageStore, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "lib").mkdir(parents=True)
    (tree / "lib/a").write_text("a")
    os.link(tree / "lib/a", tree / "b")
    (tree / "c").symlink_to("lib/a")
    packed = tmp_path / "tool.tar"
    with tarfile.open(packed, "w") as archive:
        archive.add(tree, ".")
    for name, source in (("one", tree), ("two", packed)):
        request = ImportRequest(path=source, name=name, as_layer=True, at=b"opt/tool")
        (root,) = store.mount([import_image(store, request).name]).layer_paths
        assert (root / "opt/tool/c").read_text() == "a"
        assert os.stat(root / "opt/tool/b").st_ino == os.stat(root / "opt/tool/lib/a").st_ino
        assert sorted(os.listdir(root)) == ["opt"]
        assert os.stat(root).st_mode & 0o777 == os.stat(root / "opt").st_mode & 0o777 == 0o755


@pytest.mark.parametrize("at", [b"../x", b"a/../../x", b"a\0b"])
def test_a_place_outside_of_the_sandbox_is_refused(store: LocalImageStore, tmp_path: Path, at: bytes) -> None:
    with pytest.raises(UnsafeArchiveError):
        make(store, tmp_path, "tool", {"a": ""}, as_layer=True, at=at)
    assert store.list() == ()
    assert list((store.root / "layers").iterdir()) == []


def test_an_absolute_path_of_an_archive_is_refused_below_a_place_too(store: LocalImageStore, tmp_path: Path) -> None:
    packed = tmp_path / "bad.tar"
    with tarfile.open(packed, "w") as archive:
        archive.addfile(tarfile.TarInfo("/etc/passwd"))
    with pytest.raises(UnsafeArchiveError, match="absolute"):
        import_image(store, ImportRequest(path=packed, name="x", as_layer=True, at=b"opt/x"))


def test_a_whole_image_is_no_layer(store: LocalImageStore, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    layout.mkdir()
    (layout / "oci-layout").write_text("{}")
    with pytest.raises(InvalidRequestError, match="settings of its own"):
        import_image(store, ImportRequest(path=layout, name="x", as_layer=True))
