"""Programs start with the descriptors they are given and no others, however many this process holds."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator

import pytest

from dsec.linux.spawn import MANY, Program, spawn

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


@pytest.fixture(params=["few", "many"])
def held(request: pytest.FixtureRequest) -> Iterator[None]:
    """As many descriptors as make the difference."""
    if request.param == "few":
        yield
        return
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2 * MANY:
        pytest.skip("this process may not hold so many")
    descriptors = [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) for _ in range(MANY)]
    yield
    for descriptor in descriptors:
        os.close(descriptor)


def run(script: str) -> bytes:
    """Run a shell script and return what it says."""
    read, write = os.pipe()
    empty, end = os.pipe()
    os.close(end)
    try:
        pid = spawn(
            Program(
                path="/bin/sh",
                arguments=["sh", "-c", script],
                environment=ENVIRONMENT,
                descriptors={0: empty, 1: write, 2: write, 9: empty},
            )
        )
        os.close(write)
        write = -1
        said = b""
        while data := os.read(read, 4096):
            said += data
        assert os.waitpid(pid, 0)[1] == 0
        return said
    finally:
        for descriptor in (read, empty, write):
            if descriptor >= 0:
                os.close(descriptor)


@pytest.mark.usefixtures("held")
def test_a_program_holds_what_it_was_given_and_nothing_else() -> None:
    listed = {int(name) for name in run("exec ls /proc/self/fd").split()}
    # What whoever started the tests lets everybody inherit is not ours; one more is what ls opens.
    extra = listed - {0, 1, 2, 9} - {descriptor for descriptor in _descriptors() if os.get_inheritable(descriptor)}
    assert listed >= {0, 1, 2, 9}
    assert len(extra) == 1


@pytest.mark.usefixtures("held")
def test_nothing_is_left_open_here_and_errors_are_told() -> None:
    run("true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run("true")
        with pytest.raises(FileNotFoundError):
            spawn(Program(path="/bin/no-such", arguments=["x"], environment={}, descriptors={0: max(_descriptors())}))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.usefixtures("held")
def test_a_program_that_cannot_be_asked_for_keeps_nobody_else_from_theirs() -> None:
    with pytest.raises(ValueError, match="null"):
        spawn(Program(path="/bin/sh\0", arguments=["x"], environment={}, descriptors={0: max(_descriptors())}))
    assert run("echo still").strip() == b"still"


@pytest.mark.usefixtures("held")
def test_a_forked_child_starts_programs_too() -> None:
    run("true")
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # A child that hangs ends by it.
        os._exit(0 if run("echo said") == b"said\n" else 1)
    assert os.waitpid(child, 0)[1] == 0


def _descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")]


@pytest.mark.root
@pytest.mark.usefixtures("held")
def test_a_program_has_the_user_it_is_to_have() -> None:
    read, write = os.pipe()
    program = Program(
        path="/bin/grep",
        arguments=["grep", "^Uid", "/proc/self/status"],
        environment=ENVIRONMENT,
        descriptors={0: write, 1: write, 2: write},
        effective_user=0x60_0001,
    )
    try:
        assert os.waitpid(spawn(program), 0)[1] == 0
        assert os.read(read, 4096).split()[1:3] == [b"0", b"6291457"]
    finally:
        os.close(read)
        os.close(write)
