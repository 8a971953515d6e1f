"""Find what a run consists of, and read what each of its attempts used.

A run is whatever people point at: the directory of a rollout, the directory of a worker, the log of one episode, the id
of an episode, or the name of a job. Logs are read as they lie on the disk, in use or not. One that cannot be read is
not left out: its attempt is there with a word about what is not known, because a sum that leaves attempts out
in silence is a wrong sum.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from dsec.base.errors import DsecError, NotFoundError
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.identity import check_episode_id
from dsec.episode.ledger import attempt_use
from dsec.episode.log_content import LogContent
from dsec.episode.log_events import LogEvent, ModelChanged, StateSaved
from dsec.episode.segments import parse_segment_name
from dsec.episode.spec import AgentPolicy, EpisodeGrade, EpisodeSpec
from dsec.episode.spending import GradedUse
from dsec.episode.totals import EnvironmentKind
from dsec.episode.use import AttemptUse, EnvironmentUse, ToolUse, merge_uses
from dsec.stores.episode_log_reading import read_episode_log
from dsec.verification.attempt_result import AttemptResult
from dsec.verification.outcome import Outcome
from dsec.verification.stages import Stage
from dsec.worker.episodes.shelf import Shelf
from dsec.worker.grades import GRADES_NAME, read_grades
from dsec.worker.layout import MANIFEST_NAME
from dsec.worker.output import read_results

EPISODES_NAME = "episodes"
Progress = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    del done, total


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One attempt as it was found.

    Attributes:
        graded: what it used, and what became of it.
        endpoints: models that it may ask, with what its spec says of their prices.
    """

    graded: GradedUse
    endpoints: tuple[ModelEndpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """All attempts of a run.

    Attributes:
        name: what it is called.
        attempts: each once.
        problems: what could not be read, in words.
    """

    name: str
    attempts: tuple[Recorded, ...]
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class _Reader:
    memory_bytes: int | None
    deadline_s: float | None
    on_progress: Progress = _silent
    problems: list[str] = field(default_factory=list)

    # -- episodes ------------------------------------------------------------------------------------------------------

    def worker(self, directory: Path, *, job: str | None = None) -> Iterator[Recorded]:
        """Read all episodes below a worker's directory, or those of one job."""
        grades = read_grades(directory / GRADES_NAME)
        logs = sorted(_logs(directory / EPISODES_NAME))
        for place, log in enumerate(logs, start=1):
            spec = self.spec(log)
            if job is None or (spec is not None and spec.job == job):
                yield self._recorded(log, spec, grades.get(log.name))
            self.on_progress(place, len(logs))

    def episode(self, log: Path) -> Recorded:
        """Read one episode."""
        grades = read_grades(log.parent.parent / GRADES_NAME)
        return self._recorded(log, self.spec(log), grades.get(log.name))

    def spec(self, log: Path) -> EpisodeSpec | None:
        """Read the spec beside a log; None: there is none that can be read."""
        if not log.with_name(f"{log.name}.json").exists():
            return None
        try:
            return Shelf(log.parent.parent).spec(log.name).spec
        except DsecError as error:
            self.problems.append(f"{error.brief}: {error.detail}" if error.detail else error.brief)
            return None

    def _recorded(self, log: Path, spec: EpisodeSpec | None, grade: EpisodeGrade | None) -> Recorded:
        job = spec.job if spec is not None else ""
        deadline_s = self.deadline_s
        if deadline_s is None and spec is not None:
            deadline_s = spec.limits.deadline_s
        content: LogContent | None = None
        try:
            content = read_episode_log(log)
        except NotFoundError:
            use = _unread(log.name, spec, "it has not begun")
        except DsecError as error:
            self.problems.append(f"{log.name}: {error.brief}")
            use = _unread(log.name, spec, "its log cannot be read")
        else:
            lacks = [f"its log is not whole: {content.problem}"] if content.problem else []
            use = attempt_use(content.events, sequence=content.next_sequence - 1, job=job, missing=lacks)
        passed = grade.passed if grade is not None else None
        graded = GradedUse(use=use, passed=passed, deadline_s=deadline_s)
        return Recorded(
            graded=graded, endpoints=tuple(endpoints_of(spec, content.events if content is not None else ()))
        )

    # -- rollouts ------------------------------------------------------------------------------------------------------

    def rollout(self, out: Path) -> Iterator[Recorded]:
        """Read a rollout: its verdicts, with what its episodes used, or what its sandboxes did where it has none."""
        manifest, results = read_results(out)
        episodes: dict[tuple[str, int], list[Recorded]] = {}
        for place in (out / "worker", out):
            if (place / EPISODES_NAME).is_dir():
                for one in self.worker(place):
                    episodes.setdefault((one.graded.use.task, one.graded.use.attempt), []).append(one)
        for result in results:
            yield from self._with_verdict(result, episodes.pop(result.key, []), manifest.rollout_id)
        for unfinished in episodes.values():
            yield from unfinished

    def _with_verdict(self, result: AttemptResult, tries: list[Recorded], rollout_id: str) -> Iterator[Recorded]:
        passed = result.outcome is Outcome.PASSED if result.outcome.is_verdict else None
        if not tries:
            use = _sandbox_use(result, rollout_id, self.memory_bytes)
            yield Recorded(graded=GradedUse(use=use, passed=passed, deadline_s=self.deadline_s))
            return
        # A verdict is on the last try; the ones before it broke, and what they cost was for nothing.
        tries = sorted(tries, key=lambda one: one.graded.use.began_at_s)
        for one in tries[:-1]:
            yield replace(one, graded=msgspec.structs.replace(one.graded, passed=False))
        yield replace(tries[-1], graded=msgspec.structs.replace(tries[-1].graded, passed=passed))


def read_runs(
    runs: Sequence[str],
    *,
    worker: Path,
    memory_bytes: int | None = None,
    deadline_s: float | None = None,
    on_progress: Progress = _silent,
) -> RecordedRun:
    """Return what the attempts of runs used, each attempt once: of two copies of a log the one that says more counts.

    Args:
        runs: each a directory (of a rollout, a worker or one episode's log), an episode's id, or a job.
        worker: directory of the worker that ids and jobs are looked for in.
        memory_bytes: what each sandbox of a rollout held while it stood, where nobody measured that.
        deadline_s: of each attempt; None: as its spec says.
        on_progress: told after each log of a worker how many of how many were looked at.

    Raises:
        NotFoundError: there is no such run, or it has no attempt yet.
        StateCorruptedError: the results of a rollout do not verify.
    """
    reader = _Reader(memory_bytes=memory_bytes, deadline_s=deadline_s, on_progress=on_progress)
    found: dict[AttemptUse, Recorded] = {}
    for run in runs:
        for one in _found(reader, run, worker):
            # A copy of a log beside no grades must not take the grade of the other one away.
            if one.graded.use not in found or one.graded.passed is not None:
                found[one.graded.use] = one
    if not found:
        raise NotFoundError(f"{', '.join(runs)}: no attempt was begun yet", resolution="ask again later")
    attempts = tuple(found[use] for use in merge_uses(found))
    return RecordedRun(name=", ".join(runs), attempts=attempts, problems=tuple(reader.problems))


def _found(reader: _Reader, run: str, worker: Path) -> Iterable[Recorded]:
    path = Path(run)
    if path.is_dir():
        if (path / MANIFEST_NAME).exists():
            return list(reader.rollout(path))
        if (path / EPISODES_NAME).is_dir():
            return list(reader.worker(path))
        if any(parse_segment_name(entry.name) is not None for entry in path.iterdir()):
            return [reader.episode(path)]
        raise NotFoundError(
            f"{run} holds neither a rollout nor episodes",
            resolution="name the --out of `dsec rollout run`, a worker's directory, an episode or a job",
        )
    log = worker / EPISODES_NAME / run
    if _is_episode_id(run) and (log.is_dir() or log.with_name(f"{run}.json").exists()):
        return [reader.episode(log)]
    found = list(reader.worker(worker, job=run))
    if not found:
        raise _nothing(run, worker)
    return found


def _nothing(run: str, worker: Path) -> NotFoundError:
    reader = _Reader(memory_bytes=None, deadline_s=None)
    specs = [reader.spec(log) for log in _logs(worker / EPISODES_NAME)]
    jobs = sorted({spec.job for spec in specs if spec is not None and spec.job})
    near = difflib.get_close_matches(run, jobs, n=1)
    return NotFoundError(
        f"no episode and no job {run!r} in {worker}, and no directory of that name",
        detail=f"jobs there: {', '.join(jobs[:20])}" if jobs else "no episode there belongs to a job",
        resolution=f"did you mean {near[0]}?" if near else "name a job, an episode, or the --out of `dsec rollout run`",
    )


def _is_episode_id(name: str) -> bool:
    try:
        check_episode_id(name)
    except DsecError:
        return False
    return True


def _logs(episodes: Path) -> Iterator[Path]:
    """Return the places of logs: each episode has a directory, a spec, or both."""
    if not episodes.is_dir():
        return
    names = {entry.name.removesuffix(".json") for entry in episodes.iterdir() if not entry.name.startswith(".")}
    yield from (episodes / name for name in names if _is_episode_id(name))


def _unread(episode_id: str, spec: EpisodeSpec | None, why: str) -> AttemptUse:
    return AttemptUse(
        task=spec.task if spec is not None else episode_id,
        attempt=spec.attempt if spec is not None else 1,
        episode_id=episode_id,
        job=spec.job if spec is not None else "",
        missing=(why,),
    )


def endpoints_of(spec: EpisodeSpec | None, events: Iterable[LogEvent]) -> Iterator[ModelEndpoint]:
    """Return the models that an episode may have asked, by its spec and by what took over."""
    if spec is not None and isinstance(spec.policy, AgentPolicy):
        yield from (spec.policy.model, *spec.policy.stronger)
    for event in events:
        if isinstance(event, ModelChanged) and event.endpoint is not None:
            yield event.endpoint
        elif isinstance(event, StateSaved) and event.totals.endpoint is not None:
            yield event.totals.endpoint


def _sandbox_use(result: AttemptResult, rollout_id: str, memory_bytes: int | None) -> AttemptUse:
    """Return what a rollout's record says: for how long sandboxes stood and commands ran, and not what they held."""
    seconds: Mapping[str, float] = result.totals_s
    stood_s = sum(seconds.get(stage.value, 0.0) for stage in Stage if stage is not Stage.WAIT)
    held = 0.0 if memory_bytes is None else stood_s * memory_bytes
    what = "processor time" if held else "memory and processor time"
    return AttemptUse(
        task=result.task,
        attempt=result.attempt,
        job=rollout_id,
        sequence=1,
        rounds=result.rounds,
        environment=(EnvironmentUse(kind=EnvironmentKind.RESIDENT, time_s=stood_s, memory_byte_s=held),),
        tools=ToolUse(time_s=seconds.get(Stage.TOOLS.value, 0.0) + seconds.get(Stage.VERIFY.value, 0.0)),
        wall_s=result.duration_s,
        thinking_s=seconds.get(Stage.DECIDE.value, 0.0),
        began_at_s=result.started_at_s,
        ended_at_s=result.started_at_s + result.duration_s,
        ended=True,
        error_code=result.verdict.error_code,
        missing=(f"{what} of its sandboxes was not measured",),
    )
