"""A node's own rule for creations: one sandbox for one id, a number for each admission, and never more than it admits.

A creation is asked for more than once: a scheduler that heard nothing asks again, two schedulers each own the task
for a while, an answer is lost on the way. The sandbox id is the key: asked again for an id that it has, the node
answers with what it has. Asked for the same id with another content, it refuses, because one of the two callers would
get a sandbox that it did not ask for.

Whoever asks has a *claim* on the sandbox. A scheduler that gave the node up and went elsewhere withdraws its own
claim and no other's: the sandbox goes when nobody claims it any more. Otherwise one scheduler's clearing up would
take away what the other has promised.

This is the other half of placement. An engine's choice is a proposal; here it is decided. It is pure, and runs in the
simulator's nodes and in tests as in a live node.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dsec.base.errors import AlreadyExistsError


class Entry(enum.Enum):
    """How far a creation is."""

    CREATING = "creating"
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What the node answers.

    Attributes:
        ticket: number of the creation in this incarnation; see `dsec.placement.view`.
        known: whether the id was there already; then nothing was begun.
        entry: how far it is.
    """

    ticket: int
    known: bool
    entry: Entry


@dataclass(slots=True)
class _Held:
    content: str
    ticket: int
    entry: Entry
    claims: set[str]


class CreationLedger:
    """What a node has admitted in this incarnation, by sandbox id."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._creating = 0
        self.creations_seen = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def creating(self) -> int:
        """How many are being created."""
        return self._creating

    @property
    def held(self) -> frozenset[str]:
        """Ids of all sandboxes, those being created included."""
        return frozenset(self._held)

    def known(self, sandbox_id: str, content: str) -> Admission | None:
        """Return what is there under an id; None if nothing is, and the node's admission has to be asked.

        Args:
            sandbox_id: the key.
            content: what was asked for, in a form in which equal requests are equal, such as a digest of the
                specification.

        Raises:
            AlreadyExistsError: the id is there with another content.
        """
        held = self._held.get(sandbox_id)
        if held is None:
            return None
        if held.content != content:
            raise AlreadyExistsError(
                f"{sandbox_id} exists and was made from another request",
                resolution="choose another id, or ask for exactly the same sandbox",
            )
        return Admission(ticket=held.ticket, known=True, entry=held.entry)

    def admit(self, sandbox_id: str, content: str, claimant: str = "") -> Admission:
        """Begin a creation that the node's admission has let in; an id that is there is answered with what is there.

        Args:
            sandbox_id, content: see `known`.
            claimant: who asks; from now on it has a claim.
        """
        known = self.known(sandbox_id, content)
        if known is not None:
            self._held[sandbox_id].claims.add(claimant)
            return known
        self.creations_seen += 1
        self._creating += 1
        self._held[sandbox_id] = _Held(content, self.creations_seen, Entry.CREATING, {claimant})
        return Admission(ticket=self.creations_seen, known=False, entry=Entry.CREATING)

    def ready(self, sandbox_id: str) -> None:
        """Note that the sandbox is there; nothing happens if it was removed in the meantime."""
        held = self._held.get(sandbox_id)
        if held is not None and held.entry is Entry.CREATING:
            held.entry = Entry.READY
            self._creating -= 1

    def release(self, sandbox_id: str, claimant: str) -> bool:
        """Withdraw a claim; return whether nobody is left who wants the sandbox, so that the node has to destroy it."""
        held = self._held.get(sandbox_id)
        if held is None:
            return False
        held.claims.discard(claimant)
        return not held.claims

    def claims(self, sandbox_id: str) -> frozenset[str]:
        """Return who has a claim."""
        held = self._held.get(sandbox_id)
        return frozenset(held.claims) if held is not None else frozenset()

    def removed(self, sandbox_id: str) -> None:
        """Note that the creation failed or the sandbox is gone; its id may be asked for anew."""
        held = self._held.pop(sandbox_id, None)
        if held is not None and held.entry is Entry.CREATING:
            self._creating -= 1
