"""On one node one id is one sandbox, however often and by whomever it is asked for."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dsec.base.errors import AlreadyExistsError
from dsec.placement.duplicates import Holder, keep_one
from dsec.placement.ledger import CreationLedger, Entry

IDS = st.sampled_from(["sbx-1", "sbx-2", "sbx-3"])


class LedgerMachine(RuleBasedStateMachine):
    """Two schedulers ask, sandboxes become ready and go, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = CreationLedger()
        self.expected: dict[str, tuple[str, Entry, int]] = {}
        self.begun = 0

    @rule(sandbox_id=IDS, content=st.sampled_from(["a", "b"]))
    def ask(self, sandbox_id: str, content: str) -> None:
        known = self.expected.get(sandbox_id)
        if known is not None and known[0] != content:
            with pytest.raises(AlreadyExistsError) as caught:
                self.ledger.admit(sandbox_id, content)
            assert sandbox_id in caught.value.brief
            return
        answer = self.ledger.admit(sandbox_id, content)
        if known is None:
            self.begun += 1
            assert (answer.known, answer.entry, answer.ticket) == (False, Entry.CREATING, self.begun)
            self.expected[sandbox_id] = (content, Entry.CREATING, self.begun)
        else:
            assert (answer.known, answer.entry, answer.ticket) == (True, known[1], known[2])

    @rule(sandbox_id=IDS)
    def become_ready(self, sandbox_id: str) -> None:
        self.ledger.ready(sandbox_id)
        if sandbox_id in self.expected:
            content, _, ticket = self.expected[sandbox_id]
            self.expected[sandbox_id] = (content, Entry.READY, ticket)

    @rule(sandbox_id=IDS)
    def go(self, sandbox_id: str) -> None:
        self.ledger.removed(sandbox_id)
        self.expected.pop(sandbox_id, None)

    @invariant()
    def counts_agree(self) -> None:
        assert self.ledger.held == set(self.expected)
        assert self.ledger.creating == sum(entry is Entry.CREATING for _, entry, _ in self.expected.values())
        assert self.ledger.creations_seen == self.begun


TestLedger = pytest.mark.slow(LedgerMachine.TestCase)


def test_everybody_keeps_the_same_duplicate() -> None:
    holders = [Holder(node=f"n{number}") for number in range(5)]
    kept, orphans = keep_one("sbx-1", holders)
    assert keep_one("sbx-1", reversed(holders)) == (kept, orphans)
    assert sorted([*(orphan.node for orphan in orphans), kept or ""]) == [f"n{number}" for number in range(5)]
    assert all(kept is not None and kept in orphan.reason for orphan in orphans)


def test_what_a_caller_was_given_is_kept_before_what_is_ready_before_what_is_begun() -> None:
    begun, ready = Holder(node="a"), Holder(node="b", ready=True)
    given = Holder(node="c", ready=True, handed_out=True)
    assert keep_one("sbx-1", [begun, ready, given])[0] == "c"
    assert keep_one("sbx-1", [begun, ready])[0] == "b"
    assert keep_one("sbx-1", [begun]) == ("a", ())
    assert keep_one("sbx-1", []) == (None, ())


def test_a_sandbox_stays_as_long_as_one_scheduler_claims_it() -> None:
    ledger = CreationLedger()
    for claimant in ("s0", "s1"):
        ledger.admit("sbx-1", "content", claimant)
    assert not ledger.release("sbx-1", "s0")
    assert ledger.claims("sbx-1") == {"s1"}
    assert ledger.release("sbx-1", "s1")
    assert not ledger.release("sbx-2", "s1")
