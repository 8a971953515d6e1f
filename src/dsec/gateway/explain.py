"""Why a call goes where it goes: the decision of this moment with every candidate, without sending anything."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dsec.gateway.building import open_proxy
from dsec.gateway.choosing import considered_of
from dsec.gateway.config import GatewayConfig
from dsec.gateway.fronts.front import Front
from dsec.gateway.ledger_record import Considered
from dsec.gateway.proxy import Proxy
from dsec.routing.choice import Choice


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A decision.

    Attributes:
        model: what was asked for.
        backend: the one taken; empty: none.
        why: in a sentence.
        input_tokens, blocks: what the prompt was taken for.
        candidates: every backend that was considered.
    """

    model: str
    backend: str
    why: str
    input_tokens: int = 0
    blocks: int = 0
    candidates: tuple[Considered, ...] = ()


def explain_call(proxy: Proxy, front: Front, headers: Mapping[str, str], body: bytes) -> Explanation:
    """Decide on a call as it would be decided now, and change nothing.

    Raises:
        DsecError: the key or the body is not in order.
    """
    call = proxy.call_of(front, headers, body)
    request = proxy.request(call)
    found = proxy.router.explain(request, proxy.now_s())
    if isinstance(found, Choice):
        backend, why = found.backend, found.why
    else:
        backend, why = "", f"{found.brief}. {found.detail}".strip()
    return Explanation(
        model=call.asked.model,
        backend=backend,
        why=why,
        input_tokens=call.asked.input_tokens,
        blocks=len(call.blocks),
        candidates=considered_of(found.candidates),
    )


async def explain_cold(
    config: GatewayConfig, directory: Path, front: Front, headers: Mapping[str, str], body: bytes
) -> Explanation:
    """Decide on a call as a gateway would that was just started: nobody waits anywhere, and no cache holds anything.

    Nothing is sent, no key of a backend is needed, and a gateway that is running is not disturbed.

    Raises:
        DsecError: the body or the configuration is not in order.
    """
    services = tuple(msgspec.structs.replace(one, key_env=None, key_file=None) for one in config.backends)
    with tempfile.TemporaryDirectory(prefix="dsec-explain-") as scratch:
        door = msgspec.structs.replace(config.gateway, state_dir=scratch, open=True, record_to=None)
        cold = msgspec.structs.replace(config, gateway=door, backends=services)
        async with open_proxy(cold, directory) as proxy:
            return explain_call(proxy, front, headers, body)
