"""In which protocol a call goes to a backend: its own if the backend speaks it, else translated.

Only messages are translated, into chat completions: services that speak messages alone offer chat completions, too,
while many inference servers speak nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.gateway.call import Call
from dsec.gateway.config import Api, Service
from dsec.gateway.fronts.asked import Asked
from dsec.gateway.fronts.front import Front, Watcher
from dsec.gateway.fronts.openai_chat import OpenaiChat
from dsec.gateway.translate.answer import MessagesOverChat
from dsec.gateway.translate.request import chat_members

_CHAT = OpenaiChat()


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How one attempt speaks to its backend.

    Attributes:
        front: the protocol.
        asked: the call in it.
        watcher: watches the answer, and tells it in the caller's protocol.
    """

    front: Front
    asked: Asked
    watcher: Watcher


def speaks(service: Service, api: Api) -> bool:
    """Say whether a backend can be asked in a protocol, itself or through translation."""
    return api in service.spoken or (api is Api.MESSAGES and Api.CHAT in service.spoken)


def needs_translation(service: Service) -> bool:
    """Say whether messages have to be translated for a backend."""
    return Api.MESSAGES not in service.spoken


def translate(call: Call) -> None:
    """Note a call of messages as one of chat completions, too, or why it cannot be one."""
    try:
        call.translated = _CHAT.ask(chat_members(call.asked.members))
    except InvalidRequestError as error:
        call.untranslatable = error


def way_to(call: Call, service: Service) -> Way:
    """Return how a call is put to a backend."""
    if call.asked.api in service.spoken or call.translated is None:
        return Way(front=call.front, asked=call.asked, watcher=call.front.watch(call.asked))
    watcher = MessagesOverChat(_CHAT.watch(call.translated), call.asked)
    return Way(front=_CHAT, asked=call.translated, watcher=watcher)
