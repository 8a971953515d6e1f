"""The prefix cache of a simulated backend: what it holds, exactly. Pure.

A prompt is bytes, four to a token, each part padded to whole tokens, so that its length in tokens is known exactly. Two
kinds of cache are simulated. An *automatic* one keeps every whole block of what it read and said. An *explicit* one
keeps prefixes up to the parts that a call marks, finds them at the end of any part, and reports what it wrote.
Fingerprints are chained: one stands for everything before it. What was used longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

TOKEN_BYTES = 4
BLOCK_TOKENS = 16


class Part(NamedTuple):
    """A part of a prompt.

    Attributes:
        role: whose it is.
        text: what it says.
        marked: whether the prefix up to its end is to be kept.
    """

    role: str
    text: bytes
    marked: bool = False

    @property
    def tokens(self) -> int:
        """Its length."""
        return -(-len(self.text) // TOKEN_BYTES)


class Mark(NamedTuple):
    """A place in a prompt: how many tokens stand before it, and the fingerprint of them."""

    tokens: int
    fingerprint: bytes


class Found(NamedTuple):
    """What a cache had of a prompt, and what it put in.

    Attributes:
        read: tokens that were there.
        written: tokens that were put there and are paid for; 0 for an automatic one.
    """

    read: int
    written: int


def block_marks(parts: Sequence[Part], block_tokens: int = BLOCK_TOKENS) -> list[Mark]:
    """Return the ends of whole blocks."""
    block_bytes = TOKEN_BYTES * block_tokens
    rolling = blake2b(digest_size=12)
    marks = []
    filled = tokens = 0
    for part in parts:
        rolling.update(b"\x00" + part.role.encode() + b"\x00")
        text = part.text + bytes(-len(part.text) % TOKEN_BYTES)
        start = 0
        while len(text) - start >= block_bytes - filled:
            end = start + block_bytes - filled
            rolling.update(text[start:end])
            start, filled, tokens = end, 0, tokens + block_tokens
            marks.append(Mark(tokens, rolling.copy().digest()))
        rolling.update(text[start:])
        filled += len(text) - start
    return marks


def part_marks(parts: Sequence[Part]) -> list[Mark]:
    """Return the ends of parts."""
    rolling = blake2b(digest_size=12)
    marks = []
    tokens = 0
    for part in parts:
        rolling.update(b"\x00" + part.role.encode() + b"\x00" + part.text)
        tokens += part.tokens
        marks.append(Mark(tokens, rolling.copy().digest()))
    return marks


class PrefixStore:
    """One cache.

    Args:
        capacity_tokens: what it holds; 0: nothing.
        lifetime_s: how long an entry lives after its last use; None: for ever.
        minimum_tokens: shorter prefixes are not kept.
        block_tokens: of an automatic one.
    """

    def __init__(
        self,
        capacity_tokens: int,
        lifetime_s: float | None,
        minimum_tokens: int,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        self._block_tokens = block_tokens
        self._capacity = capacity_tokens
        self._lifetime_s = lifetime_s
        self._minimum = minimum_tokens
        self._entries: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        self._held = 0

    @property
    def held_tokens(self) -> int:
        """What it holds."""
        return self._held

    def read(self, parts: Sequence[Part], now_s: float) -> Found:
        """Look a prompt up in an automatic cache; at least one token is always new."""
        whole = sum(part.tokens for part in parts)
        read = 0
        for mark in block_marks(parts, self._block_tokens):
            if mark.tokens >= whole or not self._touch(mark.fingerprint, now_s):
                break
            read = mark.tokens
        return Found(read if read >= self._minimum else 0, 0)

    def keep(self, parts: Sequence[Part], now_s: float) -> None:
        """Put what was read and said into an automatic cache."""
        marks = block_marks(parts, self._block_tokens)
        if not marks or marks[-1].tokens < self._minimum:
            return
        for mark in reversed(marks):  # The beginning is shared by most, so it goes last.
            self._put(mark.fingerprint, self._block_tokens, now_s)

    def read_and_keep(self, parts: Sequence[Part], now_s: float) -> Found:
        """Look a prompt up in an explicit cache and put it there, up to its marked parts."""
        wanted = [at for at, part in enumerate(parts) if part.marked]
        if not wanted or not self._capacity:
            return Found(0, 0)
        marks = part_marks(parts[: wanted[-1] + 1])
        found = [mark.tokens for mark in marks if self._touch(mark.fingerprint, now_s)]
        read = found[-1] if found else 0
        if marks[-1].tokens < self._minimum:
            return Found(0, 0)
        before = read
        for at in wanted:
            if marks[at].tokens > before:
                self._put(marks[at].fingerprint, marks[at].tokens - before, now_s)
                before = marks[at].tokens
        return Found(read, before - read)

    def _touch(self, fingerprint: bytes, now_s: float) -> bool:
        entry = self._entries.get(fingerprint)
        if entry is None:
            return False
        if self._lifetime_s is not None and now_s - entry[1] > self._lifetime_s:
            self._held -= self._entries.pop(fingerprint)[0]
            return False
        self._entries[fingerprint] = (entry[0], now_s)
        self._entries.move_to_end(fingerprint)
        return True

    def _put(self, fingerprint: bytes, tokens: int, now_s: float) -> None:
        if self._touch(fingerprint, now_s):
            return
        self._entries[fingerprint] = (tokens, now_s)
        self._held += tokens
        while self._held > self._capacity:
            self._held -= self._entries.popitem(last=False)[1][0]
