"""A real PostgreSQL server for tests, in a directory of its own: from Debian's package `postgresql`, any version.

It refuses to run as root, so that root runs it as an ordinary user. It syncs nothing: its process may be killed, which
loses nothing, and power is not cut in tests.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dsec.testing.server_process import free_ports

_START_S = 60.0
_USERS = ("postgres", "nobody")
_QUIET = (
    "-c",
    "fsync=off",
    "-c",
    "listen_addresses=127.0.0.1",
    "-c",
    "max_connections=60",
    "-c",
    "shared_buffers=16MB",
)


@dataclass(slots=True)
class PostgresqlServer:
    """A server in a directory.

    Attributes:
        directory: holds its data, its socket and its log.
        programs: where its programs are.
        user: who runs it; empty: we do.
        port: of loopback; its socket is named by it, too.
    """

    directory: Path
    programs: Path
    user: str
    port: int = field(default_factory=lambda: free_ports(1)[0])
    _process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def connection(self) -> str:
        """For libpq."""
        return f"host={self.directory} port={self.port} user=dsec dbname=postgres"

    def start(self) -> None:
        """Start it and wait until it takes connections; after a kill it recovers first."""
        command = [str(self.programs / "postgres"), "-D", str(self.directory / "data"), "-k", str(self.directory)]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "-p", str(self.port), *_QUIET],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
                user=self.user or None,
                extra_groups=[] if self.user else None,
                group=pwd.getpwnam(self.user).pw_gid if self.user else None,
            )
        self._wait_until_it_answers()

    def kill(self) -> None:
        """Kill it with all its processes, at once."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for process in [self._process.pid, *map(int, children)]:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._process.wait()
        # What was killed leaves them; the server that comes next takes them for signs of life of another.
        (self.directory / "data" / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """End it."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            asked = [str(self.programs / "pg_isready"), "-q", "-d", self.connection]
            if subprocess.run(asked, check=False).returncode == 0:
                return
            time.sleep(0.02)
        raise RuntimeError(f"PostgreSQL did not start: {(self.directory / 'log').read_text(errors='replace')[-2000:]}")


def find_programs() -> Path | None:
    """Return where the server's programs are; None: it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    program = shutil.which("postgres")
    return Path(program).parent if program else None


def _ordinary_user() -> str:
    if os.geteuid():
        return ""
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in _USERS if name in known)


@contextmanager
def run_postgresql(programs: Path) -> Iterator[PostgresqlServer]:
    """Run a server until the context ends, and remove what it left."""
    user = _ordinary_user()
    # Not below pytest's directories, which an ordinary user cannot enter; and the path of a socket is short.
    directory = Path(tempfile.mkdtemp(prefix="dsec-pg-", dir="/tmp"))
    server = PostgresqlServer(directory, programs, user)
    try:
        if user:
            shutil.chown(directory, user)
        made = [
            str(programs / "initdb"),
            "-D",
            str(directory / "data"),
            "-U",
            "dsec",
            "-A",
            "trust",
            "-N",
            "-E",
            "UTF8",
        ]
        subprocess.run(
            [*made, "--locale=C"],
            check=True,
            capture_output=True,
            cwd=directory,
            user=user or None,
            extra_groups=[] if user else None,
            group=pwd.getpwnam(user).pw_gid if user else None,
        )
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
