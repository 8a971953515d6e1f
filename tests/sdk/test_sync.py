"""The sync half, as a program uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec import (
    Client,
    CommandFailedError,
    CommandNotFoundError,
    DeadlineExceededError,
    PathNotFoundError,
    Resources,
    Sandbox,
    SandboxNotFoundError,
)
from dsec.base.errors import InvalidRequestError
from dsec.model.process import Stream
from dsec.model.sandbox import Lifetime, SandboxState

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def client(server_url: str) -> Iterator[Client]:
    with Client(server_url) as client:
        yield client


@pytest.fixture
def box(client: Client) -> Iterator[Sandbox]:
    with client.create("python", metadata={"task": "fix-42"}, resources=Resources(cpu_millis=1000)) as box:
        yield box


def test_the_generated_half_is_current() -> None:
    check = subprocess.run(
        [sys.executable, ROOT / "scripts/generate_sync.py", "--check"], capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stderr


def test_importing_dsec_imports_neither_server_nor_client() -> None:
    heavy = "{'anyio', 'msgspec', 'httpx2', 'starlette'}"
    program = f"import sys, dsec; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_exported_name_is_there_and_typed() -> None:
    import ast

    import dsec

    stub = ast.parse((ROOT / "src/dsec/__init__.pyi").read_text())
    names = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    for name in names:
        assert getattr(dsec, str(name)).__name__ == name
    assert set(dsec._PLACES) <= names
    assert {name for name in vars(dsec.base.errors) if name.endswith("Error")} <= names  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        dsec.nothing  # noqa: B018


def test_run_returns_a_typed_result(box: Sandbox) -> None:
    result = box.run("echo out; echo err >&2; exit 3", cwd="/tmp", timeout_s=60)
    assert (result.exit_code, result.stdout, result.stderr, result.ok) == (3, "out\n", "err\n", False)
    assert not result.truncated
    with pytest.raises(CommandFailedError, match="status 3") as caught:
        result.check()
    assert caught.value.result is result
    assert box.run(["echo", "a b"]).check().stdout_bytes == b"a b\n"


def test_input_is_fed(box: Sandbox) -> None:
    assert box.run(["cat"], stdin="text").stdout == "text"
    assert box.run(["cat"], stdin=b"\xff\x00").stdout_bytes == b"\xff\x00"


def test_listeners_hear_output_as_it_comes_and_it_is_kept(box: Sandbox) -> None:
    heard: list[bytes] = []
    result = box.run("echo one; echo two >&2", on_stdout=heard.append, on_stderr=heard.append)
    assert sorted(heard) == [b"one\n", b"two\n"]
    assert (result.stdout, result.stderr, result.exit_code) == ("one\n", "two\n", 0)


def test_kept_output_is_head_and_tail_around_an_exact_cut(box: Sandbox) -> None:
    box.files.write("/tmp/data", bytes(range(100)) * 100)
    for listener in (None, lambda data: None):
        result = box.run(["cat", "/tmp/data"], output_limit_bytes=100, on_stdout=listener)
        assert result.truncated
        assert result.stdout_dropped_bytes == 10_000 - 100
        assert result.stdout_bytes == bytes(range(50)) + bytes(range(50, 100))


def test_a_timeout_is_a_result(box: Sandbox) -> None:
    result = box.run("sleep 60", timeout_s=0.1)
    assert result.timed_out
    assert not result.ok


def test_a_missing_program_is_an_error_that_names_it(box: Sandbox) -> None:
    with pytest.raises(CommandNotFoundError):
        box.run(["no-such-program"])


def test_streams_are_iterated_and_have_a_status(box: Sandbox) -> None:
    with box.stream("echo one; echo two >&2; exit 4") as command:
        heard = {(output.stream, output.text) for output in command}
    assert heard == {(Stream.STDOUT, "one\n"), (Stream.STDERR, "two\n")}
    assert command.status is not None
    assert command.status.exit_code == 4


def test_a_stream_can_be_fed_and_waited_for(box: Sandbox) -> None:
    with box.stream(["cat"], keep_stdin_open=True) as command:
        command.write("one ")
        command.write(b"two")
        command.close_stdin()
        assert command.wait().stdout == "one two"


def test_a_terminal_takes_input_and_sizes(box: Sandbox) -> None:
    with box.terminal(["cat"], columns=100, rows=30) as terminal:
        terminal.resize(120, 40)
        terminal.write("hello\n")
        assert "hello" in next(terminal).text


def test_background_processes_are_handles(box: Sandbox) -> None:
    process = box.start("echo begun; sleep 600")
    with pytest.raises(DeadlineExceededError):
        process.wait(timeout_s=0.05)
    with process.attach() as attached:
        assert next(attached).text == "begun\n"
    assert [info.process_id for info in box.processes.list()] == [process.process_id]
    process.kill()
    assert process.wait(timeout_s=10).exit_code == 137
    assert [output.text for output in box.processes.get(process.process_id).read()] == ["begun\n"]


def test_sessions_keep_their_directory(box: Sandbox) -> None:
    with box.session() as session:
        session.run("cd /tmp").check()
        assert session.run("pwd").stdout == "/tmp\n"


def test_files_are_written_read_listed_moved_and_removed(box: Sandbox) -> None:
    box.files.write("/tmp/a/b.txt", "one\n")
    box.files.append("/tmp/a/b.txt", b"two\n")
    assert box.files.read_text("/tmp/a/b.txt") == "one\ntwo\n"
    box.files.write("/tmp/a/c", (bytes([number]) * 1000 for number in range(3)))
    assert b"".join(box.files.read_stream("/tmp/a/c")) == box.files.read("/tmp/a/c")
    assert [entry.name for entry in box.files.list("/tmp/a")] == ["b.txt", "c"]
    box.files.move("/tmp/a/c", "/tmp/a/d")
    assert box.files.stat("/tmp/a/d").size_bytes == 3000
    box.files.remove("/tmp/a", recursive=True)
    assert not box.files.exists("/tmp/a")
    with pytest.raises(PathNotFoundError):
        box.files.read("/tmp/a/d")
    assert box.files.make_directory("/tmp/new")


def test_a_local_file_goes_in_and_comes_out_with_its_permissions(box: Sandbox, tmp_path: Path) -> None:
    data = os.urandom(1 << 20)
    (tmp_path / "source").write_bytes(data)
    (tmp_path / "source").chmod(0o755)
    assert box.files.write_from("/tmp/up", tmp_path / "source").size_bytes == len(data)
    assert box.files.stat("/tmp/up").mode == 0o755
    assert box.files.read_into("/tmp/up", tmp_path / "back") == len(data)
    assert (tmp_path / "back").read_bytes() == data
    with pytest.raises(PathNotFoundError, match="missing"):
        box.files.write_from("/tmp/up", tmp_path / "missing")
    with pytest.raises(PathNotFoundError):
        box.files.read_into("/tmp/missing", tmp_path / "back")
    with pytest.raises(InvalidRequestError, match="not a file"):
        box.files.write_from("/tmp/up", tmp_path)
    assert (tmp_path / "back").read_bytes() == data


def test_changes_are_heard(box: Sandbox) -> None:
    box.files.make_directory("/tmp/w")
    with box.files.watch("/tmp/w") as changes:
        box.files.write("/tmp/w/seen", b"x")
        assert next(changes).path == "seen"


def test_directories_go_up_and_come_down(box: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "deep" / "er" / "file").write_bytes(bytes(range(256)) * 9000)
    (source / "run").write_text("#!/bin/sh\n")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("deep/er/file")
    box.files.upload(source, "/tmp/up")
    unpacked = box.files.download("/tmp/up", tmp_path / "target")
    copied = sorted(path.relative_to(tmp_path / "target") for path in (tmp_path / "target").rglob("*"))
    assert [path.name for path in copied][-4:] == ["er", "file", "link", "run"]
    file = next((tmp_path / "target").rglob("file"))
    assert file.read_bytes() == bytes(range(256)) * 9000
    assert next((tmp_path / "target").rglob("run")).stat().st_mode & 0o777 == 0o755
    assert unpacked.total_bytes == 256 * 9000 + 10


def test_life_goes_through_its_states(client: Client, box: Sandbox) -> None:
    box.files.write("/tmp/x", b"1")
    assert box.pause().state is SandboxState.PAUSED
    assert box.resume().state is SandboxState.READY
    assert box.rollback().generation == 1
    assert not box.files.exists("/tmp/x")
    assert box.extend(Lifetime(idle_timeout_s=7.0)).spec.lifetime.idle_timeout_s == 7.0
    assert box.stats().writable is not None
    assert [info.sandbox_id for info in client.list(metadata={"task": "fix-42"})] == [box.sandbox_id]
    assert client.list(metadata={"task": "other"}) == []


def test_the_context_removes_what_it_created_and_leaves_what_it_found(client: Client) -> None:
    with client.create() as box:
        with client.connect(box.sandbox_id) as same:
            assert same.run(["true"]).ok
        assert box.info().state is SandboxState.READY
    with pytest.raises(SandboxNotFoundError):
        client.connect(box.sandbox_id)


def test_a_forked_child_has_its_own_loop(server_url: str) -> None:
    with Client(server_url) as client, client.create() as box:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with Client(server_url) as mine:
                    status = 0 if mine.connect(box.sandbox_id).run("echo hi").stdout == "hi\n" else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert box.run(["true"]).ok
