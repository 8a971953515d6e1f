"""Importing archives, layouts and directories; umoci, skopeo and Python's tarfile are the oracles."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from backports import zstd

from dsec.base.errors import HostDiskFullError, InvalidRequestError, PathNotFoundError, UnsafeArchiveError
from dsec.images.importers.detect import ImportFormat, detect, import_image
from dsec.images.importers.request import ImportRequest
from dsec.images.listing import directory_digest
from dsec.images.oci_export import export_oci_layout
from dsec.images.store import LocalImageStore
from dsec.images.tree_writer import ArchiveLimits
from dsec.linux import mounts
from dsec.model.image import ImageConfig, ImageInfo
from dsec.testing.oci_layouts import tar_of, write_layout
from dsec.testing.releasing import unmount_when_free

needs_umoci = pytest.mark.skipif(shutil.which("umoci") is None, reason="umoci is not installed")
needs_skopeo = pytest.mark.skipif(shutil.which("skopeo") is None, reason="skopeo is not installed")


def run_import(store: LocalImageStore, path: Path, **options: object) -> ImageInfo:
    return import_image(store, ImportRequest(path=path, name="mine", **options))  # type: ignore[arg-type]


def compress_zstd(data: bytes) -> bytes:
    return zstd.compress(data)


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress, bz2.compress, compress_zstd])
def test_rootfs_tar_is_imported_under_any_compression(
    store: LocalImageStore, tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "no-suffix"
    path.write_bytes(compress(tar_of(etc=None, etc__passwd="root")))
    config = ImageConfig(workdir="/w")
    image = run_import(store, path, config=config)
    (mounted,) = store.mount(["mine"]).layer_paths
    assert (mounted / "etc/passwd").read_text() == "root"
    assert (image.config, image.source) == (config, str(path))


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, compress_zstd])
def test_cut_off_compressed_archive_is_damage(
    store: LocalImageStore, tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(compress(tar_of(a=os.urandom(5000).hex()))[:-2000])
    with pytest.raises(InvalidRequestError, match=r"damaged|cut off|ends in the middle"):
        run_import(store, path)
    assert store.list() == ()


def test_bomb_stops_at_the_limit(store: LocalImageStore, tmp_path: Path) -> None:
    path = tmp_path / "bomb.tar.gz"
    path.write_bytes(gzip.compress(tar_of(a="0" * 50_000_000)))
    with pytest.raises(UnsafeArchiveError):
        run_import(store, path, limits=ArchiveLimits(total_bytes=1_000_000))
    assert list((store.root / "staging").iterdir()) == []
    assert list((store.root / "layers").iterdir()) == []


def test_trailing_bomb_behind_the_end_of_the_archive_of_a_layer_stops_too(
    store: LocalImageStore, tmp_path: Path
) -> None:
    layout = write_layout(tmp_path / "layout", [tar_of(a="1") + bytes(50_000_000)])
    with pytest.raises(UnsafeArchiveError, match="more than"):
        run_import(store, layout, limits=ArchiveLimits(total_bytes=1_000_000, entries=10))


def test_missing_path_and_unknown_content_are_typed_errors(store: LocalImageStore, tmp_path: Path) -> None:
    with pytest.raises(PathNotFoundError):
        run_import(store, tmp_path / "missing")
    (tmp_path / "text").write_text("hello" * 1000)
    with pytest.raises(InvalidRequestError, match="tar"):
        run_import(store, tmp_path / "text")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InvalidRequestError, match="regular"):
        run_import(store, tmp_path / "fifo")


def test_directory_is_imported_without_following_its_links(store: LocalImageStore, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "d").mkdir(parents=True)
    (tree / "d/f").write_text("1")
    os.symlink("/etc", tree / "etc")
    os.link(tree / "d/f", tree / "g")
    image = run_import(store, tree)
    (mounted,) = store.mount(["mine"]).layer_paths
    assert os.readlink(mounted / "etc") == "/etc"
    assert image.layers[0].digest == directory_digest(tree)[0]


def test_config_of_an_oci_image_is_taken_over(store: LocalImageStore, tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "l", [tar_of(a="1")], Env=["A=b=c", "D="], WorkingDir="/w", User="user:7")
    assert run_import(store, layout).config == ImageConfig(env={"A": "b=c", "D": ""}, workdir="/w", user="user:7")


@pytest.mark.root
def test_a_directory_in_place_of_a_device_of_its_layer_hides_nothing(store: LocalImageStore, tmp_path: Path) -> None:
    null = tarfile.TarInfo("d")
    null.type, null.devmajor, null.devminor = tarfile.CHRTYPE, 1, 3
    upper = null.tobuf(tarfile.PAX_FORMAT) + tar_of(d=None, d__new="2")
    run_import(store, write_layout(tmp_path / "l", [tar_of(d=None, d__old="1"), upper]))
    _, up = store.mount(["mine"]).layer_paths
    assert os.listxattr(up / "d") == []
    assert (up / "d/new").read_text() == "2"


@pytest.mark.root
def test_whiteouts_become_those_of_overlayfs(store: LocalImageStore, tmp_path: Path) -> None:
    lower = tar_of(gone="1", kept="1", d=None, d__old="1", e=None, e__old="1", both=None, both__old="1")
    upper = tar_of(WHgone="", d=None, d__new="2", **{"d__WHWH.opq": "", "e__WHold": "", "WHWHplnk": ""}, WHboth="",
                   both=None, both__new="2")  # fmt: skip
    run_import(store, write_layout(tmp_path / "l", [lower, upper]))
    low, up = store.mount(["mine"]).layer_paths
    assert os.lstat(up / "gone").st_rdev == 0
    assert stat.S_ISCHR(os.lstat(up / "gone").st_mode)
    assert os.getxattr(up / "d", "trusted.overlay.opaque") == b"y"
    assert os.getxattr(up / "both", "trusted.overlay.opaque") == b"y"
    merged = tmp_path / "merged"
    merged.mkdir()
    # Not mount(8): from util-linux 2.39 on it gives the kernel at most 255 characters of an option.
    mounts.mount("overlay", merged, "overlay", mounts.MS_RDONLY, f"lowerdir={up}:{low}")
    try:
        found = sorted(str(path.relative_to(merged)) for path in merged.rglob("*"))
    finally:
        mounts.unmount(merged)
    assert found == ["both", "both/new", "d", "d/new", "e", "kept"]


@pytest.mark.parametrize("name", ["WH", "WH.", "WH..", "d__WH.."])
def test_whiteout_of_no_name_is_refused(store: LocalImageStore, tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsafeArchiveError):
        run_import(store, write_layout(tmp_path / "l", [tar_of(d=None, **{name: ""})]))


def test_blob_that_does_not_match_its_digest_is_refused(store: LocalImageStore, tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "l", [tar_of(a="1")])
    largest = max((layout / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    for blob in (layout / "blobs/sha256").iterdir():
        original = blob.read_bytes()
        blob.write_bytes(original + b" ")
        with pytest.raises(InvalidRequestError, match=r"damaged|readable"):
            run_import(store, layout)
        blob.write_bytes(original)
    largest.unlink()
    with pytest.raises((InvalidRequestError, PathNotFoundError)):
        run_import(store, layout)
    assert store.list() == ()


def test_layer_that_does_not_match_its_diff_id_is_refused(store: LocalImageStore, tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "l", [tar_of(a="1")])
    other = write_layout(tmp_path / "other", [tar_of(a="2")])
    (layout / "index.json").write_bytes((other / "index.json").read_bytes())
    shutil.copytree(other / "blobs", layout / "blobs", dirs_exist_ok=True)
    index = json.loads((layout / "index.json").read_text())
    blobs = layout / "blobs/sha256"
    manifest = json.loads((blobs / index["manifests"][0]["digest"][7:]).read_text())
    data = gzip.compress(tar_of(a="3"))
    manifest["layers"][0]["digest"] = f"sha256:{hashlib.sha256(data).hexdigest()}"
    (blobs / manifest["layers"][0]["digest"][7:]).write_bytes(data)
    text = json.dumps(manifest).encode()
    (blobs / hashlib.sha256(text).hexdigest()).write_bytes(text)
    index["manifests"][0]["digest"] = f"sha256:{hashlib.sha256(text).hexdigest()}"
    (layout / "index.json").write_text(json.dumps(index))
    with pytest.raises(InvalidRequestError, match="layer"):
        run_import(store, layout)


@pytest.mark.parametrize("digest", ["sha256:../../../../etc/passwd", "sha256:", "md5:0", "sha256:" + "0" * 63 + "/"])
def test_digest_that_is_a_path_is_refused(store: LocalImageStore, tmp_path: Path, digest: str) -> None:
    layout = write_layout(tmp_path / "l", [tar_of(a="1")])
    (layout / "index.json").write_text(json.dumps({"manifests": [{"digest": digest}]}))
    with pytest.raises(InvalidRequestError, match="not a sha256 digest"):
        run_import(store, layout)


def test_layers_that_are_known_are_not_stored_again(store: LocalImageStore, tmp_path: Path) -> None:
    base, top = tar_of(a="1"), tar_of(b="2")
    one = run_import(store, write_layout(tmp_path / "one", [base]))
    two = import_image(store, ImportRequest(path=write_layout(tmp_path / "two", [base, top]), name="two"))
    assert two.layers[0] == one.layers[0]
    assert len(list((store.root / "layers").iterdir())) == 2


def test_ambiguous_layout_says_what_is_in_it(store: LocalImageStore, tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "l", [tar_of(a="1")])
    index = json.loads((layout / "index.json").read_text())
    (entry,) = index["manifests"]
    named = [entry | {"annotations": {"org.opencontainers.image.ref.name": name}} for name in ("v1", "v2")]
    (layout / "index.json").write_text(json.dumps({"manifests": named}))
    with pytest.raises(InvalidRequestError) as caught:
        run_import(store, layout)
    assert "v1, v2" in caught.value.detail
    assert import_image(store, ImportRequest(path=layout, name="mine:v2")).name == "mine:v2"


@pytest.mark.root
@pytest.mark.slow
@needs_umoci
def test_tree_is_the_one_that_umoci_unpacks(store: LocalImageStore, tmp_path: Path, tiny_root: Path) -> None:
    layout = tmp_path / "layout"
    bundle = tmp_path / "bundle"
    tree = tmp_path / "tree"
    shutil.copytree(tiny_root, tree, symlinks=True)
    os.chown(tree / "home/user", 1000, 1000)
    (tree / os.fsdecode(b"raw \xff")).write_text("1")
    os.setxattr(tree / "etc/passwd", "user.note", b"1")
    os.link(tree / "etc/passwd", tree / "etc/again")
    subprocess.run(["umoci", "init", "--layout", layout], check=True)
    subprocess.run(["umoci", "new", "--image", f"{layout}:latest"], check=True)
    subprocess.run(["umoci", "insert", "--image", f"{layout}:latest", tree, "/"], check=True, capture_output=True)
    subprocess.run(["umoci", "config", "--image", f"{layout}:latest", "--config.user", "user"], check=True)
    subprocess.run(["umoci", "unpack", "--image", f"{layout}:latest", bundle], check=True, capture_output=True)
    image = run_import(store, layout)
    assert image.config.user == "user"
    assert image.layers[0].digest == directory_digest(bundle / "rootfs")[0]


@pytest.mark.root
@pytest.mark.slow
@needs_skopeo
def test_archives_that_skopeo_writes_give_the_same_layers(
    store: LocalImageStore, tmp_path: Path, tiny_root: Path
) -> None:
    exported = _exported(store, tiny_root, tmp_path / "layout")
    for kind, expected in (("docker-archive", ImportFormat.DOCKER_ARCHIVE), ("oci-archive", ImportFormat.OCI_LAYOUT)):
        path = tmp_path / f"{kind}.tar"
        target = f"{kind}:{path}:mine:latest" if kind == "docker-archive" else f"{kind}:{path}"
        subprocess.run(
            ["skopeo", "copy", "--insecure-policy", "--quiet", f"oci:{tmp_path / 'layout'}:latest", target], check=True
        )
        assert detect(path) is expected
        assert run_import(store, path).layers == exported.layers


@pytest.mark.root
@pytest.mark.slow
def test_exported_image_is_imported_as_itself_by_another_store(
    store: LocalImageStore, tmp_path: Path, tiny_root: Path
) -> None:
    exported = _exported(store, tiny_root, tmp_path / "layout")
    other = LocalImageStore(tmp_path / "other")
    try:
        assert run_import(other, tmp_path / "layout").image_id == exported.image_id
    finally:
        other.close()


@pytest.mark.root
def test_devices_and_all_names_of_what_is_no_file_come_back_from_an_export(
    store: LocalImageStore, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    os.mknod(tree / "disk", stat.S_IFBLK | 0o640, os.makedev(8, 70_000))
    os.mknod(tree / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mkfifo(tree / "fifo")
    os.symlink("nowhere", tree / "link")
    for name in ("disk", "fifo", "link"):
        os.link(tree / name, tree / f"{name}-again", follow_symlinks=False)
    expected = run_import(store, tree).layers
    export_oci_layout(store, "mine", tmp_path / "layout")
    other = LocalImageStore(tmp_path / "other")
    try:
        assert run_import(other, tmp_path / "layout").layers == expected
    finally:
        other.close()


def _exported(store: LocalImageStore, tree: Path, layout: Path) -> ImageInfo:
    """Store an image of two layers, the second with whiteouts, and export it."""
    base = import_image(store, ImportRequest(path=tree, name="base", config=ImageConfig(env={"A": "1"})))
    upper = tar_of(WHtmp="", etc=None, **{"etc__WHWH.opq": ""}, etc__new="1")
    top = run_import(store, write_layout(layout.with_name("top"), [upper]))
    digests = [layer.digest for layer in (*base.layers, *top.layers)]
    image = store.add_image("mine", digests, base.config, source="test")
    export_oci_layout(store, "mine", layout)
    return image


def test_docker_archive_whose_layer_leads_out_is_refused(store: LocalImageStore, tmp_path: Path) -> None:
    config = json.dumps({"rootfs": {"diff_ids": ["sha256:" + "0" * 64]}})
    for layer in ("../../etc/passwd", "/etc/passwd", "missing"):
        manifest = json.dumps([{"Config": "c.json", "Layers": [layer], "RepoTags": ["mine:latest"]}])
        path = tmp_path / "docker.tar"
        path.write_bytes(tar_of(**{"manifest.json": manifest, "c.json": config}))
        with pytest.raises(InvalidRequestError, match="not a file in it"):
            import_image(store, ImportRequest(path=path, name="mine"), kind=ImportFormat.DOCKER_ARCHIVE)


def test_failed_import_leaves_none_of_its_layers(store: LocalImageStore, tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "l", [tar_of(a="1"), tar_of(**{"../b": "2"})])
    with pytest.raises(UnsafeArchiveError):
        run_import(store, layout)
    assert list((store.root / "layers").iterdir()) == []
    assert list((store.root / "staging").iterdir()) == []


@pytest.mark.root
@pytest.mark.parametrize(
    ("content", "said"),
    [("x" * 600_000, "no space left"), ("x" * 5_000_000, "no space left"), ("\0" * 5_000_000, "a layer of 4.8 MiB")],
    ids=["nearly", "much", "all of it holes"],
)
def test_full_disk_is_said_and_nothing_is_left(tmp_path: Path, content: str, said: str) -> None:
    small = tmp_path / "small"
    small.mkdir()
    path = tmp_path / "x.tar"
    path.write_bytes(tar_of(a=content))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True)
    try:
        store = LocalImageStore(small / "images")
        with pytest.raises(HostDiskFullError, match=said):
            run_import(store, path)
        assert list((store.root / "layers").iterdir()) == []
        assert list((store.root / "staging").iterdir()) == []
        store.close()
    finally:
        unmount_when_free(small)


def test_bad_name_is_said_before_anything_is_done(store: LocalImageStore, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="not an image name"):
        import_image(store, ImportRequest(path=tmp_path / "missing", name="a b"))
