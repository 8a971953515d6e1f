"""When a committed round has to be on the disk, and what may be lost until then.

The more often is saved, the less is done again after a failure and the more is paid without one (`dsec.costs.
commit_frequency` has the sums). Three modes, and each is a promise:

- *every round*: `commit` returns when the round is saved. Nothing that was answered is lost.
- *every n rounds*: the n-th round since the last save waits until all n are saved. At most n - 1 rounds that were
  answered are lost, and n are done again.
- *asynchronous, bound b*: saving runs beside the loop; a loop that would be more than b rounds ahead of the disk waits.
  At most b rounds that were answered are lost.

An announcement of an operation that must not run twice is saved at once in all of them, and with it all before it: a
mode trades repeated work for time, never safety. Source: the chapter, section 11.5.1.
"""

from __future__ import annotations

from dsec.base.errors import InvalidRequestError
from dsec.model.value import Value

DEFAULT_BOUND = 10


class Durability(Value, frozen=True, omit_defaults=True):
    """A mode. Use `EVERY_ROUND`, `every_n_rounds`, `asynchronous`.

    Attributes:
        rounds: how many rounds are saved together; with `beside`, how many may be answered and not saved.
        beside: whether saving runs beside the loop, instead of holding up each `rounds`-th round.
    """

    rounds: int = 1
    beside: bool = False

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InvalidRequestError(f"{self.rounds} rounds cannot be saved together", resolution="use 1 or more")

    def must_save(self, unsaved_rounds: int) -> bool:
        """Whether, with so many rounds unsaved, the newest included, saving has to begin."""
        return unsaved_rounds >= (1 if self.beside else self.rounds)

    def must_wait(self, unsaved_rounds: int) -> bool:
        """Whether the newest of so many unsaved rounds is answered only when fewer are unsaved."""
        return unsaved_rounds > self.rounds if self.beside else unsaved_rounds >= self.rounds

    @property
    def lost_rounds(self) -> int:
        """How many rounds that were answered a failure can cost."""
        return self.rounds if self.beside else self.rounds - 1


EVERY_ROUND = Durability()


def every_n_rounds(rounds: int) -> Durability:
    """Save after each `rounds` rounds. One is every round.

    Raises:
        InvalidRequestError: `rounds` is below 1.
    """
    return Durability(rounds=rounds)


def asynchronous(bound: int = DEFAULT_BOUND) -> Durability:
    """Save beside the loop, which waits when it is `bound` rounds ahead.

    Raises:
        InvalidRequestError: `bound` is below 1.
    """
    return Durability(rounds=bound, beside=True)


class Unsaved(Value, frozen=True):
    """What was answered and is not on the disk yet.

    Attributes:
        rounds: rounds.
        operations: operations of these rounds.
    """

    rounds: int
    operations: int
