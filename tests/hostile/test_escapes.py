"""A hostile root reaches neither the host, nor another sandbox, nor anything of ours."""

from __future__ import annotations

import os
import secrets
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dsec.base.errors import DsecError
from dsec.model.process import CommandRequest, SessionCommand, SessionRequest, TerminalSize
from dsec.sdk.http import HttpService
from dsec.testing.guest import Guest
from dsec.testing.node_process import NodeProcess

CAP_SYS_RESOURCE = 24

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]


async def test_replaced_shells_see_nothing_of_ours(service: HttpService, guest: Guest) -> None:
    """A shell of the guest's is run when a shell is asked for, and for nothing else."""
    spy = "#!/usr/bin/python3\nimport sys\nopen('/tmp/seen', 'a').write(repr(sys.argv))\nprint('forged')\n"
    for name in ("/bin/sh", "/bin/bash", "/bin/cat", "/bin/ls", "/bin/tar", "/bin/true", "/usr/bin/env"):
        await service.write_file(guest.sandbox_id, name, spy.encode(), permissions=0o755)
    box = guest.sandbox_id
    await service.write_file(box, "/home/user/f", b"mine")
    assert b"".join([chunk async for chunk in service.read_file(box, "/home/user/f")]) == b"mine"
    assert [info.name for info in await service.list_files(box, "/home/user")] == ["f"]
    assert b"".join([chunk async for chunk in service.download(box, "/home/user")])
    await service.statistics(box)
    await service.pause(box)
    await service.resume(box)
    await service.end_processes(box)
    assert await guest.ask("import os; print(int(os.path.exists('/tmp/seen')))") == 0
    assert (await guest.run("/bin/sh", "-c", "echo real")).stdout == b"forged\n"
    with pytest.raises(DsecError):
        await service.open_session(box, SessionRequest())


async def test_no_inherited_descriptor_reaches_us(service: HttpService, guest: Guest) -> None:
    """Whatever a command finds open besides its own three streams would be a way to forge messages."""
    source = """
import json, os, stat
found = []
for pid in (1, os.getpid()):
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if int(fd) > 2 and not target.startswith("/proc/") and target != "anon_inode:[signalfd]":
            found.append((pid, fd, target))
        if pid == 1:
            try:
                end = os.open(f"/proc/1/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK)
                os.write(end, b"forged")
                os.close(end)
            except OSError:
                pass
print(json.dumps(found))
"""
    assert await guest.ask(source) == []
    assert await guest.ask(source, stdin=b"input", keep_stdin_open=False) == []
    terminal = await guest.run("python3", "-c", source, terminal=TerminalSize())
    assert terminal.stdout.strip() == b"[]"
    process = await service.start_process(
        guest.sandbox_id, CommandRequest(argv=("python3", "-c", source), timeout_s=None)
    )
    result = await service.wait_process(guest.sandbox_id, process.process_id, timeout_s=60)
    assert result.stdout.strip() == b"[]"
    # The session's control channel is the shell's alone, and what it says is not believed when it is forged.
    session = await service.open_session(guest.sandbox_id, SessionRequest())
    script = "for fd in /proc/self/fd/*; do echo 0 >$fd; done 2>/dev/null; false"
    answer = await service.run_in_session(guest.sandbox_id, session.session_id, SessionCommand(script=script))
    assert answer.status.exit_code != 0


async def test_killing_and_tracing_everybody_ends_nothing_of_ours(guest: Guest) -> None:
    source = """
import ctypes, json, os, signal
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
answers = {"pids": len(pids), "attached": libc.ptrace(16, 1, 0, 0)}
os.kill(1, 9)
for pid in range(2, 5000):
    if pid != os.getpid():
        try:
            os.kill(pid, 9)
        except OSError:
            pass
print(json.dumps(answers))
"""
    answers = await guest.ask(source)
    assert answers["pids"] <= 3
    assert (await guest.run("true")).status.exit_code == 0
    killed = await guest.sh("kill -9 -1; echo here", timeout_s=20)
    assert killed.status.signal in (None, 9)
    assert (await guest.sh("echo alive")).stdout == b"alive\n"


async def test_nothing_in_proc_and_sys_can_be_written(guest: Guest) -> None:
    source = """
import json, os
opened = []
for top in ("/sys", "/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/scsi"):
    for directory, _, names in os.walk(top):
        for name in names:
            path = os.path.join(directory, name)
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                opened.append(path)
            except OSError:
                pass
for path in ("/proc/sysrq-trigger", "/proc/kcore", "/proc/mtrr", "/proc/timer_list"):
    try:
        fd = os.open(path, os.O_WRONLY)
        if os.fstat(fd).st_rdev != os.makedev(1, 3):  # Masked: it is /dev/null.
            opened.append(path)
    except OSError:
        pass
print(json.dumps(opened))
"""
    assert await guest.ask(source) == []


async def test_memory_and_secrets_of_the_kernel_cannot_be_read(guest: Guest) -> None:
    source = """
import json
read = {}
for path in ("/proc/kcore", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags", "/proc/keys", "/proc/kmsg",
             "/dev/kmsg", "/dev/mem", "/dev/kmem", "/dev/port", "/proc/timer_list", "/proc/sched_debug",
             "/proc/slabinfo", "/proc/vmallocinfo", "/sys/kernel/debug/tracing/trace", "/sys/kernel/security/lsm"):
    try:
        with open(path, "rb") as file:
            read[path] = len(file.read(64))
    except OSError:
        read[path] = 0
with open("/proc/kallsyms") as file:
    read["kallsyms"] = sum(int(line.split()[0], 16) for line in file.read(4096).splitlines()[:-1])
print(json.dumps({path: count for path, count in read.items() if count}))
"""
    assert await guest.ask(source) == {}


async def test_file_system_controls_of_the_root_are_refused(guest: Guest) -> None:
    """Shutting a file system down, freezing it, swapping extents, snapshots, searching its trees, fixed files."""
    source = """
import fcntl, json, os
calls = {
    "FS_IOC_SHUTDOWN": (0x8004587D, bytes(4)), "FIFREEZE": (0xC0045877, bytes(4)), "FITHAW": (0xC0045878, bytes(4)),
    "FITRIM": (0xC0185879, bytes(24)), "XFS_IOC_SWAPEXT": (0xC0C0586D, bytes(192)),
    "EXT4_IOC_SWAP_BOOT": (0x6611, b""), "EXT4_IOC_RESIZE_FS": (0x40086610, bytes(8)),
    "BTRFS_SNAP_CREATE": (0x50009401, bytes(4096)), "BTRFS_SUBVOL_CREATE": (0x5000940E, bytes(4096)),
    "BTRFS_SNAP_DESTROY": (0x5000940F, bytes(4096)), "BTRFS_TREE_SEARCH": (0xD0009411, bytes(4096)),
    "BTRFS_QUOTA_CTL": (0xC0109428, bytes(16)), "BTRFS_QGROUP_LIMIT": (0x8030942B, bytes(48)),
    "BTRFS_RM_DEV": (0x5000940B, bytes(4096)), "BTRFS_RESIZE": (0x50009403, bytes(4096)),
    "FS_IOC_SETFLAGS immutable": (0x40086602, (0x10).to_bytes(8, "little")),
    "FS_IOC_SETFLAGS append": (0x40086602, (0x20).to_bytes(8, "little")),
    "FS_IOC_FSSETXATTR project": (0x401C5820, bytes(12) + (7).to_bytes(4, "little") + bytes(12)),
    "FIBMAP": (1, bytes(4)),
}
open("/home/user/mine", "w").close()
done = []
for path in ("/", "/home/user", "/home/user/mine", "/etc/passwd", "/bin/sh", "/dev/.init", "/dev/shm"):
    fd = os.open(path, os.O_RDONLY)
    for name, (number, argument) in calls.items():
        try:
            fcntl.ioctl(fd, number, bytearray(argument) if argument else 0)
            done.append((path, name))
        except OSError:
            pass
print(json.dumps(done))
"""
    assert await guest.ask(source) == []


async def test_doors_of_the_kernel_are_closed(guest: Guest) -> None:
    """Mounts, namespaces, modules, clock, names, devices, foreign file handles, swap, reboot, kexec, bpf."""
    source = """
import ctypes, json, os, socket, stat, time
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    return getattr(libc, name)(*arguments) == 0
def attempt(function, *arguments):
    try:
        made = function(*arguments)
        if hasattr(made, "close"):
            made.close()
    except OSError:
        return False
    return True
os.makedirs("/tmp/m", exist_ok=True)
done = {
    "mount tmpfs": call("mount", b"x", b"/tmp/m", b"tmpfs", 0, None),
    "mount proc": call("mount", b"x", b"/tmp/m", b"proc", 0, None),
    "remount root": call("mount", None, b"/", None, 32 | 4096, None),
    "bind": call("mount", b"/", b"/tmp/m", None, 4096, None),
    "umount proc": call("umount2", b"/proc", 2),
    "umount init": call("umount2", b"/dev/.init", 2),
    **{f"unshare {flag:x}": call("unshare", flag) for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x4000000)},
    "setns": call("setns", os.open("/proc/1/ns/mnt", os.O_RDONLY), 0),
    "init_module": call("syscall", 175, b"", 0, b""),
    "settimeofday": attempt(time.clock_settime, time.CLOCK_REALTIME, 0),
    "sethostname": attempt(socket.sethostname, "host"),
    "mknod mem": attempt(os.mknod, "/tmp/mem", 0o666 | stat.S_IFCHR, os.makedev(1, 1)),
    "mknod disk": attempt(os.mknod, "/tmp/disk", 0o666 | stat.S_IFBLK, os.makedev(254, 0)),
    "open_by_handle_at": libc.syscall(304, -100, ctypes.create_string_buffer(128), 0) >= 0,
    "swapon": call("swapon", b"/etc/passwd", 0),
    "reboot": call("reboot", 0),
    "bpf": libc.syscall(321, 0, ctypes.create_string_buffer(128), 128) >= 0,
    "perf": libc.syscall(298, ctypes.create_string_buffer(128), 0, -1, -1, 0) >= 0,
    "userfaultfd": libc.syscall(323, 0) >= 0,
    "acct": call("acct", b"/tmp/acct"),
    "nice below": attempt(os.setpriority, os.PRIO_PROCESS, 0, -20),
    "fewer out-of-memory points": attempt(lambda: os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"499")),
}
print(json.dumps([name for name, happened in done.items() if happened]))
"""
    done = await guest.ask(source)
    if not _has_capability(CAP_SYS_RESOURCE):
        done.remove("fewer out-of-memory points")  # Only somebody with it can set a lowest score.
    assert done == []


def _has_capability(number: int) -> bool:
    status = Path("/proc/self/status").read_text()
    return bool(int(status.partition("CapEff:")[2].split()[0], 16) >> number & 1)


async def test_chroot_twice_leads_no_further_up(guest: Guest) -> None:
    source = """
import json, os
root = os.stat("/")
os.makedirs("/tmp/jail", exist_ok=True)
out = os.open("/", os.O_RDONLY)
os.chroot("/tmp/jail")
os.fchdir(out)
for _ in range(100):
    os.chdir("..")
os.chroot(".")
here = os.stat("/")
print(json.dumps([(root.st_dev, root.st_ino) == (here.st_dev, here.st_ino), os.path.exists("/tmp/jail")]))
"""
    assert await guest.ask(source) == [True, True]
    assert not Path("/tmp/jail").exists()


async def test_no_network_leads_to_the_node_or_the_host(node: NodeProcess, guest: Guest) -> None:
    """Not over loopback, abstract sockets, vsock, netlink or raw packets."""
    port = urlsplit(node.announced["url"]).port
    name = f"dsec-probe-{secrets.token_hex(8)}"
    source = f"""
import json, os, socket
def attempt(function):
    try:
        function()
    except OSError:
        return False
    return True
def connect(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as made:
        made.settimeout(1)
        made.connect(address)
def scan():
    for port in range(1, 65536):
        with socket.socket() as made:
            # A socket that is given the port it connects to is connected with itself.
            if made.connect_ex(("127.0.0.1", port)) == 0 and made.getsockname() != made.getpeername():
                return
    raise OSError
done = {{
    "the node's port": attempt(lambda: connect(socket.AF_INET, ("127.0.0.1", {port}))),
    "any port": attempt(scan),
    "the world": attempt(lambda: connect(socket.AF_INET, ("192.0.2.1", 80))),
    "an abstract socket of the host": attempt(lambda: connect(socket.AF_UNIX, "\\0{name}")),
    "vsock": attempt(lambda: socket.socket(40, socket.SOCK_STREAM)),
    "kernel crypto": attempt(lambda: socket.socket(38, socket.SOCK_SEQPACKET)),
    "bluetooth": attempt(lambda: socket.socket(31, socket.SOCK_RAW)),
    "audit": attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9).send(bytes(64))),
    "interfaces": [name for _, name in socket.if_nameindex()] != ["lo"],
    "a way out": len(open("/proc/net/route").readlines()) > 1,
}}
print(json.dumps([name for name, happened in done.items() if happened]))
"""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        assert await guest.ask(source) == []


async def test_host_keeps_its_clock_name_and_limits(guest: Guest) -> None:
    before = (os.uname().nodename, time.time() - time.monotonic(), os.sysconf("SC_NPROCESSORS_ONLN"))
    await guest.sh("hostname mine; date -s 2001-01-01; echo 1 >/proc/sys/vm/drop_caches; swapoff -a; sync")
    after = (os.uname().nodename, time.time() - time.monotonic(), os.sysconf("SC_NPROCESSORS_ONLN"))
    assert (after[0], after[2]) == (before[0], before[2])
    assert abs(after[1] - before[1]) < 60


async def test_nothing_of_the_host_shows_in_what_a_guest_may_read(node: NodeProcess, guest: Guest) -> None:
    """Neither paths of ours in mount table and arguments, nor other sandboxes, nor the token."""
    token = Path(node.announced["token_file"]).read_text().strip()
    source = """
import os
for name in ("mountinfo", "cgroup", "environ", "cmdline", "status", "maps"):
    for pid in ("1", "self"):
        try:
            print(open(f"/proc/{pid}/{name}", errors="replace").read())
        except OSError:
            pass
print(os.listdir("/"), os.listdir("/dev"), os.listdir("/run"), os.environ)
"""
    said = (await guest.run("python3", "-c", source)).stdout.decode()
    for secret in (str(node.state_dir), "/run/dsec", token, "sbx-bystander", "/var/lib/dsec", "node.sock"):
        assert secret not in said, secret
