"""JSON Schemas that people write: checked without a network, refused with a reason."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from kvgate.suites._breaks.schema import schema_problem, violations


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to open a connection fails the test."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a schema check opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


BAD: list[tuple[Any, str, str]] = [
    ({"$ref": "https://example.org/person.json"}, "never fetches", "remote"),
    ({"properties": {"a": {"items": {"$ref": "other.json#/x"}}}}, "never fetches", "another file, deep inside"),
    ({"$dynamicRef": "http://example.org/"}, "never fetches", "the other kind of reference"),
    ({"$ref": "#/$defs/nobody"}, "not in this schema", "dangling"),
    ({"$ref": "#"}, "without end", "itself"),
    ({"type": "strnig"}, "not a JSON Schema", "no such type"),
    ({"required": "name"}, "not a JSON Schema", "a text instead of a list"),
    ({"pattern": "("}, "bad pattern", "a pattern that is no regular expression"),
    ({"patternProperties": {"[": {}}}, "bad pattern", "the same in a key"),
    ([], "a schema is an object", "a list"),
]


@pytest.mark.parametrize(("schema", "says", "why"), BAD, ids=[b[2] for b in BAD])
def test_bad_schemas_are_named(schema: Any, says: str, why: str) -> None:
    """The reason says what is wrong."""
    assert says in schema_problem(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
        {"$id": "https://example.org/x", "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"},
        {"const": {"$ref": "https://example.org/data-not-schema"}},
        {"properties": {"$ref": {"type": "string"}, "pattern": {"type": "string"}}},
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
    ],
)
def test_good_schemas_pass(schema: Any) -> None:
    """Local references, ids, data under const and properties with unlucky names are fine."""
    assert schema_problem(schema) == ""


def test_a_remote_reference_is_a_violation_and_fetches_nothing() -> None:
    """Even a schema that was not checked before is not followed out of its own text."""
    found = violations({"properties": {"a": {"$ref": "https://example.org/a.json"}}}, {"a": 1})

    assert [v.keyword for v in found] == ["$ref"]


def test_a_value_too_deep_for_the_validator_is_a_violation() -> None:
    """Recursion in the validator is caught."""
    value: dict[str, Any] = {}
    for _ in range(5000):
        value = {"a": value}

    assert violations({"additionalProperties": {"$ref": "#"}}, value)[0].message == "too deep to validate"


def test_violations_come_outermost_first() -> None:
    """The path nearest to the root is the one to report."""
    schema = {"properties": {"a": {"properties": {"b": {"type": "integer"}}}}, "required": ["z"]}

    assert [v.path for v in violations(schema, {"a": {"b": "x"}})] == ["$", "$.a.b"]
