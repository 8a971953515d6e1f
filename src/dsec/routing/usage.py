"""What one attempt used, split into kinds of tokens that are priced differently, each reported or estimated."""

from __future__ import annotations

import enum

from dsec.model.value import Value


class Source(enum.Enum):
    """Where a number comes from."""

    REPORTED = "reported"
    ESTIMATED = "estimated"


class Count(Value, frozen=True):
    """Tokens of one kind.

    Attributes:
        tokens: how many.
        source: whether the backend said so.
    """

    tokens: int
    source: Source = Source.REPORTED


NOTHING = Count(tokens=0)


class Usage(Value, frozen=True):
    """What one attempt used. Each token is of exactly one kind.

    Attributes:
        plain_input: input that was neither found in a cache nor put there.
        cache_write: input put into the cache.
        cache_read: input found in the cache.
        thinking: output that the caller is not meant to see.
        visible: the answer.
        doubts: what in the report cannot be true, one sentence each.
    """

    plain_input: Count = NOTHING
    cache_write: Count = NOTHING
    cache_read: Count = NOTHING
    thinking: Count = NOTHING
    visible: Count = NOTHING
    doubts: tuple[str, ...] = ()

    @property
    def input_tokens(self) -> int:
        """All input."""
        return self.plain_input.tokens + self.cache_write.tokens + self.cache_read.tokens

    @property
    def output_tokens(self) -> int:
        """All output."""
        return self.thinking.tokens + self.visible.tokens

    @property
    def is_estimated(self) -> bool:
        """Whether any part of it is an estimate."""
        parts = (self.plain_input, self.cache_write, self.cache_read, self.thinking, self.visible)
        return any(part.source is Source.ESTIMATED for part in parts)
