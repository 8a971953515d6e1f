"""When and where a creation is tried again.

A creation fails for reasons of three kinds, and each wants something else:

- *Rejected*: the node's admission refused and did nothing. That is no failure; the engine takes another node at once.
- *Failed on the way* (network, full disk, broken layer, no answer in time): often gone at the second look, often the
  node's own. So the first failure is tried again at once where it was, the second on another node, and the third is
  reported. This is the ladder of the training report.
- *The caller's or the guest's fault*, or an outcome that cannot be known: trying again changes nothing or does harm.
  It is reported at once. `DsecError.retryable` decides, and an error whose fault is not the platform's is retried
  only if it says so itself.

What is reported is not lost: whoever asked may climb the ladder again, after 1, 3 and 9 s. The pauses are between
ladders, because a pause before another node would only make the caller wait; a fleet that is full is what needs time.
With ``spaced=True`` the same pauses stand between the tries of one ladder instead, which is the training report's
figure taken word for word.

Trying again is safe because the sandbox's id is the key of idempotency: a node that has the id answers with what it has
(`dsec.placement.ledger`). On *another* node the same id can come to exist twice after a time-out; the engine remembers
the first node and has the sandbox removed there when it is heard of again.

A creation has 30 s. In the training report that follows from the 99th percentile of loading an image (12.3 s where 8 s
was the threshold); with larger images it must be longer, or creations that would have succeeded are done twice.
"""

from __future__ import annotations

import enum

from dsec.base.errors import DsecError, Fault, InvalidRequestError, UnknownOutcomeError, error_types
from dsec.model.value import Value


class Where(enum.Enum):
    """Where the next try goes."""

    SAME_NODE = "same_node"
    ANOTHER_NODE = "another_node"


class Retry(Value, frozen=True):
    """Try again.

    Attributes:
        where: on the same node or on another.
        delay_s: after this time.
        reason: in words.
    """

    where: Where
    delay_s: float
    reason: str


class Report(Value, frozen=True):
    """Do not try again: tell whoever asked.

    Attributes:
        reason: in words.
    """

    reason: str


class RetryPolicy(Value, frozen=True):
    """How creations are tried again.

    Attributes:
        ladder: where the second and the further tries go; then the failure is reported.
        backoff_s: pauses before the ladder is climbed again, or with `spaced` between its tries.
        create_timeout_s: a creation that has not been answered by then has failed.
        spaced: pause between the tries of one ladder, and do not climb it again.
    """

    ladder: tuple[Where, ...] = (Where.SAME_NODE, Where.ANOTHER_NODE)
    backoff_s: tuple[float, ...] = (1.0, 3.0, 9.0)
    create_timeout_s: float = 30.0
    spaced: bool = False

    def __post_init__(self) -> None:
        if self.create_timeout_s <= 0:
            raise InvalidRequestError(
                f"retry: create_timeout_s is {self.create_timeout_s}", resolution="give seconds above 0"
            )
        if any(delay_s < 0 for delay_s in self.backoff_s):
            raise InvalidRequestError(f"retry: backoff_s is {self.backoff_s}", resolution="give seconds of 0 or more")
        if self.spaced and len(self.backoff_s) < len(self.ladder):
            raise InvalidRequestError(
                f"retry: {len(self.ladder)} further tries are spaced by {len(self.backoff_s)} pauses",
                resolution="give backoff_s a pause for each step of the ladder",
            )

    def after(self, failures: int, error: DsecError) -> Retry | Report:
        """Say what to do after a failure.

        Args:
            failures: how often this creation has failed on its present ladder, this time included; 1 or more.
            error: the last failure.
        """
        if (refusal := may_not_repeat(error)) != "":
            return Report(reason=refusal)
        if failures > len(self.ladder):
            return Report(reason=f"it failed {failures} times; the last time: {error.brief}")
        where = self.ladder[failures - 1]
        delay_s = self.backoff_s[failures - 1] if self.spaced else 0.0
        return Retry(where=where, delay_s=delay_s, reason=f"failure {failures}: {error.brief}")

    def pause_s(self, ladders: int) -> float | None:
        """Return how long to wait after so many ladders, or refusals for want of room, came to nothing; None: give
        up.
        """
        return self.backoff_s[ladders - 1] if not self.spaced and 1 <= ladders <= len(self.backoff_s) else None

    def steady_pause_s(self, failures: int) -> float:
        """Return how long whoever never gives up, such as a pool that fills itself, waits after so many failures in a
        row: nothing after the first, then the pauses in turn, the last one for all further ones.
        """
        if failures < 2 or not self.backoff_s:
            return 0.0
        return self.backoff_s[min(failures - 1, len(self.backoff_s)) - 1]


def code_may_be_repeated(code: str) -> bool:
    """Tell whether an error of this code may go away by asking again. Unknown codes are a newer version's platform."""
    kind = error_types().get(code)
    return kind is None or (kind.retryable and kind.fault is not Fault.GUEST)


def may_not_repeat(error: DsecError) -> str:
    """Return why this error must not be tried again; empty if it may be."""
    if isinstance(error, UnknownOutcomeError):
        return f"its outcome is unknown, and it is not repeated: {error.brief}"
    if not error.retryable:
        whose = {Fault.CALLER: "the request's", Fault.GUEST: "the sandbox's own", Fault.PLATFORM: "the platform's"}
        return f"the cause is {whose[error.fault]} and would be the same again: {error.brief}"
    return ""
