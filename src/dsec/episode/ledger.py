"""The ledger of an attempt: a fold over the events of its log, to what was used.

Everything that was paid for is in the log once: a decision in its round, or with the announcement of one that was given
up; a call that came to nothing as an event of its own; the environment in stretches of time. So the fold adds and never
guesses. An announced decision that is committed later is one decision; what it did in a life that died is work done
twice. A log whose beginning was dropped begins with the totals of what was dropped.

What no log can hold is an answer that a death took before anything of it was saved: a service's own ledger has it, such
as the gateway's (docs/gateway.md). Source: the chapter, section 11.5.2.
"""

from __future__ import annotations

from collections.abc import Iterable

from dsec.episode.failure_kinds import is_useless
from dsec.episode.identity import EpisodeIdentity, ModelIdentity
from dsec.episode.log_events import (
    EnvironmentUsed,
    EpisodeBegan,
    EpisodeEnded,
    EpisodeHeld,
    EpisodeReleased,
    LifeBegan,
    LogEvent,
    ModelFailed,
    OperationsRunning,
    RoundAbandoned,
    RoundCommitted,
    RoundDecided,
    StateSaved,
)
from dsec.episode.operations import ModelDecision, RoundRecord, TokenUsage
from dsec.episode.tools import CommandOutput, ToolFailed
from dsec.episode.totals import EpisodeTotals
from dsec.episode.use import (
    SCAFFOLD,
    AttemptUse,
    EnvironmentUse,
    ModelUse,
    Purpose,
    ToolUse,
    sum_environment,
    sum_models,
    sum_tools,
)

UNTOLD = "it has calls that came to nothing and whose service did not say what they used"


class AttemptLedger:
    """Adds up the events of one log, in their order."""

    def __init__(self) -> None:
        self._identity: EpisodeIdentity | None = None
        self._models: list[ModelUse] = []
        self._environment: list[EnvironmentUse] = []
        self._tools: list[ToolUse] = []
        self._moments: list[float] = []
        self._open: RoundDecided | None = None
        self._running: dict[str, int] = {}
        self._rounds = self._lives = self._events = 0
        self._thinking_s = self._held_s = self._held_since_s = 0.0
        self._ended: EpisodeEnded | None = None
        self._missing: list[str] = []

    def add(self, event: LogEvent) -> None:
        """Take the next event."""
        self._events += 1
        match event:
            case EpisodeBegan():
                self._identity = event.identity
            case LifeBegan():
                self._lives += 1
                self._seen(event.at_s)
            case RoundDecided():
                self._open = event
            case OperationsRunning():
                self._running.update(
                    (name, max(self._running.get(name, 0), event.attempt)) for name in event.operations
                )
            case RoundAbandoned():
                self._abandon()
            case RoundCommitted():
                self._commit(event.record)
            case ModelFailed():
                self._fail(event)
            case EnvironmentUsed():
                self._keep(event)
            case EpisodeHeld():
                self._held_since_s = self._held_since_s or event.at_s
                self._seen(event.at_s)
            case EpisodeReleased():
                self._release(event.at_s)
            case StateSaved():
                self._restart(event)
            case EpisodeEnded():
                self._ended = event
                self._seen(event.at_s)
            case _:
                pass

    def use(self, *, sequence: int = 0, job: str = "", missing: Iterable[str] = ()) -> AttemptUse:
        """Return what all events so far add up to.

        Args:
            sequence: of the last event; 0: as many as were added.
            job: that the episode belongs to.
            missing: what the reader of the log could not read.
        """
        identity = self._identity
        models, tools = list(self._models), list(self._tools)
        if self._open is not None:
            models += _decided(self._open.decision, Purpose.DECIDED)
            tools.append(_given_up(self._running, repeated=0))
        missing = [*self._missing, *missing]
        if not self._environment:
            missing.append("its environment was not measured")
        if any(_is_untold(line) for line in models):
            missing.append(UNTOLD)
        if identity is not None and identity.policy == SCAFFOLD:
            missing.append("what its scaffold asked of models is in no log; a gateway's ledger may have it")
        moments = self._moments
        held_s = self._held_s + (max(0.0, max(moments) - self._held_since_s) if self._held_since_s else 0.0)
        return AttemptUse(
            task=identity.task if identity else "",
            attempt=identity.attempt if identity else 1,
            episode_id=identity.episode_id if identity else "",
            job=job,
            policy=identity.policy if identity else "",
            sequence=sequence or self._events,
            rounds=self._rounds,
            lives=self._lives,
            models=sum_models(models),
            environment=sum_environment(self._environment),
            tools=sum_tools(tools),
            wall_s=max(moments) - min(moments) if moments else 0.0,
            thinking_s=self._thinking_s,
            held_s=held_s,
            began_at_s=min(moments, default=0.0),
            ended_at_s=max(moments, default=0.0),
            ended=self._ended is not None,
            error_code=self._ended.error_code if self._ended else "",
            missing=tuple(missing),
        )

    # -- events --------------------------------------------------------------------------------------------------------

    def _seen(self, at_s: float) -> None:
        if at_s > 0:
            self._moments.append(at_s)

    def _abandon(self) -> None:
        if self._open is not None:
            self._models += _decided(self._open.decision, Purpose.ABANDONED)
            self._tools.append(_given_up(self._running, repeated=len(self._running)))
        self._open = None
        self._running.clear()

    def _commit(self, record: RoundRecord) -> None:
        purpose = Purpose.USELESS if is_useless(record) else Purpose.DECIDED
        self._models += _decided(record.decision, purpose, record.decide_s)
        self._tools.append(_round_tools(record))
        self._rounds = record.number
        self._thinking_s += max(0.0, record.decide_s)
        self._seen(record.committed_at_s - record.decide_s - record.tools_s if record.committed_at_s else 0.0)
        self._seen(record.committed_at_s)
        self._open = None
        self._running.clear()

    def _fail(self, event: ModelFailed) -> None:
        self._models.append(model_use(event.model, event.usage, Purpose.FAILED, event.duration_s))
        self._thinking_s += max(0.0, event.duration_s)

    def _keep(self, event: EnvironmentUsed) -> None:
        seconds = max(0.0, event.ended_s - event.began_s)
        self._environment.append(
            EnvironmentUse(
                kind=event.kind,
                time_s=seconds,
                memory_byte_s=max(0.0, event.memory_byte_s),
                cpu_s=max(0.0, event.cpu_s),
            )
        )
        self._seen(event.began_s)
        self._seen(event.ended_s)

    def _release(self, at_s: float) -> None:
        if self._held_since_s:
            self._held_s += max(0.0, at_s - self._held_since_s)
        self._held_since_s = 0.0
        self._seen(at_s)

    def _restart(self, state: StateSaved) -> None:
        """Take over what a whole state stands for, where what it covers was dropped."""
        if self._events > 1:
            return
        self._identity, self._rounds = state.identity, state.number
        totals = state.totals
        self._lives = totals.lives
        self._held_s, self._held_since_s = totals.held_s, totals.held_since_s
        self._models += _from_totals(totals)
        self._environment += [
            EnvironmentUse(kind=one.kind, time_s=one.seconds, memory_byte_s=one.memory_byte_s, cpu_s=one.cpu_s)
            for one in totals.environment
        ]
        self._tools.append(ToolUse(calls=totals.operations, executions=totals.operations))
        self._seen(totals.began_at_s)
        self._missing.append(f"rounds 1 to {state.number} are known by their totals only: no times, nothing repeated")


def attempt_use(
    events: Iterable[LogEvent], *, sequence: int = 0, job: str = "", missing: Iterable[str] = ()
) -> AttemptUse:
    """Return what an attempt used; the arguments are those of `AttemptLedger.use`."""
    ledger = AttemptLedger()
    for event in events:
        ledger.add(event)
    return ledger.use(sequence=sequence, job=job, missing=missing)


def model_name(model: ModelIdentity) -> str:
    """Return how a model is called in sums: as it was asked for, or as it named itself."""
    return model.name or model.version


def _decided(decision: ModelDecision, purpose: Purpose, time_s: float = 0.0) -> list[ModelUse]:
    """Return the line of a decision; a script's used nothing."""
    if not decision.usage.calls and not model_name(decision.model):
        return []
    return [model_use(decision.model, decision.usage, purpose, time_s)]


def model_use(
    model: ModelIdentity, usage: TokenUsage, purpose: Purpose = Purpose.DECIDED, time_s: float = 0.0
) -> ModelUse:
    """Return one line; what a service claims is bounded by what can be, or a negative count would earn money."""
    inputs, outputs = max(0, usage.input_tokens), max(0, usage.output_tokens)
    return ModelUse(
        model=model_name(model),
        purpose=purpose,
        calls=max(0, usage.calls),
        input_tokens=inputs,
        cached_tokens=min(inputs, max(0, usage.cached_tokens)),
        output_tokens=outputs,
        thinking_tokens=min(outputs, max(0, usage.thinking_tokens)),
        time_s=max(0.0, time_s),
        told_usd=None if usage.cost_usd is None else max(0.0, usage.cost_usd),
    )


def _is_untold(line: ModelUse) -> bool:
    used = line.input_tokens or line.output_tokens or line.told_usd is not None
    return line.purpose is Purpose.FAILED and line.calls > 0 and not used


def _from_totals(totals: EpisodeTotals) -> list[ModelUse]:
    return [model_use(one.model, one.usage) for one in totals.models]


def _given_up(running: dict[str, int], *, repeated: int) -> ToolUse:
    """Return what a decision did that is in no round: each announced operation ran, and the next one runs it anew."""
    executions = sum(running.values())
    beyond = executions - len(running)
    return ToolUse(calls=len(running), executions=executions, repeated=beyond + repeated)


def _round_tools(record: RoundRecord) -> ToolUse:
    attempts = record.attempts or (1,) * len(record.results)
    again = [max(0, attempt - 1) for attempt in attempts]
    durations = [result.duration_s if isinstance(result, CommandOutput) else 0.0 for result in record.results]
    return ToolUse(
        calls=len(record.results),
        executions=sum(attempts),
        repeated=sum(again),
        failed=sum(isinstance(result, ToolFailed) for result in record.results),
        time_s=max(0.0, record.tools_s),
        repeated_s=sum(count * duration for count, duration in zip(again, durations, strict=True)),
    )
