"""Task folders: what is understood, what is refused, and where the complaint points."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dsec.base.errors import CapabilityMissingError, NotFoundError, TaskFormatError
from dsec.base.units import GIB, MIB
from dsec.model.capability import Capability, CapabilityReport
from dsec.worker.tasks.discovery import discover
from dsec.worker.tasks.harbor import parse_task
from dsec.worker.tasks.support import check_support, task_network
from dsec.worker.tasks.variables import resolve_variables

MakeTask = Callable[..., Path]

FULL = """\
schema_version = "1.4"
artifacts = ["/app/result", { source = "/app/log", destination = "log" }, "relative"]

[task]
name = "org/task"

[metadata]
author_name = "A. Author"
tags = ["x"]
anything = { goes = true }

[agent]
timeout_sec = 90
user = 1000

[verifier]
timeout_sec = 12.5
env = { KEY = "${KEY:-none}" }

[solution.env]
A = "b"

[environment]
docker_image = "my-env:v2"
build_timeout_sec = 30
cpus = 1.5
memory_mb = 512
storage_mb = 100
network_mode = "no-network"
workdir = "/app"

[environment.env]
MODE = "test"
"""


def test_everything_the_format_says_is_read(make_task: MakeTask) -> None:
    task = parse_task(make_task(toml=FULL))
    environment = task.environment
    assert (task.agent_timeout_s, task.agent_user, task.verifier_timeout_s) == (90.0, "1000", 12.5)
    assert (environment.docker_image, environment.workdir, environment.build_timeout_s) == ("my-env:v2", "/app", 30.0)
    assert environment.resources.cpu_millis == 1500
    assert environment.resources.memory_bytes == 512 * MIB
    assert environment.resources.disk_bytes == 100 * MIB
    assert environment.env == {"MODE": "test"}
    assert (task.verifier_env, task.solution_env) == ({"KEY": "${KEY:-none}"}, {"A": "b"})
    assert task.artifacts == ("/app/result", "/app/log")
    assert task.metadata["anything"] == {"goes": True}
    assert (task.unsupported, task.unknown_keys) == ({}, ())


def test_older_spellings_are_read(make_task: MakeTask) -> None:
    toml = '[environment]\ndocker_image = "x"\nmemory = "2G"\nstorage = "10G"\nallow_internet = false\n'
    environment = parse_task(make_task(toml=toml)).environment
    assert environment.resources.memory_bytes == 2 * GIB
    assert environment.resources.disk_bytes == 10 * GIB
    assert environment.public_network is False


def test_unknown_keys_are_kept_and_are_no_error(make_task: MakeTask) -> None:
    toml = 'colour = "red"\n[environment]\ndocker_image = "x"\nfancy = 1\n[agent]\nmood = "good"\n'
    assert parse_task(make_task(toml=toml)).unknown_keys == ("colour", "agent.mood", "environment.fancy")


HEAD = '[environment]\ndocker_image = "x"\n'


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[environment\n", r"task\.toml:1: not TOML"),
        ('a = 1\nb = "\n', r"task\.toml:2: not TOML"),
        ("a = 1\na = 2\n", r"task\.toml:2: not TOML"),
        (HEAD + "cpus = 0\n", r"task\.toml:3: environment\.cpus is 0; it must be above 0"),
        (HEAD + "cpus = nan\n", r"task\.toml:3: environment\.cpus must be a number"),
        (HEAD + "cpus = true\n", r"task\.toml:3: environment\.cpus must be a number"),
        (HEAD + "memory_mb = 1\n", r"task\.toml:3: environment\.memory_mb is below 8 MiB"),
        (HEAD + 'memory = "lots"\n', r"task\.toml:3: environment\.memory must be a size"),
        (HEAD + 'memory = "2G"\nmemory_mb = 5\n', r"task\.toml:3: environment\.memory contradicts"),
        (HEAD + 'network_mode = "open"\n', r"task\.toml:3: environment\.network_mode is 'open'"),
        (HEAD + 'allowed_hosts = ["a"]\n', r"task\.toml:3: environment\.allowed_hosts needs"),
        (HEAD + 'workdir = "app"\n', r"task\.toml:3: environment\.workdir is 'app'"),
        (HEAD + "\n# later\n[agent]\n# note\ntimeout_sec = -1\n", r"task\.toml:7: agent\.timeout_sec is -1"),
        (HEAD + 'agent.timeout_sec = "x"\n[agent]\ntimeout_sec = "soon"\n', r"task\.toml:5: agent\.timeout_sec must"),
        (HEAD + "[verifier]\ntimeout_sec = 1e9\n", r"task\.toml:4: verifier\.timeout_sec is 1e\+09"),
        (HEAD + "env = { A = 1 }\n", r"task\.toml:3: environment\.env must be a table of texts"),
        ('[environment]\ndocker_image = ""\n', r"task\.toml:2: environment\.docker_image must be a text"),
        ("agent = 3\n" + HEAD, r"task\.toml:1: agent must be a table"),
        ("[metadata]\n", r"task\.toml: no image"),
        ('artifacts = ["/a/../b"]\n' + HEAD, r"task\.toml:1: artifacts holds"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(make_task: MakeTask, toml: str, words: str) -> None:
    with pytest.raises(TaskFormatError, match=words):
        parse_task(make_task(toml=toml))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("task.toml", "task.toml is missing"),
        ("instruction.md", "instruction.md is missing"),
        ("tests/test.sh", "test.sh is missing"),
        ("solution/solve.sh", "solve.sh is missing"),
    ],
)
def test_a_missing_file_is_named(make_task: MakeTask, name: str, words: str) -> None:
    folder = make_task()
    (folder / name).unlink()
    with pytest.raises(TaskFormatError, match=words):
        parse_task(folder)


def test_a_text_that_is_not_utf8_is_named_with_its_line(make_task: MakeTask) -> None:
    folder = make_task()
    (folder / "instruction.md").write_bytes(b"one\ntwo \xff\n")
    with pytest.raises(TaskFormatError, match=r"instruction\.md:2: not UTF-8"):
        parse_task(folder)


def test_a_test_script_that_is_a_fifo_is_refused_and_not_opened(make_task: MakeTask) -> None:
    folder = make_task()
    (folder / "tests" / "test.sh").unlink()
    os.mkfifo(folder / "tests" / "test.sh")
    with pytest.raises(TaskFormatError, match="not a regular file"):
        parse_task(folder)


@pytest.mark.parametrize(
    ("toml", "key"),
    [
        (HEAD + "gpus = 1\n", "environment.gpus"),
        (HEAD + 'os = "windows"\n', "environment.os"),
        (HEAD + '[[environment.mcp_servers]]\nname = "x"\n', "environment.mcp_servers"),
        (HEAD + '[[steps]]\nname = "a"\n', "steps"),
        (HEAD + '[verifier]\nenvironment_mode = "separate"\n', "verifier.environment"),
        (HEAD + '[agent]\nnetwork_mode = "public"\n', "agent.network_mode"),
    ],
)
def test_what_dsec_cannot_give_is_an_error_that_names_the_key(make_task: MakeTask, toml: str, key: str) -> None:
    task = parse_task(make_task(toml=toml))
    with pytest.raises(CapabilityMissingError, match=key.replace(".", r"\.")):
        check_support(task, ())


def test_no_gpus_is_no_need(make_task: MakeTask) -> None:
    check_support(parse_task(make_task(toml=HEAD + "gpus = 0\n")), ())


def test_a_network_needs_the_capability_and_its_name_is_said(make_task: MakeTask) -> None:
    task = parse_task(make_task(toml=HEAD + 'network_mode = "public"\n'))
    report = CapabilityReport(capability=Capability.NETWORK_ALLOW, available=True)
    with pytest.raises(CapabilityMissingError, match="network_allow"):
        check_support(task, ())
    check_support(task, [report])
    check_support(task, (), without_network=True)
    assert task_network(task).rules == ("0.0.0.0/0", "::/0")
    assert task_network(task, without_network=True).rules == ()


def test_a_task_that_does_not_say_gets_no_network(make_task: MakeTask) -> None:
    task = parse_task(make_task())
    check_support(task, ())
    assert task_network(task).rules == ()


def test_tasks_are_found_at_any_of_a_few_depths_and_broken_ones_kept_apart(make_task: MakeTask, tmp_path: Path) -> None:
    for name in ("b", "a", "set/c", ".hidden"):
        make_task(name)
    make_task("d", toml="[")
    found = discover(tmp_path / "tasks")
    assert [task.name for task in found.tasks] == ["a", "b", "set/c"]
    assert list(found.broken) == ["d"]
    assert [task.name for task in discover(tmp_path / "tasks", pattern="s*").tasks] == ["set/c"]
    assert [task.name for task in discover(tmp_path / "tasks", limit=1).tasks] == ["a"]
    assert [task.name for task in discover(tmp_path / "tasks" / "a").tasks] == ["a"]


def test_no_task_is_an_error(tmp_path: Path, make_task: MakeTask) -> None:
    with pytest.raises(NotFoundError, match="no task"):
        discover(tmp_path)
    with pytest.raises(NotFoundError, match="not a directory"):
        discover(tmp_path / "missing")
    make_task()
    with pytest.raises(NotFoundError, match="matches 'x'"):
        discover(tmp_path, pattern="x")


def test_variables_stand_for_the_runners_own() -> None:
    variables = {"A": "${X}", "B": "x-${Y:-z}", "C": "$X", "D": "${X}${X}"}
    assert resolve_variables(variables, {"X": "1"}, task="t") == {"A": "1", "B": "x-z", "C": "$X", "D": "11"}
    with pytest.raises(TaskFormatError, match="variable X"):
        resolve_variables({"A": "${X}"}, {}, task="t")
