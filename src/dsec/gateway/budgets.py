"""What keys and projects have spent, and whether they may go on: pure counting, exact in the middle of a stream.

An account has what is settled and what is *held*: the estimates of attempts under way. Before an attempt is sent,
its input is held, and of an answer that comes as a whole its longest output too, since nothing can be stopped there;
a stream's hold grows with each event. At the end the hold is exchanged for what the attempt really used. So at any
time

    settled + held <= budget,

but for the tokens of one event of each open stream, and for what an estimate was too low.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.base.errors import BudgetExhaustedError
from dsec.gateway.config import Budget


@dataclass(slots=True)
class Account:
    """One key's or project's spending.

    Attributes:
        name: for errors.
        budget: what it may spend.
        tokens, usd, calls: settled.
        held_tokens, held_usd: by attempts under way.
    """

    name: str
    budget: Budget
    tokens: int = 0
    usd: float = 0.0
    calls: int = 0
    held_tokens: int = 0
    held_usd: float = 0.0

    @property
    def is_limited(self) -> bool:
        """Whether tokens or money are limited."""
        return self.budget.tokens is not None or self.budget.usd is not None

    def exhausted(self) -> str:
        """Return which part of the budget is used up, in words; empty: none."""
        budget = self.budget
        if budget.tokens is not None and self.tokens + self.held_tokens > budget.tokens:
            return f"{budget.tokens:,} tokens"
        if budget.usd is not None and self.usd + self.held_usd > budget.usd * (1 + 1e-12):
            return f"{budget.usd:g} USD"
        return ""

    def left_tokens(self, usd_per_token: float) -> float:
        """Return how many more tokens of a price it can pay; infinite if nothing limits it."""
        left = float("inf")
        if self.budget.tokens is not None:
            left = self.budget.tokens - self.tokens - self.held_tokens
        if self.budget.usd is not None and usd_per_token > 0:
            left = min(left, (self.budget.usd - self.usd - self.held_usd) / usd_per_token)
        return max(0.0, left)

    def error(self, what: str) -> BudgetExhaustedError:
        """Return the error for a part of the budget that is used up."""
        return BudgetExhaustedError(
            f"the budget of {self.name} is used up: {what}",
            detail=f"spent {self.tokens:,} tokens, {self.usd:.6f} USD, {self.calls:,} calls"
            f"; held by calls under way {self.held_tokens:,} tokens, {self.held_usd:.6f} USD",
            resolution="raise the budget, or use another key",
        )


def check_call(accounts: tuple[Account, ...]) -> None:
    """Say whether all who pay for a call have one left, before it is counted for any of them.

    Raises:
        BudgetExhaustedError: one of them has no more.
    """
    for account in accounts:
        if account.budget.calls is not None and account.calls >= account.budget.calls:
            raise account.error(f"{account.budget.calls:,} calls")


@dataclass(slots=True)
class Meter:
    """What one attempt holds of the accounts that pay for it.

    Attributes:
        accounts: of its key and its project.
        tokens, usd: held.
    """

    accounts: tuple[Account, ...]
    tokens: int = 0
    usd: float = 0.0

    def hold(self, tokens: int, usd: float) -> None:
        """Hold so much more, whether or not it can be paid: it was used."""
        self.tokens += tokens
        self.usd += usd
        for account in self.accounts:
            account.held_tokens += tokens
            account.held_usd += usd

    def broke(self) -> Account | None:
        """Return an account whose budget is used up."""
        for account in self.accounts:
            if account.exhausted():
                return account
        return None

    def settle(self, tokens: int, usd: float) -> None:
        """Exchange what is held for what was used. Once only."""
        held_tokens, held_usd, accounts = self.tokens, self.usd, self.accounts
        self.accounts = ()
        for account in accounts:
            account.held_tokens -= held_tokens
            account.held_usd -= held_usd
            if not account.held_tokens:
                account.held_usd = 0.0  # Sums of fractions leave a rest, which would grow for ever.
            account.tokens += tokens
            account.usd += usd


class Accounts:
    """All accounts, by key and by project. They are made when first asked for."""

    def __init__(self) -> None:
        self._accounts: dict[tuple[str, str], Account] = {}

    def find(self, kind: str, name: str, budget: Budget) -> Account:
        """Return an account; `kind` is "key" or "project"."""
        account = self._accounts.get((kind, name))
        if account is None:
            account = self._accounts[kind, name] = Account(name=f"{kind} {name}", budget=budget)
        account.budget = budget
        return account

    def book(self, kind: str, name: str, *, tokens: int, usd: float, calls: int) -> None:
        """Add what the ledger says was spent before."""
        account = self._accounts.setdefault((kind, name), Account(name=f"{kind} {name}", budget=Budget()))
        account.tokens += tokens
        account.usd += usd
        account.calls += calls

    def all(self) -> dict[tuple[str, str], Account]:
        """Return every account by kind and name."""
        return dict(self._accounts)
