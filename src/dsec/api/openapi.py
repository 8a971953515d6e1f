"""The OpenAPI 3.1 document, made from the table of routes and the types themselves."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Mapping
from typing import Any

import msgspec

from dsec import __version__
from dsec.api import wire
from dsec.api.episode_routes import EPISODE_ROUTES
from dsec.api.routes import ROUTES, Carry, Route

_REFERENCE = "#/components/schemas/{name}"
_MEDIA = {
    Carry.EVENTS: (wire.JSON_LINES, wire.MSGPACK),
    Carry.OCTETS: (wire.OCTETS,),
    Carry.TAR: (wire.TAR,),
    Carry.VALUE: (wire.JSON, wire.MSGPACK),
}


@functools.cache
def document() -> dict[str, Any]:
    """Return a node's document; it is built once."""
    return _document(ROUTES, "DSec")


@functools.cache
def episode_document() -> dict[str, Any]:
    """Return a worker's document; it is built once."""
    return _document(EPISODE_ROUTES, "DSec episodes")


def _document(routes: Mapping[str, Route], title: str) -> dict[str, Any]:
    kinds = _kinds(routes)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    by_kind = dict(zip(map(repr, kinds), schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in routes.values():
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "peer": {"type": "http", "scheme": "bearer", "description": "A credential of a peer: see peer_hello."},
            },
        },
        "security": [{"token": []}],
    }


def _kinds(routes: Mapping[str, Route]) -> list[Any]:
    """Every type that some route mentions, socket controls included, once each."""
    found: dict[str, Any] = {}
    kinds: list[Any] = [wire.ErrorBody]
    if any(route.result_carry is Carry.SOCKET for route in routes.values()):
        kinds += [wire.ClientControl, wire.ServerControl]
    for route in routes.values():
        kinds += [kind for kind in (route.body, route.result, route.query) if kind is not None]
        kinds += [field.type for field in _query_fields(route)]
    for kind in kinds:
        found.setdefault(repr(kind), kind)
    return list(found.values())


def _query_fields(route: Route) -> tuple[msgspec.structs.FieldInfo, ...]:
    return () if route.query is None else msgspec.structs.fields(route.query)


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": [*_path_parameters(route), *_query_parameters(route, schemas)],
        "responses": {
            str(101 if route.result_carry is Carry.SOCKET else route.status): _success(route, schemas),
            "default": {"description": "An error.", "content": _content(schemas[repr(wire.ErrorBody)], (wire.JSON,))},
        },
    }
    if route.body is not None:
        content = _content(schemas[repr(route.body)], _MEDIA[Carry.VALUE])
        operation["requestBody"] = {"required": _is_required(route.body), "content": content}
    elif route.body_carry is not Carry.VALUE:
        operation["requestBody"] = {"required": True, "content": _binary(route.body_carry)}
    if route.public:
        operation["security"] = []
    elif route.peer:
        operation["security"] = [{"peer": []}]
    return operation


def _is_required(kind: Any) -> bool:
    return isinstance(kind, types.UnionType) or any(field.required for field in msgspec.structs.fields(kind))


def _success(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    if route.result_carry is Carry.SOCKET:
        controls = {"x-client-messages": schemas[repr(wire.ClientControl)]}
        return {"description": "A WebSocket.", **controls, "x-server-messages": schemas[repr(wire.ServerControl)]}
    if route.result_carry in (Carry.OCTETS, Carry.TAR):
        return {"description": "The content.", "content": _binary(route.result_carry)}
    if route.result is None:
        return {"description": "Done."}
    what = "A stream of these." if route.result_carry is Carry.EVENTS else "The result."
    return {"description": what, "content": _content(schemas[repr(route.result)], _MEDIA[route.result_carry])}


def _content(schema: Any, media: tuple[str, ...]) -> dict[str, Any]:
    return {name: {"schema": schema} for name in media}


def _binary(carry: Carry) -> dict[str, Any]:
    return _content({"type": "string", "format": "binary"}, _MEDIA[carry])


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    names = re.findall(r"\{(\w+)\}", route.path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(route: Route, schemas: dict[str, Any]) -> list[dict[str, Any]]:
    parameters = []
    for field in _query_fields(route):
        schema = schemas[repr(field.type)]
        parameters.append({"name": field.encode_name, "in": "query", "required": field.required, "schema": schema})
    if route.filters:
        schema = {"type": "object", "additionalProperties": {"type": "string"}}
        what = "each key is written metadata.KEY=VALUE"
        parameters.append({"name": "metadata", "in": "query", "required": False, "schema": schema, "description": what})
    return parameters
