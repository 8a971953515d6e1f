"""A throw-away user of this host, to see what somebody sees who is not root. Making one needs root.

`python -m dsec.testing.ordinary_user STATE_DIR COMMAND...`, run by that user, runs a command in the node's namespace.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dsec
from dsec.linux.subids import subordinate_range

_PROGRAMS = ("useradd", "userdel", "usermod", "newuidmap", "newgidmap", "nsenter", "crun")
_WHERE = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_COMMAND_LIMIT_S = 580.0
_TEMPORARY = "tmp"


def reason_to_skip() -> str:
    """Say why no such user can be had here; empty when one can."""
    if os.geteuid() != 0:
        return "making a user needs root"
    lacking = [name for name in _PROGRAMS if shutil.which(name, path=_WHERE) is None]
    return f"this host has no {', '.join(lacking)}" if lacking else ""


@dataclass(frozen=True, slots=True)
class OrdinaryUser:
    """The user.

    Attributes:
        name: login name.
        uid, gid: ids.
        home: home directory.
        python: an interpreter that the user may run and that finds this code.
        environment: for that interpreter.
    """

    name: str
    uid: int
    gid: int
    home: Path
    python: str
    environment: Mapping[str, str]

    def command(self, *argv: str) -> list[str]:
        """Return a command line of this interpreter."""
        return [self.python, *argv]

    def dsec(self, state_dir: Path, *arguments: str) -> list[str]:
        """Return a command line of ours."""
        return self.command("-m", "dsec", "--state-dir", str(state_dir), *arguments)

    def run(
        self, argv: Sequence[str], *, group: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as the user and return what it said.

        Args:
            argv: program and arguments.
            group: control group to run it in.
            variables: further environment.
        """
        if group is not None:
            argv = ["sh", "-c", 'read -r _; exec "$@"', "sh", *argv]
        process = subprocess.Popen(
            argv,
            user=self.uid,
            group=self.gid,
            extra_groups=[],
            cwd=self.home,
            env={**self.environment, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        if group is not None:
            (group / "cgroup.procs").write_text(str(process.pid))
        with process:
            out, err = process.communicate("\n" if group is not None else "", timeout=_COMMAND_LIMIT_S)
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def processes(self) -> list[str]:
        """Command lines of the live processes of the user and of the sandboxes' users."""
        return [command for _, command in self._processes()]

    def _processes(self) -> Iterator[tuple[int, str]]:
        first, count = subordinate_range(Path("/etc/subuid"), self.name, self.uid) or (0, 0)
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError, IndexError):
                status = (entry / "status").read_text(errors="replace")
                uid = int(status.partition("\nUid:")[2].split()[0])
                is_ours = uid == self.uid or first <= uid < first + count
                if is_ours and "\nState:\tZ" not in status:
                    yield int(entry.name), (entry / "cmdline").read_text(errors="replace").replace("\0", " ")

    def end_processes(self) -> None:
        """Kill whatever the user still has."""
        for pid, _ in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def user_name() -> str:
    """Return what a user of this process's is called."""
    return f"dsec-{os.getpid() % 1_000_000}"


@contextmanager
def throwaway_user() -> Iterator[OrdinaryUser]:
    """Make a user with subordinate ids; remove it, its files and its processes at the end.

    Raises:
        RuntimeError: no interpreter of this host is reachable for ordinary users, or a program failed.
    """
    name = user_name()
    _do("useradd", "--create-home", "--shell", "/bin/bash", name)
    entry = pwd.getpwnam(name)
    # What is put there goes with the user: podman leaves directories of users in /tmp.
    (Path(entry.pw_dir) / _TEMPORARY).mkdir(mode=0o700)
    os.chown(Path(entry.pw_dir) / _TEMPORARY, entry.pw_uid, entry.pw_gid)
    user = OrdinaryUser(name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir), *_interpreter(entry))
    try:
        if subordinate_range(Path("/etc/subuid"), name, entry.pw_uid) is None:
            _do("usermod", "--add-subuids", "1700000000-1700065535", "--add-subgids", "1700000000-1700065535", name)
        yield user
    finally:
        user.end_processes()
        _do("userdel", "--remove", name)


def _interpreter(entry: pwd.struct_passwd) -> tuple[str, dict[str, str]]:
    """Return an interpreter that an ordinary user can run with this code and what it needs."""
    roots = [str(Path(dsec.__file__).parent.parent), *(path for path in sys.path if path.endswith("site-packages"))]
    environment = {
        "PATH": _WHERE,
        "HOME": entry.pw_dir,
        "USER": entry.pw_name,
        "LANG": "C.UTF-8",
        "TMPDIR": str(Path(entry.pw_dir) / _TEMPORARY),
        "PYTHONPATH": ":".join(roots),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        with contextlib.suppress(OSError):
            tried = subprocess.run(
                [candidate, "-c", "import dsec.cli.main, anyio, pytest, uvicorn"],
                user=entry.pw_uid, group=entry.pw_gid, extra_groups=[], cwd="/", env=environment,
                capture_output=True, check=False,
            )  # fmt: skip
            if tried.returncode == 0:
                return candidate, environment
    _do("userdel", "--remove", entry.pw_name)
    raise RuntimeError("no Python that ordinary users may run finds this code")


def _do(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, env={"PATH": _WHERE}, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")


def _main(state_dir: str, *command: str) -> None:
    from dsec.node.namespace import join

    join(Path(state_dir))
    os.execvp(command[0], list(command))


if __name__ == "__main__":
    _main(*sys.argv[1:])
