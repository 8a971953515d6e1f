"""Acting on files as somebody else, in one thread."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from dsec.linux.identity import FILE_CAPABILITIES, file_identity, starting_user

pytestmark = pytest.mark.root

USER, GROUP, EXTRA = 0x60_0001, 0x60_0002, 0x60_0003


def effective() -> str:
    """This thread's capabilities."""
    status = Path(f"/proc/self/task/{threading.get_native_id()}/status").read_text()
    return next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff"))


def credentials() -> list[str]:
    """Users and capabilities of this thread."""
    status = Path(f"/proc/self/task/{threading.get_native_id()}/status").read_text()
    return [line for line in status.splitlines() if line.startswith(("Uid", "Gid", "Groups", "Cap"))]


@pytest.fixture
def open_directory(tmp_path: Path) -> Path:
    """A directory that all may write to and reach."""
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o711)
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(0o777)
    return directory


@pytest.mark.parametrize("privileged", [False, True])
def test_new_files_belong_to_the_identity(open_directory: Path, privileged: bool) -> None:
    with file_identity(USER, GROUP, privileged=privileged):
        (open_directory / "f").touch()
    assert (open_directory / "f").stat()[4:6] == (USER, GROUP)
    (open_directory / "g").touch()
    assert (open_directory / "g").stat().st_uid == os.geteuid()


def test_permissions_count_for_users_and_not_for_root(open_directory: Path) -> None:
    secret = open_directory / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    with file_identity(USER, GROUP, privileged=False), pytest.raises(PermissionError):
        secret.read_text()
    with file_identity(USER, GROUP, privileged=True):
        assert secret.read_text() == "x"


def test_supplementary_groups_count_and_end_with_the_block(open_directory: Path) -> None:
    shared = open_directory / "shared"
    shared.write_text("x")
    os.chown(shared, 0, EXTRA)
    shared.chmod(0o640)
    with file_identity(USER, GROUP, privileged=False, groups=[EXTRA]):
        assert shared.read_text() == "x"
    with file_identity(USER, GROUP, privileged=False), pytest.raises(PermissionError):
        shared.read_text()


def test_capabilities_are_narrowed_and_come_back(open_directory: Path) -> None:
    before = effective()
    with file_identity(USER, GROUP, privileged=True, capabilities=FILE_CAPABILITIES):
        assert int(effective(), 16) & ~FILE_CAPABILITIES == 0
        os.chown(open_directory, 5, 5)
    with file_identity(USER, GROUP, privileged=False):
        assert int(effective(), 16) & FILE_CAPABILITIES == 0
    assert effective() == before


def test_identity_ends_with_an_error_inside(open_directory: Path) -> None:
    before = effective()
    with pytest.raises(ZeroDivisionError), file_identity(USER, GROUP, privileged=False, groups=[EXTRA]):
        raise ZeroDivisionError
    assert effective() == before
    (open_directory / "after").touch()
    assert (open_directory / "after").stat()[4:6] == (os.geteuid(), os.getegid())


def test_other_threads_keep_theirs(open_directory: Path) -> None:
    entered, done = threading.Event(), threading.Event()

    def act() -> None:
        with file_identity(USER, GROUP, privileged=False):
            entered.set()
            done.wait(30)
            (open_directory / "of-thread").touch()

    thread = threading.Thread(target=act)
    thread.start()
    try:
        assert entered.wait(30)
        (open_directory / "of-main").touch()
    finally:
        done.set()
        thread.join()
    assert (open_directory / "of-main").stat().st_uid == os.geteuid()
    assert (open_directory / "of-thread").stat().st_uid == USER


def test_programs_start_as_the_user_and_the_thread_is_as_it_was() -> None:
    before = credentials()
    with starting_user(USER):
        started = subprocess.run(["/bin/cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    assert credentials() == before
    fields = dict(line.split(":", 1) for line in started.splitlines())
    assert fields["Uid"].split() == ["0", str(USER), str(USER), str(USER)]
    assert int(fields["CapEff"], 16) == 1 << 21
