"""Layers travel: what arrives is what was sent, and a stream from a hostile machine reaches nothing."""

from __future__ import annotations

import os
import random
import shutil
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.state.test_memory_layers import GuestInMemory

from dsec.base.errors import InvalidRequestError
from dsec.base.units import MIB
from dsec.linux.btrfs_stream import MAGIC, Attribute, Command
from dsec.state.btrfs import BtrfsWritableLayers
from dsec.state.memory import Contents, MemoryWritableLayers
from dsec.state.port import WritableLayer
from dsec.state.volume import StateVolume
from dsec.testing.layers_suite import GuestOnDisk, Subject, describe, dig
from dsec.testing.transfer_suite import TransferSuite, receive_bytes, sent


class TestMemory(TransferSuite):
    @pytest.fixture
    def here(self) -> Subject:
        contents: Contents = {}
        return Subject(MemoryWritableLayers(contents), GuestInMemory(contents))

    @pytest.fixture
    def there(self) -> Subject:
        contents: Contents = {}
        return Subject(MemoryWritableLayers(contents), GuestInMemory(contents))


@pytest.fixture
def on_btrfs(volume: StateVolume) -> Iterator[Callable[[str], Subject]]:
    """Stores on one volume, each in a directory of its own."""
    made: list[BtrfsWritableLayers] = []

    def store(name: str) -> Subject:
        path = volume.path / name
        path.mkdir(exist_ok=True)
        layers = BtrfsWritableLayers(StateVolume(path=path, backing=volume.backing))
        made.append(layers)
        return Subject(layers, GuestOnDisk())

    yield store
    for layers in made:
        for name in layers.names():
            layers.discard(name)
        assert layers.wait_removed(60)
        layers.close()


@pytest.mark.root
class TestBtrfs(TransferSuite):
    @pytest.fixture
    def here(self, on_btrfs: Callable[[str], Subject]) -> Subject:
        return on_btrfs("here")

    @pytest.fixture
    def there(self, on_btrfs: Callable[[str], Subject]) -> Subject:
        return on_btrfs("there")

    def test_everything_that_a_layer_holds_arrives(self, here: Subject, there: Subject) -> None:
        layer = here.layers.create("a", quota_bytes=None)
        fill(layer.upper)
        here.layers.checkpoint("a", "point")
        receive_bytes(there.layers, "b", sent(here.layers, "point"))
        assert described(there, "b") == describe(layer.upper)

    def test_handles_of_the_senders_file_systems_stay_there(self, here: Subject, there: Subject) -> None:
        layer = here.layers.create("a", quota_bytes=None)
        (layer.upper / "d").mkdir()
        os.setxattr(layer.upper / "d", "trusted.overlay.opaque", b"y")
        for name in ("origin", "impure", "uuid"):
            os.setxattr(layer.upper / "d", f"trusted.overlay.{name}", b"handle")
        here.layers.checkpoint("a", "point")
        receive_bytes(there.layers, "b", sent(here.layers, "point"))
        os.removexattr(layer.upper / "d", "trusted.overlay.origin")
        here.layers.checkpoint("a", "next")
        receive_bytes(there.layers, "b", sent(here.layers, "next", "point"))
        found = there.layers.get("b")
        assert found is not None
        assert os.listxattr(found.upper / "d") == ["trusted.overlay.opaque"]

    def test_holes_do_not_count(self, here: Subject, there: Subject) -> None:
        layer = here.layers.create("a", quota_bytes=None)
        with (layer.upper / "sparse").open("wb") as file:
            file.truncate(64 * MIB)
        here.layers.checkpoint("a", "point")
        with (layer.upper / "sparse").open("r+b") as file:
            file.seek(32 * MIB)
            file.write(b"x")
        here.layers.checkpoint("a", "next")
        receive_bytes(there.layers, "b", sent(here.layers, "point"), quota_bytes=8 * MIB)
        receive_bytes(there.layers, "b", sent(here.layers, "next", "point"))
        found = there.layers.get("b")
        assert found is not None
        assert (found.upper / "sparse").stat().st_size == 64 * MIB
        assert (found.upper / "sparse").stat().st_blocks * 512 < MIB

    def test_a_path_that_no_stream_can_tell_is_an_error(self, here: Subject) -> None:
        dig(here.layers.create("a", quota_bytes=None).upper, 60, name="d" * 100)
        here.layers.checkpoint("a", "point")
        fd = os.memfd_create("stream")
        with pytest.raises(OSError, match="too long"):
            here.layers.send("point", None, fd)
        os.close(fd)

    @pytest.mark.parametrize("seed", range(6))
    def test_random_edits_arrive_increment_by_increment(self, here: Subject, there: Subject, seed: int) -> None:
        rng = random.Random(seed)
        layer = here.layers.create("a", quota_bytes=None)
        fill(layer.upper)
        parent = None
        for number in range(5):
            for _ in range(rng.randrange(25)):
                edit(layer, rng)
            here.layers.checkpoint("a", f"point{number}")
            receive_bytes(there.layers, "b", sent(here.layers, f"point{number}", parent))
            assert described(there, "b") == describe(layer.upper), f"after increment {number}"
            parent = f"point{number}"


# -- hostile streams ------------------------------------------------------------------------------------------------


def attribute(kind: Attribute, data: bytes) -> bytes:
    return struct.pack("<HH", kind, len(data)) + data


def command(kind: int, **attributes: bytes | int) -> bytes:
    data = b"".join(
        attribute(Attribute[name], value.to_bytes(8, "little") if isinstance(value, int) else value)
        for name, value in attributes.items()
    )
    return struct.pack("<IHI", len(data), kind, 0) + data


def stream(*commands: bytes) -> bytes:
    begin = MAGIC + struct.pack("<I", 1) + command(Command.SUBVOL, PATH=b"x")
    return begin + b"".join(commands) + command(Command.END)


C = Command


def hostile(outside: bytes) -> dict[str, bytes]:
    """Streams that no kernel writes for a layer."""
    return {
        "path-above": stream(command(C.MKFILE, PATH=b"../escaped")),
        "path-absolute": stream(command(C.MKFILE, PATH=b"/tmp/escaped")),
        "path-dots-inside": stream(command(C.MKFILE, PATH=b"upper/../../escaped")),
        "path-of-nul": stream(command(C.MKFILE, PATH=b"upper/\0")),
        "path-empty-name": stream(command(C.MKFILE, PATH=b"upper/")),
        "through-a-link": stream(
            command(C.SYMLINK, PATH=b"upper/l", PATH_LINK=outside), command(C.MKFILE, PATH=b"upper/l/escaped")
        ),
        "write-through-a-link": stream(
            command(C.SYMLINK, PATH=b"upper/l", PATH_LINK=outside + b"/victim"),
            command(C.WRITE, PATH=b"upper/l", FILE_OFFSET=0, DATA=b"overwritten"),
        ),
        "clone-through-a-link": stream(
            command(C.SYMLINK, PATH=b"upper/l", PATH_LINK=outside + b"/victim"),
            command(C.MKFILE, PATH=b"upper/f"),
            command(C.CLONE, PATH=b"upper/f", FILE_OFFSET=0, CLONE_LEN=4, CLONE_PATH=b"upper/l", CLONE_OFFSET=0),
        ),
        "hard-link-above": stream(command(C.LINK, PATH=b"upper/f", PATH_LINK=b"../../checkpoints")),
        "rename-out": stream(command(C.MKFILE, PATH=b"f"), command(C.RENAME, PATH=b"f", PATH_TO=b"../f")),
        "a-disk": stream(command(C.MKNOD, PATH=b"upper/sda", MODE=stat.S_IFBLK | 0o666, RDEV=os.makedev(8, 0))),
        "memory": stream(command(C.MKNOD, PATH=b"upper/mem", MODE=stat.S_IFCHR | 0o666, RDEV=os.makedev(1, 1))),
        "owner-of-another": stream(
            command(C.MKFILE, PATH=b"upper/f"), command(C.CHOWN, PATH=b"upper/f", UID=65_536, GID=0)
        ),
        "strange-attribute": stream(
            command(C.MKFILE, PATH=b"upper/f"),
            command(C.SET_XATTR, PATH=b"upper/f", XATTR_NAME=b"security.ima", XATTR_DATA=b"x"),
        ),
        "another-entry-beside-upper": stream(command(C.MKFILE, PATH=b"beside")),
        "upper-is-a-link": stream(
            command(C.RMDIR, PATH=b"upper"), command(C.SYMLINK, PATH=b"upper", PATH_LINK=outside)
        ),
        "no-upper": stream(command(C.RMDIR, PATH=b"upper")),
        "root-removed": stream(command(C.RMDIR, PATH=b"")),
        "fifo-is-written": stream(
            command(C.MKFIFO, PATH=b"upper/p"), command(C.WRITE, PATH=b"upper/p", FILE_OFFSET=0, DATA=b"x")
        ),
        "unknown-command": stream(command(99, PATH=b"upper/f")),
        "missing-attribute": stream(command(C.WRITE, PATH=b"upper/f")),
        "short-number": stream(command(C.MKFILE, PATH=b"upper/f"), command(C.CHMOD, PATH=b"upper/f", MODE=b"\1")),
        "second-subvolume": stream(command(C.SUBVOL, PATH=b"y")),
        "what-is-not-there": stream(command(C.UNLINK, PATH=b"upper/none")),
        "offset-beyond-everything": stream(
            command(C.MKFILE, PATH=b"upper/f"), command(C.WRITE, PATH=b"upper/f", FILE_OFFSET=(1 << 64) - 1, DATA=b"x")
        ),
        "huge-command": MAGIC + struct.pack("<I", 1) + struct.pack("<IHI", 1 << 31, 1, 0),
        "version-9": MAGIC + struct.pack("<I", 9),
        "nothing": b"",
        "noise": bytes(range(256)),
    }


@pytest.mark.root
@pytest.mark.parametrize("name", hostile(b""))
def test_a_hostile_stream_is_refused_and_reaches_nothing(
    on_btrfs: Callable[[str], Subject], tmp_path: Path, name: str
) -> None:
    subject = on_btrfs("hostile")
    (tmp_path / "victim").write_bytes(b"data")
    data = hostile(os.fsencode(tmp_path))[name]
    with pytest.raises(InvalidRequestError):
        receive_bytes(subject.layers, "b", data, quota_bytes=8 * MIB)
    assert os.listdir(tmp_path) == ["victim"]
    assert (tmp_path / "victim").read_bytes() == b"data"
    subject.layers.discard("b")
    assert subject.layers.names() == frozenset()


@pytest.mark.root
@pytest.mark.parametrize("seed", range(20))
def test_a_stream_with_flipped_bits_is_applied_or_refused(on_btrfs: Callable[[str], Subject], seed: int) -> None:
    subject, rng = on_btrfs("flipped"), random.Random(seed)
    layer = subject.layers.create("a", quota_bytes=None)
    fill(layer.upper)
    subject.layers.checkpoint("a", "point")
    data = bytearray(sent(subject.layers, "point"))
    for _ in range(3):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    try:
        receive_bytes(subject.layers, "b", bytes(data), quota_bytes=8 * MIB)
    except InvalidRequestError:
        pass
    subject.layers.discard("b")


# -- content --------------------------------------------------------------------------------------------------------


def described(subject: Subject, name: str) -> dict[str, tuple[object, ...]]:
    layer = subject.layers.get(name)
    assert layer is not None
    return describe(layer.upper)


def fill(upper: Path) -> None:
    """Everything that a layer may hold."""
    (upper / "plain").write_bytes(b"content" * 1000)
    os.link(upper / "plain", upper / "hard")
    (upper / "link").symlink_to("/etc/passwd")
    (upper / "closed").mkdir()
    (upper / "closed" / "f").write_bytes(b"x")
    os.setxattr(upper / "closed", "trusted.overlay.opaque", b"y")
    os.setxattr(upper / "plain", "user.note", b"\0value")
    (upper / "closed").chmod(0)
    Path(os.fsdecode(os.fsencode(upper) + b"/\xff\xfe\n")).write_bytes(b"name")
    os.mkfifo(upper / "fifo")
    os.mknod(upper / "socket", stat.S_IFSOCK | 0o600)
    os.mknod(upper / "whiteout", stat.S_IFCHR, 0)
    os.chown(upper / "plain", 4242, 4243)
    (upper / "plain").chmod(0o4755)
    with (upper / "copy").open("wb") as target, (upper / "plain").open("rb") as source:
        shutil.copyfileobj(source, target)
    os.utime(upper / "plain", ns=(1, 2))


def edit(layer: WritableLayer, rng: random.Random) -> None:
    """Change something at random, also between `upper` and `work`, as overlayfs does."""
    root = layer.upper
    paths = [*root.rglob("*"), root]
    directories = [path for path in paths if path.is_dir() and not path.is_symlink()]
    files = [path for path in paths if path.is_file() and not path.is_symlink()]
    new = rng.choice(directories) / f"n{rng.randrange(1 << 30)}"
    kind = rng.randrange(13)
    if kind == 0:
        new.write_bytes(rng.randbytes(rng.randrange(200_000)))
    elif kind == 1:
        new.mkdir()
    elif kind == 2 and files:
        with rng.choice(files).open("r+b") as file:
            file.seek(rng.randrange(10_000))
            file.write(rng.randbytes(rng.randrange(50_000)))
    elif kind == 3 and len(paths) > 1:
        victim = rng.choice(paths[:-1])
        if victim.is_dir() and not victim.is_symlink():
            shutil.rmtree(victim)
        else:
            victim.unlink()
    elif kind == 4 and len(paths) > 1:
        moved = rng.choice(paths[:-1])
        if moved not in (new, *new.parents):
            moved.rename(new)
    elif kind == 5 and files:
        os.link(rng.choice(files), new)
    elif kind == 6:
        staged = layer.work / f"w{rng.randrange(1 << 30)}"
        staged.write_bytes(rng.randbytes(5000))
        if rng.randrange(2):
            staged.rename(new)
    elif kind == 7 and files:
        os.truncate(rng.choice(files), rng.randrange(300_000))
    elif kind == 8 and len(directories) > 2:
        swap(*rng.sample(directories[:-1], 2))
    elif kind == 9 and len(files) > 1:
        os.replace(*rng.sample(files, 2))
    elif kind == 10 and files:
        turned = rng.choice(files)
        turned.unlink()
        turned.mkdir()
    elif kind == 11 and files:
        covered = rng.choice(files)
        covered.unlink()
        os.mknod(covered, stat.S_IFCHR, 0)
    elif files:
        os.chown(rng.choice(files), rng.randrange(65_536), rng.randrange(65_536))


def swap(one: Path, other: Path) -> None:
    """Exchange the names of two directories, unless one is in the other."""
    if one in other.parents or other in one.parents:
        return
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)
