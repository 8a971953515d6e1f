"""A face: a table of routes with the handlers behind them. A server has one, its application serves any."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from dsec.api.handlers import EVENT_HANDLERS, OCTET_HANDLERS, SHORT_HANDLERS, VALUE_HANDLERS, Call, filter_of
from dsec.api.routes import ROUTES, Route


@dataclass(frozen=True, slots=True, kw_only=True)
class Face:
    """What one server offers.

    Attributes:
        routes: by name.
        values, events, octets: by the route's name, what answers it; see `dsec.api.handlers`.
        filter_of: reads the query of a route that filters a listing.
        shorts: by the route's name, what answers it at once (`dsec.api.short`), beside `values`.
    """

    routes: Mapping[str, Route]
    values: Mapping[str, Callable[[Call], Awaitable[object]]]
    events: Mapping[str, Callable[[Call], AbstractAsyncContextManager[AsyncIterator[object]]]]
    octets: Mapping[str, Callable[[Call], AsyncIterator[bytes]]]
    filter_of: Callable[[list[tuple[str, str]]], Any]
    shorts: Mapping[str, Callable[[Call], object]] = field(default_factory=dict)


SANDBOXES = Face(
    routes=ROUTES,
    values=VALUE_HANDLERS,
    events=EVENT_HANDLERS,
    octets=OCTET_HANDLERS,
    filter_of=filter_of,
    shorts=SHORT_HANDLERS,
)
"""A node's."""
