"""Archives that somebody hostile or careless made: each importer gives a typed error or the right result, and an error
leaves nothing behind."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsec.base.errors import DsecError, InvalidRequestError, UnsafeArchiveError
from dsec.images.importers.detect import import_image
from dsec.images.importers.request import ImportRequest
from dsec.images.store import LocalImageStore
from dsec.images.tree_writer import ArchiveLimits
from dsec.model.image import ImageInfo
from dsec.testing.oci_layouts import write_layout
from dsec.testing.overlay_trees import CAPABILITY

pytestmark = pytest.mark.root

Member = tuple[tarfile.TarInfo, bytes]
Pack = Callable[[Path, bytes], Path]


def entry(name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, **fields: object) -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def directory(name: str, mode: int = 0o755) -> Member:
    return entry(name, kind=tarfile.DIRTYPE, mode=mode)


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE, **fields: Any) -> Member:
    return entry(name, kind=kind, linkname=target, **fields)


def attributed(name: str, **xattrs: str) -> Member:
    headers = {f"SCHILY.xattr.{key.replace('__', '.')}": value for key, value in xattrs.items()}
    return entry(name, b"1", pax_headers=headers)


def tar(*members: Member) -> bytes:
    output = io.BytesIO()
    with tarfile.open(
        fileobj=output, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape"
    ) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return output.getvalue()


def rootfs_tar(root: Path, layer: bytes) -> Path:
    path = root / "rootfs.tar"
    path.write_bytes(layer)
    return path


def oci_layout(root: Path, layer: bytes) -> Path:
    return write_layout(root / "layout", [layer])


def docker_archive(root: Path, layer: bytes) -> Path:
    diff_id = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    config = json.dumps({"rootfs": {"type": "layers", "diff_ids": [diff_id]}}).encode()
    manifest = json.dumps([{"Config": "c.json", "RepoTags": None, "Layers": ["l.tar"]}]).encode()
    path = root / "image.tar"
    path.write_bytes(tar(entry("manifest.json", manifest), entry("c.json", config), entry("l.tar", layer)))
    return path


@pytest.fixture(params=[rootfs_tar, oci_layout, docker_archive], ids=lambda pack: pack.__name__)
def pack(request: pytest.FixtureRequest) -> Pack:
    return request.param  # type: ignore[no-any-return]


def run_import(store: LocalImageStore, path: Path, **options: object) -> ImageInfo:
    return import_image(store, ImportRequest(path=path, name="mine", **options))  # type: ignore[arg-type]


def assert_nothing_is_left(store: LocalImageStore) -> None:
    for name in ("layers", "names", "diffs", "staging"):
        assert list((store.root / name).iterdir()) == []


DEEP = "d/" * 300
REFUSED: dict[str, list[Member]] = {
    "parent": [entry("../x")],
    "parent in the middle": [directory("a"), entry("a/../../x")],
    "absolute": [entry("/etc/x")],
    "through a link": [link("a", "/etc"), entry("a/x")],
    "through a link to a parent": [link("a", ".."), entry("a/x")],
    "through a link of a link": [link("b", "/etc"), link("a", "b"), entry("a/x")],
    "a directory in place of a link, and below": [link("a", "/etc"), link("a/b", "x")],
    "hard link to nothing": [link("a", "none", tarfile.LNKTYPE)],
    "hard link to a parent": [link("a", "../../etc/passwd", tarfile.LNKTYPE)],
    "hard link through a link": [link("d", "/etc"), link("a", "d/passwd", tarfile.LNKTYPE)],
    "hard link to a directory": [directory("d"), link("a", "d", tarfile.LNKTYPE)],
    "hard link to the root": [link("a", ".", tarfile.LNKTYPE)],
    "hard link to what comes later": [link("a", "b", tarfile.LNKTYPE), entry("b")],
    "file in place of a directory with content": [entry("d/x"), entry("d")],
    "name of 255 bytes": [entry("n" * 255)],
    "path of 4 KiB": [entry("/".join(["n" * 200] * 20))],
    "300 directories deep": [entry(DEEP + "x")],
    "link of 5,000 bytes": [link("a", "t" * 5000)],
    "link to a null byte": [link("a", "t", pax_headers={"linkpath": "a\0b"})],
    "link to nowhere": [link("a", "", pax_headers={"linkpath": ""})],
    "name with a null byte": [entry("a", pax_headers={"path": "a\0b"})],
    "attribute's name with a null byte": [attributed("a", **{"user__a\0b": "1"})],
    "attribute's name of 300 bytes": [attributed("a", **{"user__" + "n" * 300: "1"})],
    "attributes of 70 KiB": [attributed("a", user__a="v" * 70_000)],
    "extended header of 2,000 records": [entry("a", pax_headers={f"x.{number}": "" for number in range(2000)})],
    "owner that is none": [entry("a", uid=1 << 33)],
    "owner below zero": [entry("a", pax_headers={"uid": "-1"})],
    "size that is none": [entry("a", pax_headers={"size": "-1"})],
    "size of an exabyte": [entry("a", pax_headers={"size": "1" + "0" * 18})],
    "root that is a file": [entry(".", b"1")],
    "root that is a link": [link("./", "/etc")],
    "name that is none": [entry("a", b"1", pax_headers={"path": ""})],
    "time that is none": [entry("a", pax_headers={"mtime": "soon"})],
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_words_and_leaves_nothing(
    store: LocalImageStore, tmp_path: Path, pack: Pack, name: str
) -> None:
    path = pack(tmp_path, tar(entry("before", b"1"), *REFUSED[name]))
    with pytest.raises(InvalidRequestError) as caught:
        run_import(store, path)
    assert "internal" not in caught.value.code
    assert_nothing_is_left(store)


def imported_root(store: LocalImageStore, path: Path, **options: object) -> Path:
    info = run_import(store, path, **options)
    (root,) = store.mount([info.name]).layer_paths
    store.verify(info.name)
    return root


def test_links_to_anywhere_names_of_any_bytes_and_modes_of_any_kind_are_kept(
    store: LocalImageStore, tmp_path: Path, pack: Pack
) -> None:
    layer = tar(
        link("absolute", "/etc/passwd"),
        link("parent", "../../../x"),
        link("itself", "itself"),
        entry(os.fsdecode(b"raw \xff\n\x1b[2J"), b"1"),
        entry("n" * 254, b"1"),
        entry("bits", b"1", mode=0o7755, uid=7, gid=8, pax_headers={"mtime": "1234567890.987654321"}),
        entry("old", b"1", mtime=-5),
        attributed("user", user__note="v" * 2000, user__empty="", trusted__overlay__opaque="y", foo="1"),
        attributed("capable", security__capability=CAPABILITY.decode(errors="surrogateescape")),
        entry("fifo", kind=tarfile.FIFOTYPE),
        entry("device", kind=tarfile.CHRTYPE, mode=0o622, devmajor=1, devminor=3),
        entry("disk", kind=tarfile.BLKTYPE, devmajor=8, devminor=1),
        entry("whiteout", kind=tarfile.CHRTYPE),
        directory("x"),
        link("hard", "bits", tarfile.LNKTYPE),
    )
    lines: list[str] = []
    root = imported_root(store, pack(tmp_path, layer), progress=lines.append)
    assert os.readlink(root / "absolute") == "/etc/passwd"
    assert os.readlink(root / "itself") == "itself"
    assert os.fsdecode(b"raw \xff\n\x1b[2J") in os.listdir(root)
    status = os.lstat(root / "bits")
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o7755, 7, 8)
    assert (status.st_mtime_ns, status.st_nlink) == (1_234_567_890 * 10**9, 2)
    assert os.lstat(root / "old").st_mtime == 0
    assert sorted(os.listxattr(root / "user")) == ["user.empty", "user.note"]
    assert os.getxattr(root / "capable", "security.capability") == CAPABILITY
    assert stat.S_ISFIFO(os.lstat(root / "fifo").st_mode)
    assert "whiteout" not in os.listdir(root)
    told = "\n".join(lines)
    device, disk = os.lstat(root / "device"), os.lstat(root / "disk")
    assert (device.st_mode, device.st_rdev) == (stat.S_IFCHR | 0o622, os.makedev(1, 3))
    assert (stat.S_ISBLK(disk.st_mode), disk.st_rdev) == (True, os.makedev(8, 1))
    assert "1 x character devices 0:0 left out" in told
    assert "trusted.overlay.opaque left out" in told


def test_of_entries_with_one_path_the_last_counts(store: LocalImageStore, tmp_path: Path, pack: Pack) -> None:
    layer = tar(
        entry("file", b"first"),
        entry("file", b"second"),
        link("link", "/etc/passwd"),
        entry("link", b"a file"),
        directory("empty"),
        entry("empty", b"no directory"),
        directory("d", 0o700),
        entry("d/x", b"1"),
        directory("d", 0o711),
        entry("both", b"1"),
        link("again", "both", tarfile.LNKTYPE),
        entry("both", b"2"),
        link("again", "again", tarfile.LNKTYPE),
    )
    root = imported_root(store, pack(tmp_path, layer))
    read = {name: (root / name).read_text() for name in ("file", "link", "empty", "d/x", "both", "again")}
    assert read == {
        "file": "second",
        "link": "a file",
        "empty": "no directory",
        "d/x": "1",
        "both": "2",
        "again": "1",
    }
    assert os.stat(root / "d").st_mode & 0o777 == 0o711


@pytest.mark.slow
def test_a_hundred_thousand_entries_of_one_directory_are_all_there(store: LocalImageStore, tmp_path: Path) -> None:
    count = 100_000
    # Few inodes, since making each takes longer than all else; one has 65,000 names at most on ext4.
    links = (link(f"d/{number:06}", f"d/{number % 2}", tarfile.LNKTYPE) for number in range(count - 2))
    run_import(store, rootfs_tar(tmp_path, tar(entry("d/0", b"1"), entry("d/1", b"2"), *links)))
    names = os.listdir(store.mount(["mine"]).layer_paths[0] / "d")
    assert len(names) == len(set(names)) == count


@pytest.mark.parametrize("cut", [1, 511, 700, 1024, 5000])
def test_what_is_cut_off_is_damage(store: LocalImageStore, tmp_path: Path, cut: int) -> None:
    whole = tar(entry("a", b"x" * 9000), entry("b", b"y" * 9000)).rstrip(b"\0")
    with pytest.raises(InvalidRequestError):
        run_import(store, rootfs_tar(tmp_path, whole[:-cut]))
    assert_nothing_is_left(store)


def test_a_hard_link_may_take_the_place_of_an_empty_directory(
    store: LocalImageStore, tmp_path: Path, pack: Pack
) -> None:
    made = run_import(store, pack(tmp_path, tar(directory("d"), entry("f", b"1"), link("d", "f", tarfile.LNKTYPE))))
    (root,) = store.mount([made.name]).layer_paths
    assert (root / "d").samefile(root / "f")


def test_attributes_of_directories_do_not_fill_the_memory(store: LocalImageStore, tmp_path: Path) -> None:
    """They are kept until the end, and a few megabytes that are compressed may hold gigabytes of them."""
    many = [
        entry(f"d{number}", kind=tarfile.DIRTYPE, pax_headers={"SCHILY.xattr.user.a": "v" * 3000})
        for number in range(9)
    ]
    with pytest.raises(UnsafeArchiveError, match="attributes of directories"):
        run_import(store, rootfs_tar(tmp_path, tar(*many)), limits=ArchiveLimits(names_bytes=20_000))
    assert_nothing_is_left(store)


def test_directories_that_entries_imply_count_as_entries(store: LocalImageStore, tmp_path: Path, pack: Pack) -> None:
    layer = tar(*(entry("/".join([f"d{number}"] * 20)) for number in range(10)))
    limits = ArchiveLimits(entries=100)
    with pytest.raises(UnsafeArchiveError, match="more than 100 entries"):
        run_import(store, pack(tmp_path, layer), limits=limits)
    assert_nothing_is_left(store)


class TestWhiteouts:
    def test_opaque_marks_count_as_entries(self, store: LocalImageStore, tmp_path: Path) -> None:
        layer = tar(*(entry(f"d{number}/.wh..wh..opq") for number in range(60)))
        with pytest.raises(UnsafeArchiveError, match="more than 100 entries"):
            run_import(store, oci_layout(tmp_path, layer), limits=ArchiveLimits(entries=100))
        assert_nothing_is_left(store)

    @pytest.mark.parametrize("name", [".wh.", ".wh..", ".wh...", "a/.wh...", ".wh.d/x", "a/.wh.b/.wh.c", "../.wh.x"])
    def test_hostile_names_are_refused(self, store: LocalImageStore, tmp_path: Path, name: str) -> None:
        with pytest.raises(UnsafeArchiveError):
            run_import(store, oci_layout(tmp_path, tar(directory("a"), entry(name))))
        assert_nothing_is_left(store)

    def test_a_whiteout_through_a_link_is_refused(self, store: LocalImageStore, tmp_path: Path) -> None:
        for name in ("a/.wh.x", "a/.wh..wh..opq"):
            layer = tar(link("a", "/etc"), entry(name))
            with pytest.raises(UnsafeArchiveError):
                run_import(store, oci_layout(tmp_path / name.replace("/", "-"), layer))
        assert_nothing_is_left(store)

    def test_the_order_of_a_layers_entries_does_not_matter(self, store: LocalImageStore, tmp_path: Path) -> None:
        lower = tar(entry("d/old", b"1"), entry("gone", b"1"), entry("new", b"1"))
        members = [directory("d"), entry("d/new", b"2"), entry("d/.wh..wh..opq"), entry(".wh.gone"), entry(".wh.new")]
        members.append(entry("new", b"2"))
        digests = set()
        for number, order in enumerate((members, members[::-1], [*members[3:], *members[:3]])):
            layout = write_layout(tmp_path / str(number), [lower, tar(*order)])
            info = import_image(store, ImportRequest(path=layout, name=f"image{number}"))
            digests.add(info.layers[1].digest)
            _, upper = store.mount([info.name]).layer_paths
            assert sorted(os.listdir(upper)) == ["d", "gone", "new"]
            assert (upper / "new").read_text() == "2"
        assert len(digests) == 1


class TestContainers:
    """What lies around the layers: the archives and documents of images."""

    def _packed(self, path: Path, *members: Member) -> Path:
        path.write_bytes(tar(*members))
        return path

    def test_documents_that_would_never_end_are_no_documents(self, store: LocalImageStore, tmp_path: Path) -> None:
        fifo, device = entry("index.json", kind=tarfile.FIFOTYPE), link("index.json", "/dev/zero")
        for number, index in enumerate((fifo, device, link("index.json", "/proc/self/mem"))):
            path = self._packed(tmp_path / f"{number}.tar", entry("oci-layout", b"{}"), index)
            with pytest.raises(DsecError) as caught:
                run_import(store, path)
            assert caught.value.exit_code != 70
        path = self._packed(tmp_path / "docker.tar", entry("manifest.json", kind=tarfile.FIFOTYPE))
        with pytest.raises(InvalidRequestError):
            run_import(store, path)
        path = self._packed(tmp_path / "docker2.tar", link("manifest.json", "/dev/zero"))
        with pytest.raises(InvalidRequestError):
            run_import(store, path)
        assert_nothing_is_left(store)

    def test_a_layout_whose_index_is_a_fifo_is_refused_at_once(self, store: LocalImageStore, tmp_path: Path) -> None:
        layout = tmp_path / "layout"
        layout.mkdir()
        (layout / "oci-layout").write_text("{}")
        os.mkfifo(layout / "index.json")
        with pytest.raises(InvalidRequestError, match="regular"):
            run_import(store, layout)

    @pytest.mark.parametrize(
        "document", [b"[" * 200_000, b'{"manifests":' * 100_000, b"\xff", b"", b"{", b"0", b"null"]
    )
    def test_documents_that_are_none_are_refused(self, store: LocalImageStore, tmp_path: Path, document: bytes) -> None:
        layout = self._packed(tmp_path / "layout.tar", entry("oci-layout", b"{}"), entry("index.json", document))
        docker = self._packed(tmp_path / "docker.tar", entry("manifest.json", document))
        config = json.dumps([{"Config": "c", "Layers": ["l"]}]).encode()
        inner = self._packed(
            tmp_path / "inner.tar", entry("manifest.json", config), entry("c", document), entry("l", b"")
        )
        for path in (layout, docker, inner):
            with pytest.raises(InvalidRequestError):
                run_import(store, path)
        assert_nothing_is_left(store)

    def test_a_document_without_bound_is_refused(self, store: LocalImageStore, tmp_path: Path) -> None:
        huge = b'{"a": "' + b"x" * (9 << 20) + b'"}'
        path = self._packed(tmp_path / "l.tar", entry("oci-layout", b"{}"), entry("index.json", huge))
        with pytest.raises(InvalidRequestError, match="larger"):
            run_import(store, path)
        assert_nothing_is_left(store)
