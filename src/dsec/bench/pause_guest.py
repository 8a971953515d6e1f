"""What guests of the pause benchmark run: they hold memory of some kind, and touch all of it when they are asked."""

from __future__ import annotations

import enum

DIRECTORY = "/tmp/held"
"""Where the pipes by which they are asked are; the first argument."""
READY = f"until [ -e {DIRECTORY}/ready ]; do sleep 0.02; done"
"""Waits until all is held."""
ASK = f"echo > {DIRECTORY}/ask; cat {DIRECTORY}/answer > /dev/null"
"""Has all of it touched."""


class Held(enum.Enum):
    """The kinds of memory."""

    ANONYMOUS = "anonymous memory"
    TMPFS = "a file in memory"
    DIRTY = "a file that is not on disk yet"
    TREE = "32 processes"


PROGRAM = """
import os, sys
directory, kind, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
PAGE, CHILDREN = 4096, 32
os.makedirs(directory)
for name in ("ask", "answer"):
    os.mkfifo(directory + "/" + name)

def hold(size):
    return memoryview(bytearray(os.urandom(PAGE) * (size // PAGE)))

def fill(path):
    page = os.urandom(1 << 20)
    with open(path, "wb") as file:
        for _ in range(size >> 20):
            file.write(page)

def child(size):
    down, up = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(down[1])
        held = hold(size)
        os.write(up[1], b"r")
        while os.read(down[0], 1):
            sum(held[::PAGE])
            os.write(up[1], b"d")
        os._exit(0)
    os.read(up[0], 1)
    return down[1], up[0]

def ask(children):
    for down, _ in children:
        os.write(down, b"a")
    for _, up in children:
        os.read(up, 1)

def read(path):
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 20):
            pass

if kind == "anonymous memory":
    held = hold(size)
    touch = lambda: sum(held[::PAGE])
elif kind == "32 processes":
    children = [child(size // CHILDREN) for _ in range(CHILDREN)]
    touch = lambda: ask(children)
else:
    path = "/dev/shm/file" if kind == "a file in memory" else directory + "/file"
    fill(path)
    touch = lambda: read(path)
open(directory + "/ready", "w").close()
while True:
    with open(directory + "/ask") as asked:
        asked.read()
    touch()
    with open(directory + "/answer", "w") as answer:
        answer.write("done")
"""
_TMPFS_SHARE = 0.75
"""/dev/shm of a sandbox holds 64 MiB and no more."""


def command(held: Held, size_bytes: int, *, directory: str = DIRECTORY, python: str = "python3") -> tuple[str, ...]:
    """Return what holds so much and answers."""
    size = int(size_bytes * _TMPFS_SHARE) if held is Held.TMPFS else size_bytes
    return (python, "-c", PROGRAM, directory, held.value, str(size))
