"""The record of one finished attempt: a line of ``results.jsonl`` (docs/formats/results.md)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dsec.base.errors import StateCorruptedError
from dsec.model.value import Value
from dsec.verification.outcome import Outcome, Verdict
from dsec.verification.stages import Segment

RESULT_VERSION = 1
EXCERPT_CHARACTERS = 2_000


class TestsRecord(Value, frozen=True, omit_defaults=True):
    """How the tests ended, with the end of what they printed."""

    __test__ = False  # The name is for the tests of a task; this is none of ours.

    exit_code: int
    duration_s: float = 0.0
    stdout: str = ""
    stderr: str = ""


class EpisodeRecord(Value, frozen=True, omit_defaults=True):
    """The episode of an attempt, in sums; its log says the rest.

    Attributes:
        episode_id: which, in the worker of the rollout.
        models: that decided, in the order in which they took over.
        lives: how often its loop was begun.
        calls: of models, those that came to nothing included.
        input_tokens, cached_tokens, output_tokens: that were used.
        cost_usd: of its models; None: no price is known.
    """

    episode_id: str
    models: tuple[str, ...] = ()
    lives: int = 1
    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None


class AttemptResult(Value, frozen=True, kw_only=True, omit_defaults=True):
    """One finished attempt.

    Attributes:
        task: name of the task.
        attempt: number of the attempt, from 1.
        verdict: outcome, reason and rewards.
        tries: sandboxes that were needed; more than 1 after infrastructure errors.
        rounds: rounds of the last try.
        policy_end: why the policy stopped.
        started_at_s: wall-clock seconds since the epoch.
        duration_s: seconds from start to end, clean-up included.
        guest_s: seconds in which commands ran in the sandbox: the policy's and the tests.
        lane: which of the concurrent lanes ran it, from 0.
        totals_s: seconds by stage.
        segments: the stages in order, for the picture.
        sandbox_id: the last try's sandbox.
        image: the image it was made from.
        last_output: the end of what the policy's last command printed.
        tests: how the tests ended; None: they did not run.
        broken_tries: why the tries before the last broke.
        episode: where its play was one.
    """

    version: int = RESULT_VERSION
    task: str
    attempt: int
    verdict: Verdict
    tries: int = 1
    rounds: int = 0
    policy_end: str = ""
    started_at_s: float
    duration_s: float
    guest_s: float = 0.0
    lane: int = 0
    totals_s: dict[str, float] = {}
    segments: tuple[Segment, ...] = ()
    sandbox_id: str = ""
    image: str = ""
    last_output: str = ""
    tests: TestsRecord | None = None
    broken_tries: tuple[str, ...] = ()
    episode: EpisodeRecord | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Task and attempt."""
        return self.task, self.attempt

    @property
    def score(self) -> float | None:
        """The reward; 0 for a verdict without one, None without a verdict."""
        if self.verdict.reward is not None or not self.outcome.is_verdict:
            return self.verdict.reward
        return 0.0

    @property
    def outcome(self) -> Outcome:
        """What became of it."""
        return self.verdict.outcome


_DECODER = msgspec.json.Decoder(AttemptResult)
encode_result = msgspec.json.Encoder().encode


def decode_results(documents: Iterable[bytes], *, name: str) -> dict[tuple[str, int], AttemptResult]:
    """Return the last result of each attempt, in the order in which attempts first finished.

    Raises:
        StateCorruptedError: a line is not a result of this version.
    """
    try:
        return {result.key: result for result in map(_DECODER.decode, documents)}
    except msgspec.DecodeError as error:
        raise StateCorruptedError(
            f"{name} does not hold results of version {RESULT_VERSION}",
            detail=str(error),
            resolution="read it with the version of dsec that wrote it",
        ) from error


def excerpt(text: str) -> str:
    """Return the end of a long text."""
    return text if len(text) <= EXCERPT_CHARACTERS else "…" + text[-EXCERPT_CHARACTERS:]
