"""Assemble the descriptors and the command line of one `exec`."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.runtimes.container.flavour import Flavour
from dsec.runtimes.container.paths import InstancePaths

DOCUMENT_DESCRIPTOR = 10
LOG_DESCRIPTOR = 11
USER_NAMESPACE_DESCRIPTOR = 12
CONTROL_DESCRIPTOR = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeProgram:
    """An OCI runtime found on this host.

    Attributes:
        flavour: how it is driven.
        path: absolute path of the program.
        sealed: descriptor of a sealed copy of it in memory, if it is run from there.
    """

    flavour: Flavour
    path: str
    sealed: int | None = None

    @property
    def executed(self) -> str:
        """The path that a child of this very process executes."""
        return self.path if self.sealed is None else f"/proc/{os.getpid()}/fd/{self.sealed}"

    def global_arguments(self, state: Path, log_descriptor: int | str = LOG_DESCRIPTOR) -> list[str]:
        """Flags before the sub-command; errors go to a log that only the runtime holds."""
        log = f"/proc/self/fd/{log_descriptor}" if isinstance(log_descriptor, int) else log_descriptor
        return [*self.flavour.global_flags, "--root", str(state), "--log", log, "--log-format", "json"]

    def run_arguments(self, paths: InstancePaths, instance_id: str) -> list[str]:
        """Arguments of `run`, which leaves the instance running and ends."""
        flags = [*self.flavour.run_flags, "--bundle", str(paths.directory), "--pid-file", str(paths.pid)]
        if self.flavour.config_pipe:
            flags += ["--config", f"/proc/self/fd/{DOCUMENT_DESCRIPTOR}"]
        return [*self.global_arguments(paths.runtime_state), "run", *flags, instance_id]

    def exec_arguments(
        self,
        state: Path,
        instance_id: str,
        *,
        document: str = f"/proc/self/fd/{DOCUMENT_DESCRIPTOR}",
        log: int | str = LOG_DESCRIPTOR,
        console: Path | None = None,
        control: bool = False,
    ) -> list[str]:
        """Arguments of `exec`."""
        arguments = [*self.global_arguments(state, log), "exec", "--process", document]
        if console is not None and self.flavour.console_socket:
            arguments += ["--console-socket", str(console)]
        if control:
            arguments += ["--preserve-fds", "1"]
        return [*arguments, instance_id]


@dataclass(slots=True)
class Pipes:
    """The pipes of one command, with the ends that are ours and those that go to the child; closed as a whole."""

    ours: dict[str, int] = field(default_factory=dict)
    child: dict[int, int] = field(default_factory=dict)

    def output(self, name: str, target: int, owner: int | None = None) -> None:
        """Make a pipe that the child writes as descriptor `target`.

        Args:
            owner: host id of the guest's user, who may then open it again as /dev/stdout.
        """
        read, write = os.pipe()
        os.set_blocking(read, False)
        if owner is not None:
            os.fchown(write, owner, owner)
        self.ours[name], self.child[target] = read, write

    def input(self, name: str, target: int, owner: int | None = None, *, blocking: bool = False) -> None:
        """Make a pipe that the child reads as descriptor `target`; `owner` as for `output`."""
        read, write = os.pipe()
        if owner is not None:
            os.fchown(read, owner, owner)
        os.set_blocking(write, blocking)
        self.ours[name], self.child[target] = write, read

    def empty(self, target: int, owner: int | None = None) -> None:
        """Give the child an input that is at its end; `owner` as for `output`.

        Not /dev/null: OCI runtimes hand their standard streams over to the guest's root with fchown(2), and the guest
        could then take the host's own device away from everybody (``chmod 0 /proc/self/fd/0``).
        """
        read, write = os.pipe()
        os.close(write)
        if owner is not None:
            os.fchown(read, owner, owner)
        self.child[target] = read

    def sink(self, target: int) -> None:
        """Give the child a place of its own for words that nobody wants; not /dev/null, as above."""
        self.child[target] = os.memfd_create("sink", os.MFD_CLOEXEC)

    def take(self, name: str) -> int:
        """Hand over one of our ends."""
        return self.ours.pop(name)

    def close_child(self) -> None:
        """Close the ends that the child has now."""
        while self.child:
            os.close(self.child.popitem()[1])

    def close(self) -> None:
        """Close what was not handed over."""
        self.close_child()
        while self.ours:
            os.close(self.ours.popitem()[1])


def encode_document(document: object) -> bytes:
    """Return a process document as bytes.

    Raises:
        InvalidRequestError: it holds what a runtime cannot be told: bytes that are not UTF-8, or a NUL, at which the
            runtime would cut the text off.
    """
    try:
        data = msgspec.json.encode(document)
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            "arguments and environment must be UTF-8", detail=str(error), resolution="pass other bytes in a file"
        ) from error
    if b"\\u0000" in data:
        raise InvalidRequestError("arguments and environment cannot hold NUL", resolution="pass it in a file")
    return data


def write_document(descriptor: int, data: bytes) -> None:
    """Write a process document into its pipe and close it; the pipe is made large enough not to block.

    Raises:
        BrokenPipeError: the runtime has ended without reading it; its log says why.
    """
    try:
        if len(data) > 65_536:
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, len(data))
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)


def find_program(name: str, directories: Sequence[str]) -> str | None:
    """Return the absolute path of a program."""
    candidates = [name] if "/" in name else [f"{directory}/{name}" for directory in directories]
    return next((path for path in candidates if os.access(path, os.X_OK)), None)
