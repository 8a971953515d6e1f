"""An HTTP service as a system outside: idempotency keys where it honours them, and questions or cancellations by id.

What can be done about a lost answer depends on what the service offers, which its options say. *Asking* means: ask, and
if nothing is known of the id, send again, with the same key if there are keys.

===========================  ================  =============================
the service                  effect            after a lost answer
===========================  ================  =============================
can be asked by id (`ask`)   ``ASKED``         ask
honours keys (`keys`)        ``DEDUPLICATED``  send again with the same key
can undo by id (`undo`)      ``COMPENSATED``   undo, send again
none of these                ``ONCE``          somebody has to find out
===========================  ================  =============================

A service without keys that says *I know nothing of it* may have the request in a queue still. So its *no* is believed
only `settle_s` after it was sent last: the time in which the service says it carries out, or drops, what reached it.

Keys are kept by services for a while only, many for a day. An episode that stands still for longer must be able to ask:
give `ask` wherever there is something to ask. Sources: draft-ietf-httpapi-idempotency-key-header-07 (409: the first is
under way; 422: the key belongs to another request); RFC 9110, section 10.2.3 (Retry-After), RFC 6585 (429), RFC 8470
(425).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import anyio
import msgspec

from dsec.base.errors import (
    CapabilityMissingError,
    DsecError,
    InvalidRequestError,
    OutsideUnavailableError,
    UnknownOutcomeError,
    WriterFencedError,
)
from dsec.episode.operations import Effect
from dsec.episode.tools import OutsideAnswer, ToolFailed
from dsec.model.value import Value
from dsec.worker.outside.exchange import HttpReply, HttpRequest, check_url, exchange
from dsec.worker.outside.parameters import Parameter, arguments_type
from dsec.worker.outside.port import ANSWER_BYTES, REFUSED, OutsideRequest, bounded_answer

_PLACE = re.compile(r"\{([a-z_][a-z0-9_]*)\}")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LEAVES_ITS_PLACE = ("", ".", "..")
"""Names that a path does not keep: whoever reads it may take away the name in front."""
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_LATER = frozenset({429, 425})
"""Nothing was done, by the definition of the status."""
_MAXIMUM_WAIT_S = 120.0


class HttpEndpoint(Value, frozen=True, omit_defaults=True):
    """Where to ask, or to undo.

    Attributes:
        url: with ``{operation}`` for the id and ``{name}`` for an argument.
        method: of the request; one that is not GET or DELETE sends the arguments, too.
    """

    url: str
    method: str = "GET"


class HttpOptions(Value, frozen=True, omit_defaults=True):
    """How a tool uses a service.

    Attributes:
        url: where operations are sent; ``{name}`` stands for an argument, ``{operation}`` for the id.
        description: of the tool, for the model.
        parameters: of the tool.
        method: of the request. The arguments that are not in the URL are sent as a JSON object.
        headers: sent with each request; ``${NAME}`` stands for a variable of the worker's environment: secrets are
            named, and not written here.
        keys: the service does what comes with the same key once. Only who knows it may say so: of a service that
            ignores keys, what is sent again happens again.
        key_header: the header for it.
        epoch_header: header for the epoch of the log's writer; a service that is told of a lower one than before
            answers 412 and does nothing. Empty: none is sent.
        ask: 2xx: it happened, and this is the answer; 404: it knows nothing of it.
        undo: 2xx: it is undone; 404 and 410: there is nothing to undo.
        settle_s: see the module.
        timeout_s: for each exchange.
        backoff_s: waits before an exchange is tried again, where it may be; ``Retry-After`` is heeded up to 2 min.
    """

    url: str
    description: str = ""
    parameters: dict[str, Parameter] = {}
    method: str = "POST"
    headers: dict[str, str] = {}
    keys: bool = False
    key_header: str = "Idempotency-Key"
    epoch_header: str = ""
    ask: HttpEndpoint | None = None
    undo: HttpEndpoint | None = None
    settle_s: float = 60.0
    timeout_s: float = 30.0
    backoff_s: tuple[float, ...] = (0.5, 2.0, 8.0)


class HttpOutside:
    """Implements `dsec.worker.outside.port.OutsideSystem` over HTTP.

    Args:
        name: of the tool.
        options: how it uses the service.
        environment: where the variables in headers are looked up, each time they are sent.

    Raises:
        InvalidRequestError: the options are not what they can be.
    """

    def __init__(self, name: str, options: HttpOptions, *, environment: Mapping[str, str] = os.environ) -> None:
        self._name = name
        self._options = options
        self._environment = environment
        arguments_type(name, options.parameters)
        known = {*options.parameters, "operation"}
        for what, url, method in self._endpoints():
            unknown = set(_PLACE.findall(url)) - known
            if unknown:
                raise InvalidRequestError(f"the {what} of {name} names {sorted(unknown)}, which are no parameters")
            check_url(_PLACE.sub("x", url), what=f"the {what} of {name}")
            if _PLACE.search(urlsplit(url).netloc):
                raise InvalidRequestError(f"the {what} of {name} lets an argument choose the host")
            if method not in _METHODS:
                raise InvalidRequestError(f"the {what} of {name} has the method {method!r}", resolution="use POST")
        if options.timeout_s <= 0 or options.settle_s < 0:
            raise InvalidRequestError(f"times of {name} are to be above 0")
        self._headers()

    def _endpoints(self) -> list[tuple[str, str, str]]:
        options = self._options
        each = [("url", options.url, options.method)]
        each += [("ask", options.ask.url, options.ask.method)] if options.ask is not None else []
        each += [("undo", options.undo.url, options.undo.method)] if options.undo is not None else []
        return each

    @property
    def effect(self) -> Effect:
        """See the table of the module."""
        if self._options.ask is not None:
            return Effect.ASKED
        if self._options.keys:
            return Effect.DEDUPLICATED
        return Effect.COMPENSATED if self._options.undo is not None else Effect.ONCE

    # -- the port ------------------------------------------------------------------------------------------------------

    async def send(self, request: OutsideRequest) -> OutsideAnswer | ToolFailed:
        """See the port."""
        for name in _PLACE.findall(self._options.url):
            if _written(request.arguments.get(name, request.operation_id)) in _LEAVES_ITS_PLACE:
                return ToolFailed(code=InvalidRequestError.code, brief=f"{name} cannot be empty, '.' or '..' in a path")
        is_unknown = False
        waits = list(self._options.backoff_s)
        while True:
            try:
                return self._judged(request, await self._exchange(self._sending(request)))
            except (OutsideUnavailableError, UnknownOutcomeError) as error:
                is_unknown = is_unknown or isinstance(error, UnknownOutcomeError)
                may_try = self._options.keys or not is_unknown
                if not waits or not may_try:
                    if is_unknown and not isinstance(error, UnknownOutcomeError):
                        brief = f"{self._name}: an earlier attempt may have happened"
                        raise UnknownOutcomeError(brief, detail=str(error)) from error
                    raise
                await anyio.sleep(_wait_s(error, waits.pop(0)))

    async def ask(self, request: OutsideRequest) -> OutsideAnswer | ToolFailed | None:
        """See the port."""
        if self._options.ask is None:
            raise CapabilityMissingError(f"{self._name} cannot be asked", resolution="say where, as `ask`")
        if not self._options.keys:
            await anyio.sleep(self._options.settle_s)
        reply = await self._patiently(self._asking(request, self._options.ask), final=(404,))
        return None if reply.status == 404 else _answer(reply)

    async def compensate(self, request: OutsideRequest) -> None:
        """See the port."""
        if self._options.undo is None:
            raise CapabilityMissingError(f"{self._name} cannot undo", resolution="say where, as `undo`")
        if not self._options.keys:
            await anyio.sleep(self._options.settle_s)
        await self._patiently(self._asking(request, self._options.undo), final=(404, 410))

    # -- requests ------------------------------------------------------------------------------------------------------

    def _headers(self) -> dict[str, str]:
        headers = {"accept": "application/json"}
        for name, template in self._options.headers.items():
            value = _VARIABLE.sub(self._variable, template)
            if not (value.isprintable() and value.isascii() and re.fullmatch(r"[A-Za-z0-9-]+", name)):
                # The value may hold a secret, and is not shown.
                raise InvalidRequestError(f"the header {name[:80]!r} of {self._name} is none that can be sent")
            headers[name.lower()] = value
        return headers

    def _variable(self, found: re.Match[str]) -> str:
        value = self._environment.get(found[1])
        if value is None:
            raise InvalidRequestError(
                f"{self._name} needs the variable {found[1]}, which the worker has not",
                resolution="set it in the environment of the worker, and start that again",
            )
        return value

    def _request(self, request: OutsideRequest, url: str, method: str) -> HttpRequest:
        headers = self._headers()
        if self._options.keys:
            headers[self._options.key_header.lower()] = request.operation_id
        if self._options.epoch_header:
            headers[self._options.epoch_header.lower()] = str(request.epoch)
        arguments = dict(request.arguments)
        named = set(_PLACE.findall(url))
        values = {name: _written(arguments.get(name)) for name in named} | {"operation": request.operation_id}
        body = b""
        if method not in ("GET", "DELETE"):
            headers["content-type"] = "application/json"
            sent = {name: value for name, value in arguments.items() if name not in named and value is not None}
            body = msgspec.json.encode(sent)
        filled = _PLACE.sub(lambda found: quote(values[found[1]], safe=""), url)
        return HttpRequest(method=method, url=filled, headers=headers, body=body)

    def _sending(self, request: OutsideRequest) -> HttpRequest:
        return self._request(request, self._options.url, self._options.method)

    def _asking(self, request: OutsideRequest, endpoint: HttpEndpoint) -> HttpRequest:
        return self._request(request, endpoint.url, endpoint.method)

    async def _exchange(self, request: HttpRequest) -> HttpReply:
        return await exchange(request, timeout_s=self._options.timeout_s, limit_bytes=ANSWER_BYTES)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _judged(self, request: OutsideRequest, reply: HttpReply) -> OutsideAnswer | ToolFailed:
        """Return what a reply says of an operation, or raise that it says nothing."""
        self._check_epoch(request, reply)
        if 200 <= reply.status < 300:
            return _answer(reply)
        if reply.status in _LATER or (reply.status == 409 and self._options.keys):
            # 409 with keys: the first request with this key is under way, and its answer will be had later.
            kind = UnknownOutcomeError if reply.status == 409 else OutsideUnavailableError
            raise _told(f"{self._name}: the service answered {reply.status}", reply, kind)
        if 400 <= reply.status < 500 and reply.status != 408:
            return ToolFailed(
                code=REFUSED, brief=f"the service refused it with status {reply.status}", detail=_shown(reply)
            )
        unclear = f"{self._name}: the service answered {reply.status}, which does not say whether it happened"
        raise _told(unclear, reply, UnknownOutcomeError)

    def _check_epoch(self, request: OutsideRequest, reply: HttpReply) -> None:
        if reply.status == 412 and self._options.epoch_header:
            raise WriterFencedError(
                f"{request.operation_id} was sent in epoch {request.epoch}, and the service has seen a later one",
                resolution="end this loop; one worker drives an episode",
            )

    async def _patiently(self, request: HttpRequest, *, final: Sequence[int]) -> HttpReply:
        """Ask until an answer says something; asking and undoing may be done again and again."""
        waits = list(self._options.backoff_s)
        while True:
            error: DsecError
            try:
                reply = await self._exchange(request)
                if 200 <= reply.status < 300 or reply.status in final:
                    return reply
                error = _told(f"{self._name}: the service answered {reply.status} when it was asked", reply)
            except (OutsideUnavailableError, UnknownOutcomeError) as failure:
                error = failure
            if not waits:
                raise OutsideUnavailableError(
                    f"{self._name}: the service does not say what became of an operation",
                    detail=str(error),
                    resolution="the episode asks again when it is resumed",
                ) from error
            await anyio.sleep(_wait_s(error, waits.pop(0)))


def _told(brief: str, reply: HttpReply, kind: type[DsecError] = OutsideUnavailableError) -> DsecError:
    """Return an error that knows when to come again."""
    error = kind(brief, detail=_shown(reply))
    told = reply.headers.get("retry-after", "")
    # A date is not heeded: clocks differ, and the back-off will do.
    error.retry_after_s = float(told) if told.isascii() and told.isdigit() else None
    return error


def _wait_s(error: DsecError, otherwise_s: float) -> float:
    return min(error.retry_after_s, _MAXIMUM_WAIT_S) if error.retry_after_s is not None else otherwise_s


def _answer(reply: HttpReply) -> OutsideAnswer:
    return bounded_answer(reply.body, status=str(reply.status), truncated=reply.truncated)


def _shown(reply: HttpReply) -> str:
    return reply.body[:500].decode(errors="replace")


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
