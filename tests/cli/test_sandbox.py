"""`dsec sandbox`: life, listing, inspection."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from click.testing import CliRunner

from dsec.cli.context import Options
from dsec.cli.main import cli
from dsec.model.sandbox import SandboxInfo, SandboxSpec, SandboxState
from dsec.service.port import SandboxService
from dsec.testing.command_line import Dsec


def test_create_prints_the_id_and_nothing_else(dsec: Dsec) -> None:
    result = dsec("sandbox", "create")
    assert result.exit_code == 0
    assert result.stdout.startswith("sbx-")
    assert result.stdout.count("\n") == 1
    assert result.stderr == ""


def test_create_passes_every_option_on(dsec: Dsec) -> None:
    info = dsec.json(
        "sandbox", "create", "python", "--id", "sbx-12345", "--cpu", "0.5", "--memory", "512M", "--disk", "1G",
        "--pids", "64", "-e", "A=b=c", "-l", "task=fix-42", "-u", "root", "-w", "/", "--hostname", "h",
        "--idle-timeout", "10m", "--max-lifetime", "none", "--on-expiry", "pause", "--seed", "7",
        "--qos", "best_effort", "--json",
    )  # fmt: skip
    spec = info["spec"]
    assert info["sandbox_id"] == "sbx-12345"
    assert spec["resources"]["cpu_millis"] == 500
    assert spec["resources"]["memory_bytes"] == 512 << 20
    assert spec["resources"]["disk_bytes"] == 1 << 30
    assert spec["resources"]["pids"] == 64
    assert (spec["env"], spec["metadata"]) == ({"A": "b=c"}, {"task": "fix-42"})
    assert (spec["user"], spec["workdir"], spec["hostname"], spec["seed"]) == ("root", "/", "h", 7)
    assert spec["lifetime"] == {"idle_timeout_s": 600.0, "maximum_s": None, "on_expiry": "pause"}
    assert spec["qos"] == "best_effort"


def test_create_with_one_id_twice_is_one_sandbox_and_with_another_spec_a_conflict(dsec: Dsec) -> None:
    assert dsec.create("--id", "sbx-1") == dsec.create("--id", "sbx-1") == "sbx-1"
    result = dsec("sandbox", "create", "--id", "sbx-1", "--pids", "9")
    assert result.exit_code == 75
    assert "error [already_exists]" in result.stderr


def test_an_unknown_image_exits_with_66_and_says_what_to_do(dsec: Dsec) -> None:
    result = dsec("sandbox", "create", "pyhton")
    assert result.exit_code == 66
    assert result.stdout == ""
    assert "error [image_not_found]" in result.stderr
    assert "to resolve: " in result.stderr


@pytest.mark.parametrize(
    "argv",
    [("--memory", "much"), ("--idle-timeout", "soon"), ("-e", "NOEQUALS"), ("--id", "nonsense")],
)
def test_malformed_values_exit_with_64(argv: tuple[str, ...], dsec: Dsec) -> None:
    result = dsec("sandbox", "create", *argv)
    assert result.exit_code == 64
    assert "error [invalid_request]" in result.stderr
    assert dsec.json("sandbox", "ls", "--json") == []


def test_ls_filters_by_label_and_state(dsec: Dsec) -> None:
    a, b = dsec.create("-l", "job=1", "-l", "task=x"), dsec.create("-l", "job=1")
    dsec.ok("sandbox", "pause", b, "--keep-memory")
    assert {row["sandbox_id"] for row in dsec.json("sandbox", "ls", "--json")} == {a, b}
    assert [row["sandbox_id"] for row in dsec.json("sandbox", "ls", "--label", "task=x", "--json")] == [a]
    assert [row["sandbox_id"] for row in dsec.json("sandbox", "ls", "--state", "paused", "--json")] == [b]
    assert dsec.ok("sandbox", "ls", "--label", "task=x", "-q") == f"{a}\n"


def test_ls_prints_whole_ids_into_a_pipe(dsec: Dsec) -> None:
    sandbox_id = dsec.create("--id", "sbx-" + "a" * 59, "-l", "k=" + "v" * 300)
    lines = dsec.ok("sandbox", "ls").splitlines()
    assert lines[0].split() == ["ID", "STATE", "IMAGE", "AGE", "EXPIRES", "LABELS"]
    assert len(lines) == 2
    assert lines[1].split()[0] == sandbox_id
    assert "v" * 300 in lines[1]


def test_ls_shows_stopped_ones_only_when_asked(dsec: Dsec) -> None:
    sandbox_id = dsec.create()
    dsec.ok("sandbox", "stop", sandbox_id)
    assert dsec.json("sandbox", "ls", "--json") == []
    assert [row["state"] for row in dsec.json("sandbox", "ls", "--all", "--json")] == ["stopped"]


def test_inspect_with_the_exact_command_line(dsec: Dsec) -> None:
    dsec.create("--id", "sbx-12345")
    text = dsec.ok("sandbox", "inspect", "--id", "sbx-12345", "--show-cow-usage")
    fields = dict(line.split(None, 1) for line in text.splitlines())
    assert fields["id"] == "sbx-12345"
    assert fields["state"] == "ready"
    assert "0 B of 2.0 GiB (memory, 0 bytes)" in text


def test_cow_usage_grows_with_what_is_written(dsec: Dsec) -> None:
    dsec.create("--id", "sbx-12345")
    dsec.ok("sandbox", "cp", "-", "sbx-12345:/tmp/file", input=b"x" * 10_000)
    usage = dsec.json("sandbox", "inspect", "--id", "sbx-12345", "--show-cow-usage", "--json")["cow_usage"]
    assert usage["used_bytes"] >= 10_000
    assert usage["quota_bytes"] == 2 << 30
    assert usage["driver"] == "memory"


def test_inspect_in_place_and_by_option_are_the_same(dsec: Dsec) -> None:
    sandbox_id = dsec.create()
    by_place = dsec.json("sandbox", "inspect", sandbox_id, "--json")
    by_option = dsec.json("sandbox", "inspect", "--id", sandbox_id, "--json")
    by_place.pop("expires_in_s"), by_option.pop("expires_in_s")
    assert by_place == by_option
    assert "cow_usage" not in by_place


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ((), 2, "Missing the sandbox's ID"),
        (("sbx-1", "--id", "sbx-2"), 2, "Two sandboxes were named"),
        (("nonsense",), 64, "is not a sandbox id"),
        (("sbx-absent",), 66, "sandbox_not_found"),
    ],
)
def test_a_wrong_id_is_told(argv: tuple[str, ...], code: int, words: str, dsec: Dsec) -> None:
    result = dsec("sandbox", "inspect", *argv)
    assert result.exit_code == code
    assert words in result.stderr
    assert result.stdout == ""


def test_rollback_to_a_checkpoint(dsec: Dsec) -> None:
    dsec.create("--id", "sbx-12345")
    dsec.ok("sandbox", "cp", "-", "sbx-12345:/tmp/kept", input=b"x")
    name = dsec.checkpoint("sbx-12345")
    dsec.ok("sandbox", "cp", "-", "sbx-12345:/tmp/lost", input=b"x")
    dsec.ok("sandbox", "rollback", "--id", "sbx-12345", "--snapshot", name)
    assert dsec("sandbox", "files", "sbx-12345", "/tmp/kept").exit_code == 0
    assert dsec("sandbox", "files", "sbx-12345", "/tmp/lost").exit_code == 66


def test_rollback_to_the_clean_state(dsec: Dsec) -> None:
    sandbox_id = dsec.create()
    dsec.ok("sandbox", "cp", "-", f"{sandbox_id}:/tmp/lost", input=b"x")
    assert dsec.json("sandbox", "rollback", sandbox_id, "--json")["generation"] == 1
    assert dsec("sandbox", "files", sandbox_id, "/tmp/lost").exit_code == 66


def test_rollback_with_the_exact_command_line_reaches_the_service() -> None:
    asked: list[tuple[str, str | None]] = []

    class Recorder:
        async def rollback(self, sandbox_id: str, *, snapshot: str | None = None) -> SandboxInfo:
            asked.append((sandbox_id, snapshot))
            return SandboxInfo(sandbox_id=sandbox_id, state=SandboxState.READY, spec=SandboxSpec(), created_at_s=0.0)

    @asynccontextmanager
    async def opener(_: Options) -> AsyncIterator[SandboxService]:
        yield cast(SandboxService, Recorder())

    argv = "sandbox rollback --id sbx-12345 --snapshot snap-001".split()
    assert CliRunner().invoke(cli, argv, obj=Options(opener=opener)).exit_code == 0
    assert asked == [("sbx-12345", "snap-001")]


def test_rollback_to_an_unknown_snapshot_exits_with_66(dsec: Dsec) -> None:
    sandbox_id = dsec.create("--id", "sbx-12345")
    result = dsec("sandbox", "rollback", "--id", sandbox_id, "--snapshot", "snap-001")
    assert result.exit_code == 66
    assert "error [snapshot_not_found]" in result.stderr


def test_pause_and_resume_say_the_state_on_stderr(dsec: Dsec) -> None:
    sandbox_id = dsec.create()
    result = dsec("sandbox", "pause", "--keep-memory", sandbox_id)
    assert (result.stdout, result.stderr) == ("", f"{sandbox_id} is paused\n")
    assert dsec.json("sandbox", "resume", sandbox_id, "--json")["state"] == "ready"


def test_pause_without_swap_is_refused_and_names_the_way_out(dsec: Dsec) -> None:
    sandbox_id = dsec.create("-l", "job=rl")
    result = dsec("sandbox", "pause", sandbox_id)
    assert result.exit_code == 69
    assert "error [capability_missing]: pausing needs swap_file" in result.stderr
    assert "--keep-memory" in result.stderr
    failed = dsec("job", "pause", "rl")
    assert failed.exit_code == 70
    assert f"{sandbox_id}: capability_missing" in failed.stderr
    assert "1 changed" in dsec.ok("job", "pause", "rl", "--keep-memory")


def test_extend_changes_what_is_given_and_keeps_the_rest(dsec: Dsec) -> None:
    sandbox_id = dsec.create("--idle-timeout", "10m", "--on-expiry", "pause")
    info = dsec.json("sandbox", "extend", sandbox_id, "--max-lifetime", "2h", "--json")
    assert info["spec"]["lifetime"] == {"idle_timeout_s": 600.0, "maximum_s": 7200.0, "on_expiry": "pause"}


def test_stop_and_rm_take_many_and_go_on_after_a_failure(dsec: Dsec) -> None:
    a, b = dsec.create(), dsec.create()
    result = dsec("sandbox", "stop", a, "sbx-absent", b)
    assert result.exit_code == 66
    assert result.stdout.split() == [a, b]
    assert "sbx-absent" in result.stderr
    assert dsec.ok("sandbox", "rm", "--id", a, "--id", b).split() == [a, b]
    assert dsec.json("sandbox", "ls", "--all", "--json") == []


def test_rm_by_label_and_all(dsec: Dsec) -> None:
    a, b, c = dsec.create("-l", "job=1"), dsec.create("-l", "job=2"), dsec.create()
    dsec.ok("sandbox", "stop", c)
    assert dsec.ok("sandbox", "rm", "--label", "job=1").split() == [a]
    assert sorted(dsec.ok("sandbox", "rm", "--all").split()) == sorted([b, c])


@pytest.mark.parametrize("command", ["stop", "rm"])
def test_a_selection_must_be_made_and_only_once(command: str, dsec: Dsec) -> None:
    assert dsec("sandbox", command).exit_code == 64
    assert dsec("sandbox", command, "sbx-1", "--all").exit_code == 64


def test_stats_of_one_and_of_all(dsec: Dsec) -> None:
    a, b = dsec.create(), dsec.create()
    one = dsec.json("sandbox", "stats", a, "--json")
    assert list(one) == [a]
    assert one[a]["writable"]["driver"] == "memory"
    assert set(dsec.json("sandbox", "stats", "--json")) == {a, b}
    table = dsec.ok("sandbox", "stats", b).splitlines()
    assert table[0].split()[:2] == ["ID", "CPU"]
    assert table[1].split()[0] == b


def test_errors_of_a_server_that_is_not_there_exit_with_69(dsec: Dsec) -> None:
    result = Dsec("http://127.0.0.1:1", dsec.portal, dsec.node, dsec.runtime)("sandbox", "ls")
    assert result.exit_code == 69
    assert "error [node_unavailable]" in result.stderr


def test_errors_can_be_json(dsec: Dsec) -> None:
    result = dsec("--error-format", "json", "sandbox", "inspect", "sbx-absent")
    assert json.loads(result.stderr)["error"]["code"] == "sandbox_not_found"


def test_a_limit_above_the_hosts_is_said(dsec: Dsec) -> None:
    result = dsec("sandbox", "create", "--memory", "900T", "--cpu", "9999")
    assert result.exit_code == 0
    assert result.stdout.startswith("sbx-")
    assert "the memory limit of 900" in result.stderr
    assert "the processor limit of 9999 cores is above the" in result.stderr
    assert dsec("sandbox", "create", "--memory", "64M").stderr == ""
