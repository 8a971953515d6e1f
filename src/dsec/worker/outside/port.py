"""The contract of a system outside the sandbox: a bank, a ticket system, a database that is no part of the workspace.

An operation there is sent with an id that it keeps for ever, and with the epoch of the writer of its episode's log.
What the loop does about one that began and has no recorded result follows from the kind of effect that the adapter
declares, and the adapter has to keep what that kind promises:

- ``ASKED``: `ask` says by the id whether it happened, and its *no* is final: an attempt that was under way when it was
  asked does not happen afterwards.
- ``DEDUPLICATED``: `send` with the same id does it once, however often it is called, and returns the first answer.
- ``COMPENSATED``: `compensate` undoes it if it happened, and an attempt that was under way does not happen afterwards.
- ``ONCE``: none of these. Whoever does not know says so, and a person decides.

Three answers of `send` must never be taken for each other: it happened (an answer), it did not (a refusal, or
`OutsideUnavailableError`), and nobody knows (`UnknownOutcomeError`). In doubt it is the third.
Sources: the chapter, sections 11.1.3 and 11.5.1; draft-ietf-httpapi-idempotency-key-header-07; Gray and Reuter, section
4.3 (testable operations).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dsec.base.errors import WriterFencedError
from dsec.episode.content import Content
from dsec.episode.operations import Effect
from dsec.episode.tools import OutsideAnswer, ToolFailed
from dsec.model.value import Value

ANSWER_BYTES = 64 * 1024
"""Kept of an answer."""
REFUSED = "outside_refused"
"""Code of a result: the system would not do it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideRequest:
    """What is asked of a system outside.

    Attributes:
        operation_id: see `dsec.episode.identity.operation_id`.
        epoch: of the writer of the episode's log.
        arguments: of the call, which fit the adapter's parameters.
    """

    operation_id: str
    epoch: int
    arguments: Mapping[str, Any]

    @property
    def episode_id(self) -> str:
        """The episode that the operation is of."""
        return self.operation_id.partition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideTool:
    """A system outside as a model is offered it.

    Attributes:
        name: of the tool.
        description: for the model.
        arguments: type of its arguments; see `dsec.worker.outside.parameters.arguments_type`.
        system: carries its calls out.
    """

    name: str
    description: str
    arguments: type[Value]
    system: OutsideSystem


class OutsideFactory(Protocol):
    """Makes the tool of a spec: what an entry point in the group ``dsec.outside_systems`` is."""

    def __call__(self, name: str, options: Mapping[str, Any], environment: Mapping[str, str]) -> OutsideTool:
        """Return the tool.

        Args:
            name: of the tool.
            options: of the adapter, from the episode's spec. What is secret is not in them: they name variables.
            environment: the worker's variables.

        Raises:
            InvalidRequestError: the options are not what they can be.
        """


def bounded_answer(data: bytes, *, status: str, truncated: bool = False) -> OutsideAnswer:
    """Return an answer of which at most `ANSWER_BYTES` bytes are kept."""
    kept = data[:ANSWER_BYTES]
    is_cut = truncated or len(kept) < len(data)
    text = kept.decode(errors="ignore") if is_cut else ""
    # A cut through a character must not make bytes of what was text.
    content = Content(text=text) if is_cut and len(kept) - len(text.encode()) < 4 else Content.of(kept)
    return OutsideAnswer(content=content, status=status, truncated=is_cut)


def fenced(request: OutsideRequest, newest: int) -> WriterFencedError:
    """Return the error for a request of a writer that was given up."""
    return WriterFencedError(
        f"{request.operation_id} was sent in epoch {request.epoch}, and epoch {newest} was here: nothing was done",
        resolution="end this loop; one worker drives an episode",
    )


class OutsideSystem(Protocol):
    """A system outside, as one tool uses it. See the module for what its effect promises.

    Calls may be cancelled at any moment; what a cancelled `send` was to do has an unknown outcome.
    """

    @property
    def effect(self) -> Effect:
        """What an operation here is: one of those that are announced."""

    async def send(self, request: OutsideRequest) -> OutsideAnswer | ToolFailed:
        """Carry an operation out and return what the system answered; `ToolFailed`: it refused, and did nothing.

        Raises:
            OutsideUnavailableError: it did not happen, and will not; trying again later may help.
            UnknownOutcomeError: it may or may not have happened, or may happen yet.
            WriterFencedError: a later writer of the episode's log was here; nothing was done.
        """

    async def ask(self, request: OutsideRequest) -> OutsideAnswer | ToolFailed | None:
        """Return the answer to an operation that was sent before; None: it did not happen, and will not by itself.

        Raises:
            CapabilityMissingError: it cannot be asked; it is not of the kind ``ASKED``.
            OutsideUnavailableError: the system does not say.
            WriterFencedError: as for `send`.
        """

    async def compensate(self, request: OutsideRequest) -> None:
        """Undo an operation if it happened. Idempotent.

        Raises:
            CapabilityMissingError: it does not undo; it is not of the kind ``COMPENSATED``.
            OutsideUnavailableError: the system does not say that it is undone.
            WriterFencedError: as for `send`.
        """
