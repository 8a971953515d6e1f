"""The document covers the routes and is well-formed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from dsec.api.handlers import EVENT_HANDLERS, OCTET_HANDLERS, VALUE_HANDLERS
from dsec.api.openapi import document
from dsec.api.routes import ROUTES, Carry


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_route_is_in_the_document_and_nothing_else() -> None:
    listed = {
        (method, path): operation["operationId"]
        for path, item in document()["paths"].items()
        for method, operation in item.items()
    }
    assert listed == {(route.method.lower(), route.path): route.name for route in ROUTES.values()}


def test_every_route_has_exactly_one_handler() -> None:
    sockets = {route.name for route in ROUTES.values() if route.result_carry is Carry.SOCKET}
    handlers = [*VALUE_HANDLERS, *OCTET_HANDLERS, *EVENT_HANDLERS, *sockets]
    assert sorted(handlers) == sorted(ROUTES)


def test_the_document_is_json_and_every_reference_resolves() -> None:
    text = json.loads(json.dumps(document()))
    assert text["openapi"].startswith("3.1")
    for reference in references(text):
        node: Any = text
        for key in reference.removeprefix("#/").split("/"):
            node = node[key]
        assert isinstance(node, dict)


def test_every_operation_names_its_path_parameters_and_answers() -> None:
    for path, item in document()["paths"].items():
        for operation in item.values():
            declared = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert declared == set(re.findall(r"\{(\w+)\}", path))
            assert "default" in operation["responses"]
            assert len(operation["responses"]) == 2
            assert operation["summary"].endswith(".")


def test_unknown_fields_are_refused_in_the_document_too() -> None:
    assert document()["components"]["schemas"]["CommandRequest"]["additionalProperties"] is False
