"""Files that a guest prepares against whoever touches them from outside, and archives against whoever unpacks them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import anyio
import pytest

from dsec.base.errors import DsecError, Fault, InvalidRequestError, UnsafeArchiveError, UnsupportedFileError
from dsec.model.files import FileKind
from dsec.testing.guest import Guest

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]

HOME = "/home/user"
PATIENCE_S = 60.0


async def read(guest: Guest, path: str) -> bytes:
    return b"".join([chunk async for chunk in guest.service.read_file(guest.sandbox_id, path)])


async def download(guest: Guest, path: str) -> tarfile.TarFile:
    content = b"".join([chunk async for chunk in guest.service.download(guest.sandbox_id, path)])
    return tarfile.open(fileobj=io.BytesIO(content))


@contextmanager
def not_the_platforms_fault() -> Iterator[None]:
    """It may succeed, or fail because of the guest or of what was asked."""
    try:
        yield
    except DsecError as error:
        if error.fault is Fault.PLATFORM:
            raise


async def upload(guest: Guest, archive: bytes, path: str = HOME) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(archive), 50_000):
            yield archive[start : start + 50_000]

    await guest.service.upload(guest.sandbox_id, path, chunks())


def archive(*members: tarfile.TarInfo, content: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as file:
        for member in members:
            member.size = len(content) if member.isreg() else 0
            file.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


async def test_links_and_dots_lead_nowhere_outside(guest: Guest) -> None:
    """The host's files have the guest's names: what is read is always the guest's own."""
    await guest.sh("""
ln -s /etc/passwd p; ln -s ../../../../../../../../etc/passwd up; ln -s /proc/1/root/etc/passwd magic
ln -s / root; ln -s loop loop; ln -s /proc/self/root r; ln -s /proc/1/cwd/etc c""")
    own = (await guest.run("cat", "/etc/passwd")).stdout
    for path in ("p", "up", "root/etc/passwd", "../../../../../../../etc/passwd", "/../../etc/passwd"):
        assert await read(guest, f"{HOME}/{path}") == own, path
    for path in ("magic", "loop", "r/etc/passwd", "c/passwd"):
        with pytest.raises(DsecError):
            await read(guest, f"{HOME}/{path}")


async def test_fifos_devices_and_sockets_are_listed_and_never_opened(guest: Guest) -> None:
    await guest.ask("""
import os, socket
os.mkfifo("/home/user/fifo")
socket.socket(socket.AF_UNIX).bind("/home/user/socket")
os.symlink("/dev/zero", "/home/user/zero")
open("/home/user/plain", "w").write("x")
print(1)
""")
    with anyio.fail_after(PATIENCE_S):
        for name in ("fifo", "socket", "zero"):
            with pytest.raises(UnsupportedFileError):
                await read(guest, f"{HOME}/{name}")
        with pytest.raises(UnsupportedFileError):
            await guest.service.write_file(guest.sandbox_id, f"{HOME}/fifo", b"x", append=True)
        kinds = {info.name: info.kind for info in await guest.service.list_files(guest.sandbox_id, HOME)}
        assert (kinds["fifo"], kinds["socket"]) == (FileKind.OTHER, FileKind.OTHER)
        names = (await download(guest, HOME)).getnames()
    assert [name for name in names if "fifo" in name or "socket" in name] == []
    assert [name for name in names if "plain" in name]


async def test_names_that_are_not_utf8_go_both_ways(guest: Guest) -> None:
    name = "\udcff\udcfe \n*"
    await guest.service.write_file(guest.sandbox_id, f"{HOME}/{name}", b"odd")
    assert await read(guest, f"{HOME}/{name}") == b"odd"
    assert await guest.ask("import os, json; print(json.dumps([n.hex() for n in os.listdir(b'/home/user')]))") == [
        b"\xff\xfe \n*".hex()
    ]
    (info,) = await guest.service.list_files(guest.sandbox_id, HOME)
    assert info.raw_path == b"/home/user/\xff\xfe \n*"
    await guest.service.remove_file(guest.sandbox_id, f"{HOME}/{name}")


async def test_path_of_four_kilobytes_is_bounded_listed_and_removed(guest: Guest) -> None:
    await guest.ask("""
import os
os.chdir("/home/user")
for _ in range(60):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
open("end", "w").close()
print(1)
""")
    with pytest.raises(InvalidRequestError):
        await read(guest, "/" + "d" * 4096)
    with pytest.raises(DsecError):
        await read(guest, HOME + ("/" + "d" * 200) * 60 + "/end")
    with not_the_platforms_fault():
        assert len(await guest.service.list_files(guest.sandbox_id, HOME, depth=64)) >= 19
    await guest.service.remove_file(guest.sandbox_id, f"{HOME}/{'d' * 200}", recursive=True)
    assert await guest.service.list_files(guest.sandbox_id, HOME) == []


@pytest.mark.parametrize(
    "content",
    [
        archive(member("/etc/cron.d/x"), content=b"x"),
        archive(member("../../x"), content=b"x"),
        archive(member("a/../../../x"), content=b"x"),
        archive(member("device", tarfile.CHRTYPE)),
        archive(member("disk", tarfile.BLKTYPE)),
        archive(member("fifo", tarfile.FIFOTYPE)),
        archive(member("hard", tarfile.LNKTYPE, "../../etc/passwd")),
        archive(member("out", tarfile.SYMTYPE, "../../../../etc")),
        b"no archive" * 1000,
    ],
)
async def test_archives_that_reach_out_are_refused(guest: Guest, content: bytes) -> None:
    with pytest.raises((UnsafeArchiveError, InvalidRequestError)):
        await upload(guest, content)
    assert (await guest.sh("ls -A /home/user; ls /etc/cron.d 2>/dev/null")).stdout == b""


async def test_archive_does_not_write_through_its_own_links(guest: Guest) -> None:
    """Links with absolute targets are stored as they are (virtual environments have them) and never followed."""
    await upload(guest, archive(member("venv", tarfile.SYMTYPE, "/usr/bin/python3")))
    assert (await guest.run("readlink", f"{HOME}/venv")).stdout == b"/usr/bin/python3\n"
    own = (await guest.run("cat", "/etc/passwd")).stdout
    await upload(guest, archive(member("venv2", tarfile.SYMTYPE, "/etc")))
    with pytest.raises(DsecError):
        await upload(guest, archive(member("venv2/passwd"), content=b"owned"))
    assert (await guest.run("cat", "/etc/passwd")).stdout == own


async def test_bomb_is_stopped_by_the_quota(guest: Guest) -> None:
    async def zeros() -> AsyncIterator[bytes]:
        info = member("bomb")
        info.size = 1 << 30
        yield info.tobuf(tarfile.GNU_FORMAT)
        for _ in range(1 << 10):
            yield bytes(1 << 20)
        yield bytes(1024)

    with pytest.raises(DsecError) as raised:
        await guest.service.upload(guest.sandbox_id, HOME, zeros())
    assert raised.value.fault is Fault.GUEST
    assert (await guest.sh("ls -A")).stdout == b""


async def test_files_that_change_while_they_are_downloaded(guest: Guest) -> None:
    """They shrink, grow, vanish and become links and FIFOs: the archive is whole and holds only the guest's own."""
    await guest.background("""
mkdir -p d; i=0
while :; do
    head -c $((i % 3 * 300000)) /dev/zero >d/a; head -c 900000 /dev/zero >>d/b; : >d/b
    rm -f d/c; ln -s /etc/shadow d/c; rm -f d/c; mkfifo d/c; rm -f d/c; mkdir d/c; echo x >d/c/x; rm -r d/c
    i=$((i+1))
done 2>/dev/null""")
    with anyio.fail_after(PATIENCE_S):
        for _ in range(20):
            with not_the_platforms_fault(), await download(guest, f"{HOME}/d") as whole:
                assert not [info for info in whole if info.ischr() or info.isfifo()]


@pytest.mark.parametrize(
    "preparation",
    [
        "rm /etc/passwd; mkfifo /etc/passwd",
        "rm /etc/passwd; mkdir /etc/passwd",
        "rm /etc/passwd; ln -s passwd /etc/passwd",
        "rm /etc/passwd; ln -s /dev/zero /etc/passwd",
        "rm /etc/passwd; ln -s /proc/1/environ /etc/passwd",
        "truncate -s 1T /etc/passwd",
        "head -c 30000000 /dev/zero | tr '\\0' x >/etc/passwd",
        "yes user:x:0:0:: | head -c 30000000 >/etc/passwd",
        "printf 'user:x:99999999999999999999:-1::\\nuser:x:4294967295:0::\\nuser' >/etc/passwd",
        "printf '\\377\\376\\000:::' >/etc/passwd",
        "rm -rf /etc",
        "mv /etc /e; ln -s e /etc; chmod 0 /e",
    ],
)
async def test_user_database_made_by_a_guest_gives_a_user_or_a_typed_error(guest: Guest, preparation: str) -> None:
    assert (await guest.sh(preparation)).status.exit_code in (0, 1, 141)
    with anyio.fail_after(PATIENCE_S):
        with not_the_platforms_fault():
            answer = await guest.run("id", "-u", user="user")
            assert int(answer.stdout) < 65_536
        assert (await guest.run("id", "-u", user="0")).stdout == b"0\n"
