"""The OpenAPI document: it names every call, every reference in it leads somewhere, and the page has all it needs."""

import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import jsonschema_rs
import pytest

from penstock.gateways.http import tarantoolmq, v1
from penstock.gateways.http.server import app
from penstock.gateways.http.server.routing import ApiRoute
from tests.support.http_node import HttpNode


@pytest.fixture
async def document(node: HttpNode) -> dict[str, Any]:
    return (await node.client.get("/openapi.json")).json()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def nodes(value: Any) -> Iterator[Any]:
    yield value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        yield from nodes(part)


def test_every_module_with_calls_is_served() -> None:
    names = [
        f"{api.__name__}.{found.name}" for api in (tarantoolmq, v1) for found in pkgutil.iter_modules(api.__path__)
    ]
    declaring = {name for name in names if hasattr(import_module(name), "CALLS")}
    assert declaring <= {resource.__name__ for resource in app.RESOURCES}


async def test_every_route_is_in_the_document(node: HttpNode, document: dict[str, Any]) -> None:
    told = {(method.upper(), path) for path, method, _ in operations(document)}
    assert told == {(known.method, known.path_format) for known in node.http.routes if isinstance(known, ApiRoute)}
    # Beside the files of the page.
    assert {known.path for known in node.http.routes if not isinstance(known, ApiRoute)} == {
        "/docs/docs.css",
        "/docs/docs.js",
    }


async def test_every_call_has_an_id_of_its_own_and_says_what_it_does(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids))
    for path, method, operation in operations(document):
        assert operation["summary"], (method, path)
        assert operation["tags"][0] in {tag["name"] for tag in document["tags"]}
        assert "default" in operation["responses"]
        assert set(re.findall(r"\{(\w+)\}", path)) == {
            parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"
        }


async def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    references = {value["$ref"] for value in nodes(document) if isinstance(value, dict) and "$ref" in value}
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references <= known


async def test_every_schema_is_a_schema(document: dict[str, Any]) -> None:
    for schema in document["components"]["schemas"].values():
        assert jsonschema_rs.meta.is_valid(schema)


async def test_errors_have_the_shape_of_their_api(document: dict[str, Any]) -> None:
    for path, _, operation in operations(document):
        shape = operation["responses"]["default"]["content"]["application/json"]["schema"]["$ref"].split("/")[-1]
        assert shape == ("CodedError" if path.startswith("/v1") else "Error")


async def test_a_field_whose_absence_has_a_text_of_its_own_is_required(document: dict[str, Any]) -> None:
    schema = document["paths"]["/topics"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["name"]
    assert schema["properties"]["name"]["type"] == "string"


async def test_the_page_needs_nothing_from_elsewhere(node: HttpNode) -> None:
    page = await node.client.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"].startswith("default-src 'self'")
    linked = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert set(linked) == {"/docs/docs.css", "/docs/docs.js", "/openapi.json", "data:,"}
    for path in ("/docs/docs.css", "/docs/docs.js"):
        answer = await node.client.get(path)
        assert answer.status_code == 200
        assert not re.search(r"https?://", answer.text)
