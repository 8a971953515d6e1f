"""What is learnt from an answer while it passes: whose it is, how much it has said and thought, what it used."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from dsec.gateway.fronts.asked import BYTES_PER_TOKEN


@dataclass(slots=True)
class Observation:
    """One answer, as far as it has come.

    Attributes:
        answer_id: its id.
        model: what it says it is from.
        report: what the backend reported of its usage, the later values over the earlier ones.
        thinking_bytes, visible_bytes: text that was seen of either kind.
        thinking_pieces, visible_pieces: events that brought some; each is at least a token.
        finished: whether its end was seen.
        stopped_by_length: whether it says that a limit of length ended it.
        complaint: an error that it carries; None: it carries none.
    """

    answer_id: str = ""
    model: str = ""
    report: dict[str, object] = field(default_factory=dict)
    thinking_bytes: int = 0
    visible_bytes: int = 0
    thinking_pieces: int = 0
    visible_pieces: int = 0
    finished: bool = False
    stopped_by_length: bool = False
    complaint: dict[str, object] | None = None

    @property
    def thinking_tokens(self) -> int:
        """Estimate of the thinking that was seen."""
        return max(self.thinking_pieces, -(-self.thinking_bytes // BYTES_PER_TOKEN))

    @property
    def visible_tokens(self) -> int:
        """Estimate of the answer that was seen."""
        return max(self.visible_pieces, -(-self.visible_bytes // BYTES_PER_TOKEN))

    def think(self, text: object) -> None:
        """Count thinking."""
        if type(text) is str and text:
            self.thinking_bytes += len(text) if text.isascii() else len(text.encode(errors="replace"))
            self.thinking_pieces += 1

    def say(self, text: object) -> None:
        """Count visible output."""
        if type(text) is str and text:
            self.visible_bytes += len(text) if text.isascii() else len(text.encode(errors="replace"))
            self.visible_pieces += 1

    def learn_usage(self, usage: object) -> None:
        """Take a report of usage; what it leaves out stays as it was."""
        if type(usage) is dict:
            self.report.update((name, value) for name, value in usage.items() if value is not None)


def complaint_of(error: object) -> dict[str, object]:
    """Return an error as routing reads it; backends write objects, some only a text."""
    return error if type(error) is dict else {"message": str(error)[:500]}


class ThinkingMember(msgspec.Struct):
    """The member `thinking` of a call."""

    type: str = ""
    budget_tokens: int | None = None
