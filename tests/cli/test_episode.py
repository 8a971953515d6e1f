"""`dsec episode`, against episodes that do what the test says."""

from __future__ import annotations

import json
import re
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from dsec.api.episode_server import serve_episodes
from dsec.base.errors import (
    AlreadyExistsError,
    InvalidRequestError,
    InvalidStateError,
    NodeUnavailableError,
    NotFoundError,
)
from dsec.cli import episode_parameters
from dsec.cli.episode_asked import not_heard
from dsec.cli.episode_specs import read_specs
from dsec.cli.main import cli
from dsec.episode.agent_calls import EditFile, OutsideCall, Search, Submit, UnusableCall
from dsec.episode.content import Content
from dsec.episode.identity import EpisodeIdentity, ModelIdentity
from dsec.episode.log_events import (
    EnvironmentUsed,
    EpisodeEnded,
    EpisodeHeld,
    EpisodeReleased,
    LifeBegan,
    LogEvent,
    ModelChanged,
    ModelFailed,
    OperationFinished,
    OperationsRunning,
    RoundAbandoned,
    RoundCommitted,
    RoundDecided,
    StateSaved,
)
from dsec.episode.operations import ModelDecision, Operation, RoundRecord, TokenUsage
from dsec.episode.spec import AgentPolicy, EpisodeState, ScriptPolicy, UnknownOperation
from dsec.episode.tools import CommandOutput, FileContent, FileWritten, OutsideAnswer, Run, ToolFailed, Uploaded
from dsec.episode.totals import EnvironmentKind
from dsec.testing.memory_episodes import MemoryEpisodes

ASKED = ("--task", "fix", "--instruction", "make it green", "--model", "http://m:8000/v1")


class Episode:
    """The command line against a worker of this test."""

    def __init__(self, url: str, memory: MemoryEpisodes, portal: BlockingPortal) -> None:
        self._url = url
        self._memory = memory
        self._portal = portal

    def __call__(self, *argv: str, input: str | None = None) -> Result:
        return CliRunner().invoke(cli, ["episode", "--worker", self._url, *argv], input=input)

    def ok(self, *argv: str, input: str | None = None) -> str:
        result = self(*argv, input=input)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    def json(self, *argv: str) -> Any:
        return json.loads(self.ok(*argv, "--json"))

    def tell(self, *events: LogEvent, episode_id: str = "ep-one") -> None:
        self.do(lambda: [self._memory.tell(episode_id, event) for event in events])

    def put(self, **fields: object) -> None:
        self.do(lambda: self._memory.put("ep-one", **fields))

    def do(self, act: Callable[[], object]) -> None:
        self._portal.call(act)


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture
def memory() -> MemoryEpisodes:
    return MemoryEpisodes()


@pytest.fixture
def episode(memory: MemoryEpisodes, portal: BlockingPortal) -> Iterator[Episode]:
    with tempfile.TemporaryDirectory(prefix="dsec") as directory:
        path = Path(directory) / "worker.sock"
        with portal.wrap_async_context_manager(serve_episodes(memory, socket_path=path)):
            yield Episode(f"unix:{path}", memory, portal)


@pytest.fixture
def one(episode: Episode) -> Episode:
    """An episode `ep-one` that runs."""
    episode.ok("start", *ASKED, "--id", "ep-one", "--job", "rl")
    return episode


def test_an_episode_is_started_from_a_few_options(episode: Episode) -> None:
    result = episode("start", *ASKED, "--id", "ep-one", "--job", "rl", "-l", "epoch=3", "--rounds", "5", "--image", "w")
    assert result.exit_code == 0, result.stderr
    assert "ep-one  running, 0 rounds" in result.stdout
    assert "dsec episode watch ep-one" in result.stderr
    spec = episode.json("show", "ep-one")["spec"]
    assert spec["policy"]["model"] == {"url": "http://m:8000/v1"}
    assert (spec["instruction"], spec["job"], spec["metadata"]) == ("make it green", "rl", {"epoch": "3"})
    assert (spec["limits"]["rounds"], spec["environment"]["sandbox"]["image"]) == (5, "w")
    assert episode("start", *ASKED, "--id", "ep-one").exit_code == AlreadyExistsError.exit_code


def test_a_check_stronger_models_and_prices_are_options(episode: Episode) -> None:
    models = ("--key-variable", "OWN", "--stronger", "http://l/v1#large", "--stronger-key-variable", "LARGE")
    prices = ("--price-input", "1", "--price-output", "2", "--cost-limit", "0.5")
    episode.ok("start", *ASKED, "--id", "ep-one", "--check", "make test", *models, *prices)
    spec = episode.json("show", "ep-one")["spec"]
    first = {"url": "http://m:8000/v1", "key_variable": "OWN", "input_usd": 1.0, "output_usd": 2.0}
    assert spec["policy"]["model"] == first
    assert spec["policy"]["stronger"] == [{"url": "http://l/v1", "name": "large", "key_variable": "LARGE"}]
    assert (spec["check"]["command"], spec["limits"]["cost_usd"]) == ("make test", 0.5)


def test_a_model_that_nobody_serves_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as served:
        url = f"http://127.0.0.1:{served.getsockname()[1]}/v1"
        assert not_heard(url) == ""
    assert "refused" in not_heard(url)
    assert not_heard("u") == ""


def test_a_stopped_episode_says_what_mends_it(one: Episode) -> None:
    one.put(state=EpisodeState.STOPPED, error_code="image_not_found", reason="there is no image 'nope'")
    assert "dsec image build" in one.ok("show", "ep-one")


def test_an_instruction_is_read_from_a_file(episode: Episode, tmp_path: Path) -> None:
    (tmp_path / "task.md").write_text("Mend it.")
    episode.ok("start", "--task", "t", "--instruction", f"@{tmp_path / 'task.md'}", "--model", "u", "--id", "ep-one")
    assert episode.json("show", "ep-one")["spec"]["instruction"] == "Mend it."
    absent = episode("start", "--task", "t", "--instruction", "@/nowhere", "--model", "u")
    assert absent.exit_code == InvalidRequestError.exit_code


def test_a_spec_is_read_as_json_toml_and_yaml(episode: Episode, tmp_path: Path) -> None:
    spec = {"task": "t", "policy": {"policy": "script", "rounds": []}}
    (tmp_path / "a.json").write_text(json.dumps(spec))
    (tmp_path / "a.toml").write_text('task = "t"\n[policy]\npolicy = "script"\nrounds = []\n')
    for name in ("a.json", "a.toml"):
        assert episode.ok("start", str(tmp_path / name), "-q").startswith("ep-")
    assert episode.ok("start", "-", "-q", input=json.dumps([spec, spec])).count("ep-") == 2
    pytest.importorskip("yaml")
    (tmp_path / "a.yaml").write_text("task: t\npolicy:\n  policy: script\n  rounds: []\n")
    assert episode.ok("start", str(tmp_path / "a.yaml"), "-q").startswith("ep-")
    assert {info["policy"] for info in episode.json("ls")} == {"script"}


def test_the_example_of_the_documentation_is_a_spec(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "episodes.md").read_text()
    (tmp_path / "a.toml").write_text(page.split("```toml\n")[1].split("```")[0])
    (spec,) = read_specs(tmp_path / "a.toml")
    assert isinstance(spec.policy, AgentPolicy)
    assert spec.environment.snapshot_rounds == 5
    (tmp_path / "a.json").write_text(page.split("```json\n")[1].split("```")[0])
    (script,) = read_specs(tmp_path / "a.json")
    assert isinstance(script.policy, ScriptPolicy)
    assert script.policy.rounds[1].calls == (OutsideCall(name="refund", arguments={"order": "17", "cents": 5}),)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not JSON"),
        ("[]", "holds no episode"),
        ('{"task": "t"}', "policy"),
        ('{"task": "t", "policy": {"policy": "script", "rounds": []}, "jobs": 1}', "jobs"),
        ('[{"task": "t", "policy": {"policy": "script", "rounds": []}}, {"task": 1}]', r"episodes\[1\]"),
        ('{"task": "t", "policy": {"policy": "script", "rounds": []}, "durability": {"rounds": 0}}', "0 rounds"),
    ],
)
def test_a_broken_spec_is_refused_with_where_it_is_broken(
    episode: Episode, tmp_path: Path, text: str, complaint: str
) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    result = episode("start", str(file))
    assert result.exit_code == InvalidRequestError.exit_code
    assert re.search(complaint, result.stderr)
    assert str(file) in result.stderr


def test_a_batch_of_a_job_is_started_once(episode: Episode, tmp_path: Path) -> None:
    spec = {"task": "t", "policy": {"policy": "script", "rounds": []}}
    (tmp_path / "a.json").write_text(json.dumps({"episodes": [spec, {**spec, "task": "u"}]}))
    argv = ("start", str(tmp_path / "a.json"), "--job", "rl", "--attempts", "10", "-q")
    first = episode(*argv)
    assert first.exit_code == 0
    assert first.stderr.splitlines()[-1] == "20 of 20 started"
    assert len(first.stderr.splitlines()) == 10
    assert episode.ok(*argv) == first.stdout
    infos = episode.json("ls", "--job", "rl")
    assert sorted((info["task"], info.get("attempt", 1)) for info in infos) == [
        (task, attempt) for task in "tu" for attempt in range(1, 11)
    ]


def test_what_contradicts_itself_is_a_question_of_usage(episode: Episode, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    for argv in (
        ("start",),
        ("start", "--task", "t"),
        ("start", str(tmp_path / "a.json"), "--model", "u"),
        ("start", str(tmp_path / "a.json"), "--rounds", "3"),
        ("start", *ASKED, "--cost-limit", "1"),
        ("start", *ASKED, "--stronger-key-variable", "K"),
        ("start", *ASKED, "--attempts", "2", "--id", "ep-one"),
        ("pause",),
        ("pause", "ep-one", "--job", "rl"),
        ("resume", "ep-one", "--model-name", "m"),
        ("resume", "--job", "rl", "--model", "u"),
    ):
        assert episode(*argv).exit_code == 2, argv


def test_episodes_are_listed_and_filtered(one: Episode) -> None:
    one.ok("start", *ASKED, "--id", "ep-two")
    one.put(
        state=EpisodeState.STOPPED,
        error_code="model_unavailable",
        reason="it is away",
        usage=TokenUsage(input_tokens=1000, cost_usd=1),
    )
    table = one.ok("ls")
    assert table.splitlines()[0].split()[:3] == ["EPISODE", "STATE", "TASK"]
    assert [line.split()[0] for line in table.splitlines()[1:]] == ["ep-two", "ep-one"]
    assert "model_unavailable: it is away" in table
    assert "$1.0000" in table
    assert one.ok("ls", "--state", "stopped", "-q") == "ep-one\n"
    assert one.ok("ls", "--job", "rl", "-q") == "ep-one\n"
    assert one.ok("ls", "--task", "none", "-q") == ""
    assert one.ok("ls", "-n", "1", "-q") == "ep-two\n"


def test_what_is_told_to_an_episode_reaches_it(one: Episode) -> None:
    assert "running" in one.ok("steer", "ep-one", "use a mutex", "--by", "ana")
    one.ok("steer", "ep-one", "-", input="from a pipe")
    assert "ana says: use a mutex" in one.ok("watch", "ep-one", "--no-follow")
    assert "from a pipe" in one.ok("watch", "ep-one", "--no-follow")
    assert "paused" in one.ok("pause", "ep-one", "--keep-memory")
    assert "running" in one.ok("resume", "ep-one", "--model", "http://big/v1", "--key-variable", "BIG_KEY")
    assert [info["state"] for info in one.json("pause", "--job", "rl")] == ["paused"]
    assert "paused; to go on: dsec episode resume ep-one" in one.ok("show", "ep-one")
    assert [info["state"] for info in one.json("resume", "--job", "rl")] == ["running"]
    assert one("grade", "ep-one", "passed").exit_code == InvalidStateError.exit_code
    assert "ended" in one.ok("cancel", "ep-one", "ep-one", "--reason", "enough")
    assert "ended, 0 rounds  passed; " in one.ok("grade", "ep-one", "passed", "--reward", "0.5", "--by", "tests")
    assert "passed; enough" in " ".join(one.ok("ls").split())
    assert "passed, reward 0.5, by tests" in one.ok("show", "ep-one")
    assert one("steer", "ep-none", "x").exit_code == NotFoundError.exit_code


def test_what_nobody_knows_is_shown_with_how_to_decide_it(one: Episode) -> None:
    operation = "ep-one.r3.d1.c0"
    call = Run(script="curl -X POST https://pay")
    unknown = UnknownOperation(operation_id=operation, call=call, reason="the worker died meanwhile", number=3)
    one.put(state=EpisodeState.WAITING, unknown=(unknown,))
    shown = one.ok("show", "ep-one")
    assert "shell  curl -X POST https://pay" in shown
    assert f"dsec episode decide ep-one {operation} did-not-happen" in shown
    assert "1 to decide" in one.ok("ls")
    assert one("resume", "ep-one").exit_code == InvalidStateError.exit_code
    refused = one("decide", "ep-one", operation, "happened")
    assert refused.exit_code == InvalidRequestError.exit_code
    assert "--output" in refused.stderr
    assert one("decide", "ep-one", operation, "did-not-happen", "--output", "x").exit_code != 0
    assert one("decide", "ep-one", operation, "happened", "--result", "{}").exit_code != 0
    assert "running" in one.ok("decide", "ep-one", operation, "happened", "--output", "paid", "--exit-code", "3")
    event = json.loads(one.ok("watch", "ep-one", "--from", "2", "--no-follow", "--json"))["event"]
    assert (event["verdict"], event["result"]["exit_code"], event["result"]["stdout"]) == (
        "happened",
        3,
        {"text": "paid"},
    )
    one.put(unknown=(unknown,))
    result = '{"result": "wrote", "size_bytes": 5}'
    one.ok("decide", "ep-one", operation, "happened", "--result", result)
    one.put(unknown=(unknown,))
    one.ok("decide", "ep-one", operation, "did-not-happen", "--by", "ana")
    assert f"ana says: {operation} did not happen" in one.ok("watch", "ep-one", "--no-follow")


def round_of(number: int, *pairs: tuple[Any, Any], message: str = "") -> RoundCommitted:
    operations = tuple(
        Operation(operation_id=f"ep-one.r{number}.d1.c{index}", call=call) for index, (call, _) in enumerate(pairs)
    )
    usage = TokenUsage(input_tokens=1200, cached_tokens=1000, output_tokens=34, cost_usd=0.0123)
    decision = ModelDecision(
        operations=operations, message=message, usage=usage, model=ModelIdentity(name="m", version="m-1")
    )
    return RoundCommitted(RoundRecord(number=number, decision=decision, results=tuple(result for _, result in pairs)))


def test_rounds_are_shown_with_what_was_said_and_done(one: Episode) -> None:
    printed = "".join(f"line {number}\n" for number in range(20)) + "\x1b[31mred\n"
    one.tell(
        LifeBegan(worker="w", model=ModelIdentity(name="m")),
        round_of(
            1,
            (Run(script="make\ntest"), CommandOutput(exit_code=2, stdout=Content(text=printed), duration_s=3.0)),
            (EditFile(path="a.py", old="x", new="y"), FileWritten(size_bytes=2048)),
            (Search(pattern="x+"), ToolFailed(code="path_not_found", brief="no such place")),
            (
                OutsideCall(name="refund", arguments={"cents": 5}),
                OutsideAnswer(content=Content(text='{"id": 3}'), status="201"),
            ),
            (
                UnusableCall(problem="no such tool", name="fly"),
                ToolFailed(code="invalid_request", brief="no such tool"),
            ),
            message="I shall look.\x07\nThen mend.",
        ),
        RoundDecided(number=2, decision=ModelDecision()),
        OperationsRunning(number=2, operations=("ep-one.r2.d1.c0",)),
        OperationFinished(number=2, operation="ep-one.r2.d1.c0", result=Uploaded()),
        RoundAbandoned(number=2, reason="the model was changed"),
        ModelFailed(number=2, error_code="model_unavailable", duration_s=30.0, brief="http://m answered 500: \x1bfull"),
        ModelChanged(model=ModelIdentity(name="big"), reason="three failures"),
        EpisodeHeld(at_s=1.0),
        EpisodeReleased(at_s=2.0),
        EnvironmentUsed(sandbox_id="sbx-a", kind=EnvironmentKind.PAUSED, began_s=1, ended_s=4),
        StateSaved(number=1, identity=EpisodeIdentity(episode_id="ep-one", task="fix")),
        round_of(2, (Submit(summary="done"), FileContent(content=Content(text="x"), truncated=True))),
        EpisodeEnded(reason="submitted"),
    )
    shown = one.ok("watch", "ep-one")
    assert "round 1  0 ms deciding, 0 ms acting, m (m-1), 1,200 tokens in (1,000 cached), 34 out, $0.0123" in shown
    assert "shell  make...  -> exit 2, 3.0 s" in shown
    assert "    | ... 15 lines before\n    | line 15\n" in shown
    assert "\\x1b[31mred" in shown
    assert "\x1b" not in shown
    assert "says: I shall look.\\x07" in shown
    assert "edit   a.py  -> 2.0 KiB written" in shown
    assert 'outside refund {"cents":5}  -> answered 201\n    | {"id": 3}\n' in shown
    assert "no call: fly  -> failed: no such tool" in shown
    assert "round 2: given up: the model was changed" in shown
    assert "the model failed after 30.0 s: model_unavailable: http://m answered 500: \\x1bfull" in shown
    assert "another model decides, big: three failures" in shown
    assert "sbx-a" not in shown
    assert shown.rstrip().endswith("ended: submitted")
    assert "line 3\n" in one.ok("watch", "ep-one", "--whole")
    assert "sandbox sbx-a paused for 3.0 s" in one.ok("watch", "ep-one", "-v")
    lines = [json.loads(line) for line in one.ok("watch", "ep-one", "--json").splitlines()]
    assert [line["sequence"] for line in lines] == list(range(1, 16))
    assert one.ok("show", "ep-one", "--rounds", "1").count("round ") == 1
    assert len(one.json("show", "ep-one")["rounds"]) == 2
    assert one.json("show", "ep-one", "--rounds", "0")["rounds"] == []


def test_the_newest_rounds_of_a_long_episode_are_found_from_its_end(one: Episode) -> None:
    one.tell(*(round_of(number) for number in range(1, 200)))
    one.tell(*(EpisodeHeld(at_s=1.0) for _ in range(100)))
    asked = one._memory.asked
    for count in (1, 3, 150):
        asked.clear()
        shown = one.json("show", "ep-one", "--rounds", str(count))["rounds"]
        assert [record["number"] for record in shown] == list(range(200 - count, 200))
        assert asked[0] == max(1, 301 - 16 * count)
    assert asked == [1]


def test_a_watch_goes_on_from_an_offset_and_hears_what_comes(one: Episode, portal: BlockingPortal) -> None:
    one.ok("steer", "ep-one", "first")
    portal.start_task_soon(_end_soon, one._memory)
    lines = [json.loads(line) for line in one.ok("watch", "ep-one", "--from", "2", "--json").splitlines()]
    assert [line["sequence"] for line in lines] == [2, 3]


async def _end_soon(memory: MemoryEpisodes) -> None:
    memory.tell("ep-one", EpisodeEnded())


def test_jobs_are_listed_and_collected_once(episode: Episode, tmp_path: Path) -> None:
    known = tmp_path / "known"
    for number in (1, 2):
        episode.ok("start", *ASKED, "--id", f"ep-{number}", "--job", "rl", "-l", f"n={number}")
    episode.ok("start", *ASKED, "--id", "ep-3")
    episode.tell(EpisodeEnded(reason="done"), episode_id="ep-1")
    episode.ok("grade", "ep-1", "passed")
    episode.do(lambda: episode._memory.put("ep-2", state=EpisodeState.STOPPED, usage=TokenUsage(input_tokens=7)))
    table = episode.ok("jobs").splitlines()
    assert table[1].split() == ["(none)", "1", "1", "running", "-", "0", "-", "-"]
    assert "1 ended, 1 stopped" in table[2]
    assert "1 of 1" in table[2]
    assert [job["tokens"] for job in episode.json("jobs")] == [0, 7]
    collected = episode("collect", "rl", "--halted", "--known", str(known))
    assert sorted(line.split()[0] for line in collected.stdout.splitlines()) == ["ep-1", "ep-2"]
    assert collected.stderr == "2 of 2: 1 stopped, 1 ended\n"
    assert sorted(known.read_text().split()) == ["ep-1", "ep-2"]
    known.write_text("ep-1\nep-")  # The file was cut off: what is not whole was not taken in.
    again = episode.ok("collect", "rl", "--halted", "--known", str(known), "--json")
    assert json.loads(again)["episode_id"] == "ep-2"
    assert known.read_text() == "ep-1\nep-\nep-2\n"
    assert episode.ok("collect", "rl", "--halted", "--known", str(known)) == ""
    assert episode.ok("collect", "nothing") == ""


def test_an_episode_is_started_and_watched_in_one_command(episode: Episode, portal: BlockingPortal) -> None:
    assert episode("start", *ASKED, "--attempts", "2", "--watch").exit_code == 2
    episode.ok("start", *ASKED, "--id", "ep-one")
    portal.start_task_soon(_end_soon, episode._memory)
    lines = episode.ok("start", *ASKED, "--id", "ep-one", "--watch").splitlines()
    assert [line.split(":")[0] for line in lines[1:]] == ["began", "ended"]


def test_ids_are_completed_from_a_worker_that_runs(one: Episode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_parameters, "_COMPLETION_S", 30.0)

    def completed(worker: str) -> list[str]:
        arguments = ["episode", "--worker", worker, "show"]
        return [item.value for item in ShellComplete(cli, {}, "dsec", "_C").get_completions(arguments, "ep-")]

    assert completed(one._url) == ["ep-one"]
    assert completed("unix:/nowhere/worker.sock") == []


def test_a_worker_that_was_named_and_is_not_there_is_told(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["episode", "--worker", f"unix:{tmp_path}/w.sock", "ls"])
    assert result.exit_code == NodeUnavailableError.exit_code
    assert "dsec worker up" in result.stderr
