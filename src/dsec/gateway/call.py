"""One call on its way through the gateway: what was asked, by whom, until when, and at whose cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dsec.base.errors import InvalidRequestError
from dsec.gateway.budgets import Account
from dsec.gateway.config import Model
from dsec.gateway.fronts.asked import Asked
from dsec.gateway.fronts.front import Front
from dsec.gateway.keys import Key
from dsec.gateway.upstream import DEADLINE_HEADER

EPISODE_HEADER = "X-DSec-Episode"
TASK_HEADER = "X-DSec-Task"
THINKING_HEADER = "X-DSec-Thinking-Tokens"
_RETRY_HEADER = "x-stainless-retry-count"
_LONGEST_NAME = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a caller says in headers.

    Attributes:
        episode, task: names that the ledger keeps; calls of one episode like to stay on one backend.
        deadline_s: the answer is of use only for so long; None: as the model's settings say.
        thinking_tokens: the caller's own limit of thinking; None: none.
        client_retry: how often the caller's client tried this call before.
    """

    episode: str = ""
    task: str = ""
    deadline_s: float | None = None
    thinking_tokens: int | None = None
    client_retry: int = 0


@dataclass(slots=True, kw_only=True)
class Call:
    """One call.

    Attributes:
        call_id: its id.
        front: the protocol it came in.
        asked: what was asked.
        key: who asks.
        wishes: the headers.
        headers: all headers as they came; few go on.
        model: how calls of this name are treated.
        accounts: who pays.
        blocks: fingerprints of the prompt.
        began_s, deadline_s: in boot time.
        thinking_allowed: thinking tokens; None: not limited.
        repeats: the earlier call that was cut and is repeated by this one; empty: none.
        attempts: how many were begun.
        counted: whether it was counted as a call.
        tried: backends that it was at.
        translated: the same as a call of chat completions, where some backend needs that.
        untranslatable: why there is no such call.
        fingerprint: of the prompt, where thinking is limited.
        parting: what is written of an attempt that is cancelled.
        denied: whether a backend denied the gateway's key: waiting for that one changes nothing.
    """

    call_id: str
    front: Front
    asked: Asked
    key: Key
    wishes: Wishes
    headers: Mapping[str, str]
    model: Model
    accounts: tuple[Account, ...]
    blocks: tuple[int, ...]
    began_s: float
    deadline_s: float
    thinking_allowed: int | None = None
    repeats: str = ""
    attempts: int = 0
    counted: bool = False
    denied: bool = False
    translated: Asked | None = None
    untranslatable: InvalidRequestError | None = None
    fingerprint: bytes = b""
    parting: str = "the caller went away"
    tried: list[str] = field(default_factory=list)

    def let_go(self) -> None:
        """Forget what was asked, once nothing of it will be sent again: an open stream keeps no prompt in memory."""
        self.asked = replace(self.asked, members={}, prompt=())
        self.translated = None


def read_wishes(headers: Mapping[str, str]) -> Wishes:
    """Read a caller's headers.

    Raises:
        InvalidRequestError: one of them is not what it must be.
    """
    retry = headers.get(_RETRY_HEADER, "0")
    return Wishes(
        episode=_name(headers, EPISODE_HEADER),
        task=_name(headers, TASK_HEADER),
        deadline_s=_deadline(headers),
        thinking_tokens=_thinking(headers),
        client_retry=int(retry) if retry.isascii() and retry.isdigit() and len(retry) < 4 else 0,
    )


def _name(headers: Mapping[str, str], header: str) -> str:
    text = headers.get(header, "")
    if len(text) > _LONGEST_NAME or not text.isprintable():
        raise InvalidRequestError(
            f"{header} is no name", resolution=f"send at most {_LONGEST_NAME} printable characters"
        )
    return text


def _deadline(headers: Mapping[str, str]) -> float | None:
    text = headers.get(DEADLINE_HEADER)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise InvalidRequestError(
            f"{DEADLINE_HEADER} is {text[:40]!r}", resolution="send the seconds that are left, such as 12.5"
        )
    return seconds


def _thinking(headers: Mapping[str, str]) -> int | None:
    text = headers.get(THINKING_HEADER)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidRequestError(
            f"{THINKING_HEADER} is {text[:40]!r}", resolution="send a number of tokens of at least 0"
        )
    return int(text)
