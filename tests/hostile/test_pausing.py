"""A guest that resists being paused is paused all the same, or runs on with a typed error, and goes on afterwards."""

from __future__ import annotations

import anyio
import pytest

from dsec.base.errors import SwapFullError
from dsec.model.sandbox import SandboxState
from dsec.testing.guest import Guest

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]

PATIENCE_S = 60.0
PYTHON = "import ctypes, mmap, os, signal, sys, time; libc = ctypes.CDLL(None)\n"
READY = "open('/tmp/ready', 'w').close(); time.sleep(600)\n"
RESISTING = {
    # /proc/PID/maps is longer than what is read of it, and each mapping takes a call.
    "mappings": "maps = [mmap.mmap(-1, 8192) for _ in range(20000)]\n"
    "for each in maps: each[0] = 1; libc.mprotect(ctypes.addressof(ctypes.c_char.from_buffer(each)), 4096, 1)\n"
    + READY,
    "locked": "held = mmap.mmap(-1, 16 << 20)\nfor i in range(0, 16 << 20, 4096): held[i] = 1\n"
    "libc.mlockall(3)\n" + READY,
    "file in memory": "open('/dev/shm/file', 'wb').write(os.urandom(1 << 20) * 48)\n" + READY,
    "forks": "open('/tmp/ready', 'w').close()\nwhile True:\n    if os.fork() == 0: os._exit(0)\n    os.wait()\n",
    "threads": "import threading\nfor _ in range(60): threading.Thread(target=time.sleep, args=(600,)).start()\n"
    + READY,
    "stopped": "child = os.fork()\nif child == 0: time.sleep(600)\nos.kill(child, signal.SIGSTOP)\n" + READY,
    "traced": "child = os.fork()\nif child == 0:\n    libc.ptrace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP)\n"
    "    time.sleep(600)\n" + READY,
    "vfork": "open('/tmp/ready', 'w').close()\nos.posix_spawn('/bin/sleep', ['sleep', '600'], {})\n"
    "libc.vfork() or time.sleep(600)\n",
    "maps and unmaps": "open('/tmp/ready', 'w').close()\nwhile True:\n    held = mmap.mmap(-1, 32 << 20)\n"
    "    for i in range(0, 32 << 20, 4096): held[i] = 1\n    held.close()\n",
}


@pytest.mark.parametrize("kind", RESISTING)
async def test_guest_that_resists_is_paused_and_goes_on(guest: Guest, kind: str) -> None:
    await guest.sh(f"cat > /tmp/resist.py <<'END'\n{PYTHON}{RESISTING[kind]}\nEND")
    await guest.background("exec python3 /tmp/resist.py")
    assert (await guest.sh("until [ -e /tmp/ready ]; do sleep 0.02; done; echo ready")).stdout == b"ready\n"
    for _ in range(3):
        with anyio.fail_after(PATIENCE_S):
            assert (await guest.service.pause(guest.sandbox_id)).state is SandboxState.PAUSED
            used = await guest.service.statistics(guest.sandbox_id)
            assert used.cpu_s is None or (await guest.service.statistics(guest.sandbox_id)).cpu_s == used.cpu_s
            assert (await guest.sh("echo alive")).stdout == b"alive\n"


async def test_guest_that_grows_without_end_is_paused_or_told_that_there_is_no_room(guest: Guest) -> None:
    grows = "held = []\nopen('/tmp/ready', 'w').close()\nwhile True:\n    held.append(os.urandom(1 << 20))\n"
    grows += "    if len(held) > 150: held.clear()\n"
    await guest.sh(f"cat > /tmp/grow.py <<'END'\n{PYTHON}{grows}\nEND")
    await guest.background("exec python3 /tmp/grow.py")
    for _ in range(5):
        with anyio.fail_after(PATIENCE_S):
            try:
                await guest.service.pause(guest.sandbox_id)
            except SwapFullError:
                assert (await guest.service.inspect(guest.sandbox_id)).state is SandboxState.READY
            assert (await guest.sh("echo alive")).stdout == b"alive\n"
