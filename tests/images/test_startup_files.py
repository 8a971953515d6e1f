"""What programs read when they begin lies together, in the order of need, whatever image it is of."""

from __future__ import annotations

import mmap
import random
from pathlib import Path

import pytest

from dsec.images import erofs
from dsec.images.lazy.erofs.layout import lay_out
from dsec.images.lazy.erofs.metadata import Extent
from dsec.images.lazy.erofs.packed_metadata import WalkedTree
from dsec.images.lazy.erofs.startup import startup_files

_DEBIAN = (
    "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
    "etc/ld.so.cache",
    "usr/lib/x86_64-linux-gnu/libc.so.6",
    "usr/lib/locale/C.utf8/LC_CTYPE",
    "usr/lib/x86_64-linux-gnu/gconv/gconv-modules.cache",
    "usr/lib/x86_64-linux-gnu/libz.so.1.2.13",
    "usr/bin/true",
    "usr/lib/python3.11/encodings/__init__.py",
    "usr/lib/python3.11/encodings/__pycache__/__init__.cpython-311.pyc",
    "usr/lib/python3/dist-packages/_distutils_hack/__init__.py",
    "usr/bin/python3.11",
    "usr/lib/python3.11/os.py",
    "usr/bin/bash",
    "usr/lib/x86_64-linux-gnu/libpcre2-8.so.0.11.2",
    "usr/bin/ls",
    "usr/lib/python3.11/json/__pycache__/decoder.cpython-311.pyc",
    "usr/lib/python3.11/json/decoder.py",
    "usr/lib/python3.11/lib-dynload/_json.cpython-311-x86_64-linux-gnu.so",
    "usr/lib/x86_64-linux-gnu/libssl.so.3",
)
_OLDER = (
    "lib/x86_64-linux-gnu/ld-2.28.so",
    "lib/x86_64-linux-gnu/libc-2.28.so",
    "lib/x86_64-linux-gnu/libm-2.28.so",
    "lib/x86_64-linux-gnu/libpthread-2.28.so",
    "usr/local/lib/python3.7/encodings/utf_8.py",
    "usr/local/lib/libpython3.7m.so.1.0",
    "usr/local/bin/python3.7",
    "usr/local/lib/python3.7/site.py",
    "bin/dash",
    "bin/grep",
)
_ALPINE = ("lib/ld-musl-x86_64.so.1", "bin/busybox")
_OTHERS = (
    "usr/bin/truecolor",
    "usr/lib/python3.11/encodings/cp037.py",
    "usr/lib/python3/dist-packages/json/decoder.py",
    "usr/lib/x86_64-linux-gnu/libzzz.so.1",
    "opt/lib/libc.so.6",
    "home/user/bin/bash",
    "bash",
)


def _made(directory: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    chance = random.Random(3)
    contents = {name: chance.randbytes(8192) for name in names}
    for name, content in contents.items():
        path = directory / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    erofs.make(directory / "tree", directory / "layer.erofs")
    return contents


def _found(file: Path) -> tuple[Extent, ...]:
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        tree = WalkedTree(data)
        tree.all()
        return startup_files(tree)


@pytest.mark.parametrize("wanted", [_DEBIAN, _OLDER, _ALPINE], ids=["debian", "older", "alpine"])
def test_what_programs_begin_with_comes_first_and_in_the_order_of_need(tmp_path: Path, wanted: tuple[str, ...]) -> None:
    contents = _made(tmp_path, tuple(sorted((*wanted, *_OTHERS))))
    lay_out(tmp_path / "layer.erofs", tmp_path / "new.erofs", [])
    new = (tmp_path / "new.erofs").read_bytes()
    places = {name: new.find(content) for name, content in contents.items()}
    assert [name for name in sorted(places, key=places.__getitem__) if name in wanted] == list(wanted)
    assert max(places[name] for name in wanted) < min(places[name] for name in _OTHERS)


def test_what_a_trace_names_goes_before_it(tmp_path: Path) -> None:
    contents = _made(tmp_path, (*_ALPINE, *_OTHERS))
    read = (tmp_path / "layer.erofs").read_bytes().find(contents["opt/lib/libc.so.6"])
    lay_out(tmp_path / "layer.erofs", tmp_path / "new.erofs", [Extent(read, 4096)])
    new = (tmp_path / "new.erofs").read_bytes()
    first, *others = sorted(contents, key=lambda name: new.find(contents[name]))
    assert first == "opt/lib/libc.so.6"
    assert tuple(others[:2]) == _ALPINE


def test_links_lead_to_nothing_twice(tmp_path: Path) -> None:
    directory = tmp_path / "tree/usr/bin"
    directory.mkdir(parents=True)
    (directory / "bash").write_bytes(bytes(5000))
    (directory / "sh").symlink_to("bash")
    (directory / "dash").hardlink_to(directory / "bash")
    (tmp_path / "tree/bin").symlink_to("usr/bin")
    erofs.make(tmp_path / "tree", tmp_path / "layer.erofs")
    assert len(_found(tmp_path / "layer.erofs")) == 1


def test_a_layer_with_nothing_of_it_has_none(tmp_path: Path) -> None:
    _made(tmp_path, _OTHERS)
    assert _found(tmp_path / "layer.erofs") == ()
