"""Which files of a layer programs read when they begin, whatever they are: known by their names.

Theory. What one command reads is recorded by a trace. Most images are published without one, and yet much of what the
first command of a sandbox reads is the same everywhere: the dynamic loader, the C library and those that nearly every
program needs, the tables of the locale, then an interpreter and the modules that it imports before anything else. In
the order of mkfs.erofs they lie all over the file, beside what nobody reads: a first ``python3 -c pass`` in the default
image waits for 11 chunks of 4 MiB one after the other, of which it reads a sixth. Next to each other they take three.

The order is that of need: what all programs read, what Python does, then shells and the commands of scripts, then the
modules of Python that most others import. Names stand without versions (``libc.so.6`` and ``libc-2.31.so`` are
``libc``), below ``/``, ``/usr`` and ``/usr/local``. A file that is not of this list lies where it lay before; a list
that is wrong costs time and nothing else. It depends on names alone, so that related layers have the same order and go
on sharing chunks.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator

from dsec.images.lazy.erofs.metadata import Extent, Inode
from dsec.images.lazy.erofs.packed_metadata import WalkedTree

_EVERY_PROGRAM = (
    "lib:ld etc:ld lib:libc lib:LC_CTYPE lib:gconv-modules lib:libm lib:libz lib:libexpat lib:libdl lib:libpthread "
    "lib:librt lib:libutil bin:true bin:env"
)
_PYTHON = (
    "py:encodings py:encodings.aliases py:encodings.utf_8 py:sitecustomize py:_distutils_hack lib:libpython bin:python "
    "py:site py:os py:stat py:codecs py:io py:abc py:posixpath py:genericpath py:_collections_abc py:_sitebuiltins "
    "py:_bootlocale"
)
_SHELLS = (
    "bin:bash bin:dash bin:busybox lib:libtinfo lib:libselinux lib:libpcre lib:libacl lib:libattr lib:libgcc_s "
    "lib:libreadline bin:cat bin:ls bin:grep bin:sed bin:head bin:tail bin:sort bin:find bin:mkdir bin:rm bin:cp "
    "bin:mv bin:touch bin:chmod bin:wc bin:cut bin:tr bin:uname bin:id bin:date bin:sleep bin:tee bin:xargs "
    "bin:dirname bin:basename bin:readlink bin:stat bin:mktemp bin:echo bin:printf bin:test bin:pwd bin:uniq bin:tar "
    "bin:gzip"
)
_MODULES = (
    "collections functools operator keyword reprlib heapq bisect types enum re copyreg sre_compile sre_parse "
    "sre_constants contextlib warnings weakref _weakrefset typing json _json string textwrap signal threading queue "
    "subprocess selectors select shutil tempfile random fnmatch glob pathlib struct _struct datetime _datetime "
    "_strptime calendar time locale gettext argparse copy pickle _compat_pickle dataclasses inspect ast dis opcode "
    "_opcode importlib token tokenize linecache traceback logging io platform hashlib _hashlib _blake base64 "
    "binascii hmac socket _socket ssl _ssl urllib http email.message concurrent asyncio _asyncio contextvars "
    "_contextvars _typing math _bisect _heapq _random _posixsubprocess _queue zlib bz _bz lzma _lzma _compression "
    "zipfile gzip unittest pprint difflib shlex getopt configparser csv _csv decimal _decimal numbers fractions "
    "statistics uuid _uuid runpy pkgutil zipimport ctypes _ctypes multiprocessing"
)
_ORDER = (
    *_EVERY_PROGRAM.split(),
    *_PYTHON.split(),
    *_SHELLS.split(),
    *(f"py:{name}" for name in _MODULES.split()),
    *"lib:libcrypto lib:libssl lib:libffi lib:libbz lib:liblzma lib:libuuid".split(),
)
_RANKS = {key: rank for rank, key in reversed(list(enumerate(_ORDER)))}
_LOADER_CACHE = "etc/ld.so.cache"
_PREFIX = r"(?:usr/(?:local/)?)?"
_LIB = rf"{_PREFIX}lib(?:32|64)?"
_LIBS = rf"{_LIB}(?:/[^/]+-linux-[^/]+)?"
_PYTHON_LIB = rf"{_LIB}/python3[\d.]*"
_HELD = re.compile(
    rf"etc|usr(?:/local)?|{_PREFIX}s?bin|{_LIBS}(?:/gconv)?|{_LIB}/locale(?:/C\.utf8)?|{_PYTHON_LIB}(?:/.*)?"
)
"""Directories that may hold something of the list."""
_PROGRAM = re.compile(rf"{_PREFIX}s?bin/([a-z]+)[\d.]*")
_LIBRARY = re.compile(rf"{_LIBS}/([\w+-]+?)[-.\d]*(?:\dm)?\.so[\d.]*")
_TABLE = re.compile(rf"{_LIBS}/(?:gconv|locale/C\.utf8)/([\w-]+)(?:\.cache)?")
_MODULE = re.compile(
    rf"{_PYTHON_LIB}/(?:(?:dist|site)-packages/(?=_distutils_hack/)|lib-dynload/)?(.+?)(?:\.cpython-[^/]*)?\.(?:py|pyc|so)"
)


def startup_files(tree: WalkedTree) -> tuple[Extent, ...]:
    """Return the whole blocks of the files that programs read when they begin, those that are needed most often first.

    Args:
        tree: was walked.

    Raises:
        InvalidRequestError: the tree is damaged.
    """
    found: dict[Extent, tuple[int, str]] = {}
    for path, inode in _files(tree):
        rank = _rank(path)
        if rank is not None:
            for extent in tree.whole_blocks(inode):
                found.setdefault(extent, (rank, path))
    return tuple(sorted(found, key=found.__getitem__))


def _files(tree: WalkedTree) -> Iterator[tuple[str, Inode]]:
    """Yield the regular files of the directories that may hold any."""
    seen = {tree.root}
    pending = [("", tree.root)]
    while pending:
        path, number = pending.pop()
        for name, child in tree.names(tree.inodes[number]):
            inode, below = tree.inodes[child], path + name.decode(errors="replace")
            if stat.S_ISREG(inode.mode):
                yield below, inode
            elif stat.S_ISDIR(inode.mode) and child not in seen and _HELD.fullmatch(below):
                seen.add(child)
                pending.append((f"{below}/", child))


def _rank(path: str) -> int | None:
    """Return the place of a file in the order; None: it is not of the list."""
    if path == _LOADER_CACHE:
        return _RANKS["etc:ld"]
    if found := _PROGRAM.fullmatch(path):
        return _RANKS.get(f"bin:{found[1]}")
    if found := _LIBRARY.fullmatch(path) or _TABLE.fullmatch(path):
        # The loader's name goes on with the processor.
        return _RANKS.get("lib:ld" if found[1].startswith("ld-") else f"lib:{found[1]}")
    if found := _MODULE.fullmatch(path):
        return _module_rank(found[1].replace("__pycache__/", "").split("/"))
    return None


def _module_rank(parts: list[str]) -> int | None:
    """Return the place of a module: its own, or that of the package that it belongs to."""
    if parts[-1] == "__init__":
        parts = parts[:-1]
    if parts[:1] == ["encodings"]:  # A hundred tables, of which one is read.
        return _RANKS.get("py:" + ".".join(parts))
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((_RANKS[f"py:{name}"] for name in names if f"py:{name}" in _RANKS), None)
