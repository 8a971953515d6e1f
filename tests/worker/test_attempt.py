"""Attempts as traces: what is asked of the service, in which order, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from dsec.base.clock import SystemClock
from dsec.base.errors import (
    DsecError,
    ImageNotFoundError,
    NodeUnavailableError,
    PathNotFoundError,
    SandboxExitedError,
    UnknownOutcomeError,
)
from dsec.episode.content import Content
from dsec.episode.frames import scan_frames
from dsec.episode.round import Decision, Done, History
from dsec.episode.tools import CommandOutput, FileContent, FileWritten, ReadFile, Run, ToolFailed, WriteFile
from dsec.episode.trajectory import TryBegan, TryEnded, decode_events, last_try
from dsec.model.files import FileKind
from dsec.model.process import CommandRequest, CommandResult
from dsec.model.sandbox import SandboxState
from dsec.testing.faulty_service import Box, FaultyService, Node, ran, reward
from dsec.verification.attempt_result import AttemptResult
from dsec.verification.outcome import Outcome
from dsec.worker.attempt import Attempt, AttemptContext
from dsec.worker.framed_log import FramedLog
from dsec.worker.policies.port import Policy, PolicyContext, PolicySource
from dsec.worker.policies.registry import load_policy
from dsec.worker.settings import RolloutSettings, VerifyIn
from dsec.worker.tasks.harbor import parse_task
from dsec.worker.tasks.images import TaskImages

pytestmark = pytest.mark.anyio


class Lab:
    """Runs single attempts against the stand-in."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder = folder
        self.log = log
        self.delays: list[float] = []
        self.service = FaultyService(self.on_run)
        self.tests: Callable[[Box], CommandResult] = self._pass
        self.policy = load_policy("oracle")
        self.settings = RolloutSettings()
        self.commands: list[CommandRequest] = []

    async def on_run(self, box: Box, request: CommandRequest) -> CommandResult:
        self.commands.append(request)
        if request.argv == ("/tests/test.sh",):
            return self.tests(box)
        box.processes += 1
        return ran(stdout=b"hello")

    def _pass(self, box: Box) -> CommandResult:
        reward(box, b"1\n")
        return ran(stdout=b"fine")

    async def sleep(self, delay_s: float) -> None:
        self.delays.append(delay_s)

    async def attempt(self) -> AttemptResult:
        task = parse_task(self.folder)
        context = AttemptContext(
            service=self.service,  # type: ignore[arg-type]
            policy=self.policy,
            settings=self.settings,
            rollout_id="rol-1",
            images=TaskImages(self.service, None),
            clock=SystemClock(),
            sleep=self.sleep,
        )
        with FramedLog(self.log) as log:
            result, _ = await Attempt(context, task, 1, lane=0, log=log).run()
        assert not self.service.boxes, "a sandbox was left behind"
        return result

    def play(self, *steps: Decision | Done) -> None:
        class Fixed:
            async def next_round(self, history: History) -> Decision | Done:
                return steps[len(history.rounds)]

        self.policy = PolicySource(name="fixed", fingerprint="fixed", make=lambda context: Fixed())

    def events(self) -> tuple[object, ...]:
        return decode_events(scan_frames(self.log.read_bytes(), name="log").documents, name="log")


@pytest.fixture
def lab(make_task: Callable[..., Path], tmp_path: Path) -> Lab:
    return Lab(make_task(), tmp_path / "trajectory.jsonl")


async def test_the_oracle_passes_in_few_round_trips(lab: Lab) -> None:
    result = await lab.attempt()
    assert result.outcome is Outcome.PASSED
    assert lab.service.calls == [
        "create", "upload", "run",  # The policy's one round.
        "end_processes", "list_files", "upload", "run", "end_processes", "list_files", "read_file", "remove",
    ]  # fmt: skip
    assert result.tests is not None
    assert result.tests.stdout == "fine"
    assert result.last_output == "hello"


async def test_tests_come_in_only_after_the_guest_is_dead(lab: Lab) -> None:
    seen = []

    async def on_run(box: Box, request: CommandRequest) -> CommandResult:
        tests_there = any(name.startswith("/tests") for name in box.files)
        seen.append((request.argv[0], tests_there, box.processes))
        box.processes += 1
        reward(box, b"1")
        return ran()

    lab.service.on_run = on_run
    await lab.attempt()
    assert seen == [("/solution/solve.sh", False, 0), ("/tests/test.sh", True, 0)]


async def test_what_the_guest_prepared_is_removed_before_the_tests(lab: Lab) -> None:
    def prepare(box: Box) -> None:
        reward(box, b"1")
        box.files["/logs"] = Node(kind=FileKind.SYMLINK)
        box.files["/tests"] = Node(kind=FileKind.SYMLINK)

    lab.service.on_create = prepare
    lab.tests = lambda box: ran(1)
    result = await lab.attempt()
    assert result.outcome is Outcome.FAILED
    assert "wrote no reward" in result.verdict.reason


async def test_a_logs_directory_that_others_may_write_is_replaced(lab: Lab) -> None:
    lab.service.on_create = lambda box: box.files.update({"/logs": Node(kind=FileKind.DIRECTORY, mode=0o777)})
    modes = []

    def tests(box: Box) -> CommandResult:
        modes.append(box.files["/logs"].mode)
        return ran()

    lab.tests = tests
    await lab.attempt()
    assert modes == [0o755]


async def test_tests_run_as_root_with_the_images_path(lab: Lab) -> None:
    await lab.attempt()
    request = lab.commands[-1]
    assert request.user == "0"
    assert request.env == {"PATH": "/opt/bin:/bin", "HOME": "/root", "BASH_ENV": "", "ENV": ""}
    assert request.timeout_s == 20.0


@pytest.mark.parametrize("kind", [FileKind.SYMLINK, FileKind.OTHER, FileKind.DIRECTORY])
async def test_a_reward_that_is_no_file_fails(lab: Lab, kind: FileKind) -> None:
    def tests(box: Box) -> CommandResult:
        reward(box, b"1", kind=kind)
        return ran()

    lab.tests = tests
    result = await lab.attempt()
    assert result.outcome is Outcome.FAILED
    assert "no regular file" in result.verdict.reason


async def test_an_endless_reward_is_read_to_its_bound(lab: Lab) -> None:
    def tests(box: Box) -> CommandResult:
        reward(box, b"1" * 10_000_000)
        return ran()

    lab.tests = tests
    assert "longer than" in (await lab.attempt()).verdict.reason


async def test_tests_out_of_time(lab: Lab) -> None:
    lab.tests = lambda box: ran(137, timed_out=True)
    assert (await lab.attempt()).outcome is Outcome.TIMED_OUT


async def test_the_platforms_fault_is_tried_again_in_a_fresh_sandbox(lab: Lab) -> None:
    lab.service.faults["run"] = [NodeUnavailableError("the node is gone"), NodeUnavailableError("again")]
    result = await lab.attempt()
    assert (result.outcome, result.tries, lab.delays) == (Outcome.PASSED, 3, [1.0, 3.0])
    assert lab.service.created == 3
    assert [event.number for event in lab.events() if isinstance(event, TryBegan)] == [1, 2, 3]
    assert "again" in result.broken_tries[1]


async def test_a_platform_that_stays_broken_is_an_infrastructure_error(lab: Lab) -> None:
    lab.service.faults["create"] = [NodeUnavailableError("no") for _ in range(4)]
    result = await lab.attempt()
    assert (result.outcome, result.tries, lab.delays) == (Outcome.INFRASTRUCTURE_ERROR, 4, [1.0, 3.0, 9.0])
    assert result.verdict.error_code == "node_unavailable"


async def test_a_missing_image_is_not_tried_again(lab: Lab) -> None:
    lab.service.faults["create"] = [ImageNotFoundError("no image")]
    result = await lab.attempt()
    assert (result.outcome, result.tries) == (Outcome.INFRASTRUCTURE_ERROR, 1)


async def test_an_unknown_outcome_is_unknown_and_never_repeated(lab: Lab) -> None:
    lab.service.faults["run"] = [UnknownOutcomeError("the node died")]
    result = await lab.attempt()
    assert (result.outcome, result.tries, lab.service.created) == (Outcome.UNKNOWN, 1, 1)


async def test_a_guest_that_ends_its_sandbox_fails(lab: Lab) -> None:
    async def on_run(box: Box, request: CommandRequest) -> CommandResult:
        lab.service.fail_state(box.info.sandbox_id, SandboxState.FAILED, "init was killed for memory")
        raise SandboxExitedError("gone")

    lab.service.on_run = on_run
    result = await lab.attempt()
    assert result.outcome is Outcome.FAILED
    assert "killed for memory" in result.verdict.reason


async def test_a_sandbox_that_somebody_stopped_is_no_failure(lab: Lab) -> None:
    async def on_run(box: Box, request: CommandRequest) -> CommandResult:
        lab.service.fail_state(box.info.sandbox_id, SandboxState.STOPPED)
        raise SandboxExitedError("gone")

    lab.service.on_run = on_run
    result = await lab.attempt()
    assert (result.outcome, result.tries) == (Outcome.INFRASTRUCTURE_ERROR, 4)


async def test_a_workdir_that_the_guest_removed_fails(lab: Lab) -> None:
    lab.policy = load_policy("nop")
    lab.service.faults["run"] = [PathNotFoundError("/home/user does not exist")]
    assert (await lab.attempt()).outcome is Outcome.FAILED


async def test_errors_of_tools_are_results_and_all_is_recorded(lab: Lab) -> None:
    lab.play(
        Decision(calls=(WriteFile(path="/a", content=Content.of(b"\xff")), ReadFile(path="/a", limit_bytes=0))),
        Decision(calls=(ReadFile(path="/missing"), Run(argv=("true",)))),
        Done(reason="enough"),
    )
    result = await lab.attempt()
    first, second = last_try(lab.events())  # type: ignore[arg-type]
    assert first.results[0] == FileWritten(size_bytes=1)
    assert first.results[1] == FileContent(truncated=True)
    assert isinstance(second.results[0], ToolFailed)
    assert isinstance(second.results[1], CommandOutput)
    assert (result.rounds, result.policy_end) == (2, "enough")
    assert isinstance(lab.events()[-1], TryEnded)


async def test_a_policy_that_raises_says_nothing_about_the_task(lab: Lab) -> None:
    class Broken:
        async def next_round(self, history: History) -> Decision | Done:
            raise ZeroDivisionError("division by zero")

    lab.policy = PolicySource(name="broken", fingerprint="broken", make=lambda context: Broken())
    result = await lab.attempt()
    assert (result.outcome, result.tries) == (Outcome.INFRASTRUCTURE_ERROR, 1)
    assert "ZeroDivisionError" in result.verdict.reason


async def test_a_defect_of_ours_ends_one_attempt_only(lab: Lab) -> None:
    def broken(context: PolicyContext) -> Policy:
        raise KeyError("defect")

    lab.policy = PolicySource(name="broken", fingerprint="broken", make=broken)
    result = await lab.attempt()
    assert (result.outcome, result.verdict.error_code) == (Outcome.INFRASTRUCTURE_ERROR, "internal")


@pytest.mark.parametrize(("content", "outcome"), [(b"0", Outcome.TIMED_OUT), (b"1", Outcome.PASSED)])
async def test_a_policy_out_of_time_is_verified_all_the_same(
    lab: Lab, make_task: Callable[..., Path], content: bytes, outcome: Outcome
) -> None:
    make_task(toml='[environment]\ndocker_image = "python"\n[agent]\ntimeout_sec = 0.01\n')

    class Slow:
        async def next_round(self, history: History) -> Decision | Done:
            await anyio.sleep_forever()
            raise AssertionError

    def tests(box: Box) -> CommandResult:
        reward(box, content)
        return ran()

    lab.policy, lab.tests = PolicySource(name="slow", fingerprint="slow", make=lambda context: Slow()), tests
    result = await lab.attempt()
    assert result.outcome is outcome
    assert "out of time" in result.verdict.reason


async def test_rounds_are_bounded(lab: Lab) -> None:
    class Endless:
        async def next_round(self, history: History) -> Decision | Done:
            return Decision(message="hm")

    lab.policy = PolicySource(name="endless", fingerprint="endless", make=lambda context: Endless())
    lab.settings = RolloutSettings(maximum_rounds=3)
    assert (await lab.attempt()).policy_end == "stopped after 3 rounds"


async def test_a_clean_sandbox_gets_the_declared_paths_and_nothing_else(lab: Lab) -> None:
    async def on_run(box: Box, request: CommandRequest) -> CommandResult:
        if request.argv[0] == "/solution/solve.sh":
            del box.files["/home/user/old"]
            box.files["/home/user/new"] = Node(content=b"mine")
            box.files["/usr/bin/python3"] = Node(content=b"evil")
        else:
            seen.append((box.info.sandbox_id, sorted(name for name in box.files if "/tests" not in name)))
            reward(box, b"1")
        return ran()

    seen: list[tuple[str, list[str]]] = []
    lab.service.on_run = on_run
    lab.service.on_create = lambda box: box.files.update({"/home/user/old": Node(content=b"old")})
    lab.settings = RolloutSettings(verify_in=VerifyIn.CLEAN)
    result = await lab.attempt()
    assert result.outcome is Outcome.PASSED
    assert seen == [("sbx-2", ["/home", "/home/user", "/home/user/new", "/logs", "/logs/verifier"])]


async def test_a_clean_sandbox_needs_declared_paths(lab: Lab) -> None:
    lab.settings = RolloutSettings(verify_in=VerifyIn.CLEAN)
    lab.service.image_workdir = "/"
    result = await lab.attempt()
    assert "declares no part" in result.verdict.reason
    assert (result.outcome, lab.service.created) == (Outcome.INFRASTRUCTURE_ERROR, 0)


async def test_names_that_are_not_utf8_can_be_recorded(lab: Lab) -> None:
    lab.play(Decision(calls=(Run(argv=("true",)),)), Done())
    lab.service.faults["run"] = [PathNotFoundError("/a\udcff is missing"), PathNotFoundError("/b\udcff")]
    result = await lab.attempt()
    (played,) = last_try(lab.events())  # type: ignore[arg-type]
    assert isinstance(played.results[0], ToolFailed)
    assert played.results[0].brief == "/a? is missing"
    assert "/b?" in result.verdict.reason


async def test_removal_that_fails_does_not_change_the_verdict(lab: Lab) -> None:
    lab.service.faults["remove"] = [DsecError("no")]
    task = parse_task(lab.folder)
    assert task.name == "one"
    with pytest.raises(AssertionError, match="left behind"):
        await lab.attempt()
    assert lab.service.boxes["sbx-1"].info.spec.metadata == {"rollout": "rol-1", "task": "one", "attempt": "1"}
