"""The port of chat models: a request of messages and tools, an answer of words and calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dsec.base.errors import BackendFailedError
from dsec.episode.identity import ModelIdentity
from dsec.episode.operations import TokenUsage
from dsec.model.value import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What is asked.

    Attributes:
        messages: as chat completions have them.
        tools: as chat completions have them.
        seed: for models that take one.
        hear: called with the name of each tool as soon as the model has written it, while its answer goes on. What is
            asked again after a failure is heard again.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    seed: int | None = None
    hear: Callable[[str], None] | None = None


class WrittenCall(Value, frozen=True):
    """A call as the model wrote it; nothing of it is checked."""

    name: str
    arguments: str


class ChatAnswer(Value, frozen=True):
    """What was answered.

    Attributes:
        text: its words, without thinking.
        calls: its calls.
        cut: why it is not whole: it ran into a limit of the model's, or one of ours; empty: it is whole.
        model: what answered.
        usage: tokens, and how many calls of the service it took.
    """

    text: str = ""
    calls: tuple[WrittenCall, ...] = ()
    cut: str = ""
    model: ModelIdentity = ModelIdentity()
    usage: TokenUsage = TokenUsage()


class ChatModel(Protocol):
    """Answers requests."""

    async def answer(self, request: ChatRequest) -> ChatAnswer:
        """Return an answer, in bounded time and size.

        Raises:
            BackendFailedError: the service failed or sent what is no answer, also when asked again.
            BackendRefusedError: it refused; asking again changes nothing.
            BackendTimeoutError: it did not answer in time, also when asked again.
        """


def used_in_vain(error: BackendFailedError) -> TokenUsage:
    """Return what calls used that came to nothing, as far as their service said."""
    return TokenUsage(
        input_tokens=error.input_tokens,
        cached_tokens=error.cached_tokens,
        output_tokens=error.output_tokens,
        calls=error.calls,
    )
