"""Images that were converted are the trees that they were made of: from a tar through the object store to a lazy mount,
and from OCI layers to an overlay, with GNU tar and umoci as independent references."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsec.images.importers.detect import import_image
from dsec.images.importers.request import ImportRequest
from dsec.images.lazy.publication.sharing import publish_image, pull_image
from dsec.images.listing import walk
from dsec.images.merge_plan import NEVER, MergeRule
from dsec.images.store import LocalImageStore
from dsec.testing.image_hosts import ImageHosts, image_hosts
from dsec.testing.oci_layouts import write_layout
from dsec.testing.overlay_trees import CAPABILITY, Drawn, Seen, entries, layers, shown

pytestmark = [pytest.mark.root, pytest.mark.slow]
needs_umoci = pytest.mark.skipif(shutil.which("umoci") is None, reason="umoci is not installed")

_names = st.binary(min_size=1, max_size=9).map(lambda name: name.translate(bytes.maketrans(b"\0/.", b"\x80\xff_")))
_kinds = st.sampled_from("file file large sparse directory link hard fifo capable".split())
_times_ns = st.integers(0, 2**33).map(lambda seconds: seconds * 10**9) | st.integers(10**9, 2 * 10**18)
_entries = st.tuples(
    st.lists(_names, min_size=1, max_size=3),
    _kinds,
    st.integers(0, 0o7777),
    st.sampled_from([0, 1, 1000, 65_535, 70_000]),
    _times_ns,
    st.dictionaries(st.sampled_from(["user.a", "user.b" * 9, "trusted.x"]), st.binary(max_size=300), max_size=2),
)
_Entry = tuple[list[bytes], str, int, int, int, dict[str, bytes]]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageHosts]:
    with image_hosts(tmp_path_factory.mktemp("hosts")) as found:
        yield found


def _make(root: bytes, drawn: list[_Entry]) -> None:
    files: list[bytes] = []
    made: list[tuple[bytes, _Entry]] = []
    for entry in drawn:
        path = root
        for part in entry[0][:-1]:
            path = path if os.path.lexists(os.path.join(path, part)) else os.path.join(path, part)
            os.makedirs(path, exist_ok=True)
        path = os.path.join(path, entry[0][-1])
        if not os.path.lexists(path):
            _make_one(path, entry[1], files)
            made.append((path, entry))
    for path, (_, kind, mode, owner, time_ns, xattrs) in sorted(made, key=lambda each: -each[0].count(b"/")):
        os.chown(path, owner, owner + 1, follow_symlinks=False)
        if kind != "link":
            os.chmod(path, mode)
        for name, value in xattrs.items():
            if kind not in ("link", "fifo") or name.startswith("trusted."):
                os.setxattr(path, name, value, follow_symlinks=False)
        if kind == "capable":
            os.setxattr(path, "security.capability", CAPABILITY)
        os.utime(path, ns=(time_ns, time_ns), follow_symlinks=False)


def _make_one(path: bytes, kind: str, files: list[bytes]) -> None:
    if kind == "directory":
        os.mkdir(path)
    elif kind == "link":
        os.symlink(b"../" * 9 + path, path)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "hard" and files:
        os.link(files[-1], path)
    else:
        with open(path, "wb") as file:
            file.write({"large": b"large" * 30_000, "sparse": b""}.get(kind, path[-30:]))
            if kind == "sparse":
                for place in (70_000, 300_000):
                    file.seek(place)
                    file.write(path[-20:])
                file.truncate(400_000)
        files.append(path)


def _seen(root: Path) -> dict[bytes, Seen]:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return entries(fd)
    finally:
        os.close(fd)


def _directory_times(root: Path) -> dict[bytes, int]:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return {
            node.path: int(node.status.st_mtime) for node in walk(fd) if os.path.isdir(root / os.fsdecode(node.path))
        }
    finally:
        os.close(fd)


@given(drawn=st.lists(_entries, min_size=1, max_size=12))
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_tar_that_was_published_and_pulled_shows_its_tree_when_it_is_mounted(
    hosts: ImageHosts, drawn: list[_Entry]
) -> None:
    here, there = _here_and_there(hosts)
    with tempfile.TemporaryDirectory(prefix="dsec-") as name:
        tree, packed = Path(name) / "tree", Path(name) / "packed.tar"
        tree.mkdir()
        _make(os.fsencode(tree), drawn)
        expected = _seen(tree)
        attributes = ["--xattrs", "--xattrs-include=*"]
        subprocess.run(
            ["tar", "--format=pax", "--sparse", *attributes, "-C", str(tree), "-cf", str(packed), "."], check=True
        )
        import_image(here, ImportRequest(path=packed, name="mine"))
        anyio.run(_carry, hosts, here, there)
        (root,) = there.mount(["mine"]).layer_paths
        # Times are kept in whole seconds, as docs/formats/image-store.md says.
        whole = {path: replace(seen, mtime_ns=seen.mtime_ns // 10**9 * 10**9) for path, seen in expected.items()}
        assert _seen(root) == whole
        assert _directory_times(root) == _directory_times(tree)
    here.remove("mine")
    there.remove("mine")


def _here_and_there(hosts: ImageHosts) -> tuple[LocalImageStore, LocalImageStore]:
    found = getattr(hosts, "_pair", None)
    if found is None:
        found = (hosts.host("here"), hosts.host("there"))
        hosts._pair = found  # type: ignore[attr-defined]
    return found


async def _carry(hosts: ImageHosts, here: LocalImageStore, there: LocalImageStore) -> None:
    reference = (await publish_image(here, "mine", hosts.objects)).reference
    await pull_image(there, reference, hosts.objects)


def layer_tar(drawn: Drawn, number: int) -> bytes:
    """Return an OCI layer with what was drawn: what lies below a whiteout's name is what lower layers have."""
    output = io.BytesIO()
    files: list[str] = []
    with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as archive:
        for path, kind in drawn.items():
            for info, content in _members(path, kind, number, files):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return output.getvalue()


def _members(path: str, kind: str, number: int, files: list[str]) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    parent, slash, name = path.rpartition("/")
    info = tarfile.TarInfo(f"{parent}{slash}.wh.{name}" if kind == "whiteout" else path)
    info.mtime, info.uid, info.gid = 1_000_000 + number, number, number + 1
    content = b""
    if kind in ("directory", "opaque"):
        info.type, info.mode = tarfile.DIRTYPE, 0o711 + number
    elif kind == "link":
        info.type, info.linkname = tarfile.SYMTYPE, f"target{number}"
    elif kind == "fifo":
        info.type = tarfile.FIFOTYPE
    elif kind == "device":
        info.type, info.mode = (tarfile.CHRTYPE, 0o666) if number % 2 else (tarfile.BLKTYPE, 0o640)
        info.devmajor, info.devminor = 1 + number, 3
    elif kind == "hard" and files:
        info.type, info.linkname = tarfile.LNKTYPE, files[0]
    elif kind != "whiteout":
        content, info.mode = f"{name} of layer {number}".encode(), 0o4750 if number % 2 else 0o644
        info.pax_headers = {"SCHILY.xattr.user.number": str(number)}
        if kind == "capable":
            info.pax_headers["SCHILY.xattr.security.capability"] = os.fsdecode(CAPABILITY)
        files.append(path)
    yield info, content
    if kind == "opaque":
        yield tarfile.TarInfo(f"{path}/.wh..wh..opq"), b""


@needs_umoci
@given(drawn=st.lists(layers(), min_size=1, max_size=4), is_merged=st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_an_overlay_of_converted_layers_shows_what_umoci_unpacks(drawn: list[Drawn], is_merged: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="dsec-") as name:
        top = Path(name)
        stack = [layer_tar(each, number) for number, each in enumerate(drawn)]
        layout = write_layout(top / "layout", stack)
        subprocess.run(
            ["umoci", "unpack", "--image", f"{layout}:latest", str(top / "bundle")], check=True, capture_output=True
        )
        expected = _seen(top / "bundle/rootfs")
        store = LocalImageStore(top / "images")
        try:
            rule = MergeRule(keep_layers=0, everything=True) if is_merged else NEVER
            import_image(store, ImportRequest(path=layout, name="mine", merge=rule))
            (top / "empty").mkdir()
            found = shown(store.mount(["mine"]).layer_paths, top / "empty")
            store.remove("mine")
            store.release()
        finally:
            store.close()
        assert found.keys() == expected.keys()
        assert {path: seen for path, seen in found.items() if path} == {
            path: seen for path, seen in expected.items() if path
        }
