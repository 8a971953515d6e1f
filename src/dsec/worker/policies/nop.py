"""The policy that does nothing: no task may pass with it."""

from __future__ import annotations

from dsec.episode.round import Decision, Done, History
from dsec.worker.policies.port import PolicyContext


class NopPolicy:
    """Finish at once."""

    def __init__(self, context: PolicyContext) -> None:
        del context

    async def next_round(self, history: History) -> Decision | Done:
        del history
        return Done(reason="nothing to do")
