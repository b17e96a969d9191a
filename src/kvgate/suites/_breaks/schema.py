"""JSON Schema checks that never fetch: the registry is empty, and a schema that points elsewhere is refused.

jsonschema is imported inside functions: naming suites must not cost its import.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from kvgate.suites._breaks.taxonomy import one_line

_REFS = ("$ref", "$dynamicRef", "$recursiveRef")
_DATA = frozenset({"const", "enum", "default", "examples"})  # values, not schemas
_MAX_ERRORS = 50


class Violation(NamedTuple):
    """One way in which a value does not conform: schema keyword, path in the value, message."""

    keyword: str
    path: str
    message: str

    def __str__(self) -> str:
        return one_line(f"{self.path}: {self.message}")


def schema_problem(schema: Any) -> str:
    """What is wrong with a schema that a person wrote; "" if nothing is. Nothing is fetched."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from referencing.exceptions import Unresolvable

    if not isinstance(schema, dict):
        return "a schema is an object"
    try:
        for key, value in _keywords(schema):
            if key in _REFS and not value.startswith("#"):
                return f"{key} {one_line(value)!r} points outside this schema, and kvgate never fetches one; inline it"
            if key == "pattern":
                re.compile(value)
        validator_for(schema).check_schema(schema)
        probes: tuple[Any, ...] = ({}, [], "", 0)
        for probe in probes:
            next(_iter_errors(schema, probe), None)
    except SchemaError as e:
        return one_line(f"not a JSON Schema: {e.json_path}: {e.message}")
    except Unresolvable as e:
        return one_line(f"reference {e.ref!r} is not in this schema")
    except RecursionError:
        return "refers to itself without end"
    except re.error as e:
        return one_line(f"bad pattern: {e}")
    return ""


def violations(schema: Mapping[str, Any], value: Any) -> list[Violation]:
    """Where a value does not conform, outermost first; at most 50."""
    from referencing.exceptions import Unresolvable

    try:
        found = [
            Violation(str(e.validator), e.json_path, e.message)
            for e in islice(_iter_errors(schema, value), _MAX_ERRORS)
        ]
    except RecursionError:
        return [Violation("depth", "$", "too deep to validate")]
    except Unresolvable as e:
        return [Violation("$ref", "$", f"reference {e.ref!r} cannot be resolved")]
    return sorted(found, key=lambda v: (v.path.count(".") + v.path.count("["), v.path, v.keyword))


def _iter_errors(schema: Mapping[str, Any], value: Any) -> Iterator[Any]:
    return iter(_validator(_Key(schema)).iter_errors(value))


class _Key:
    """A schema as a cache key: by identity, holding it alive so that the identity stays its own."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema

    def __hash__(self) -> int:
        return id(self.schema)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other.schema is self.schema


@lru_cache(maxsize=256)
def _validator(key: _Key) -> Any:
    from jsonschema.validators import validator_for
    from referencing import Registry

    return validator_for(key.schema)(key.schema, registry=Registry())


def _keywords(schema: Any) -> Iterator[tuple[str, str]]:
    """Every (key, text value) that may be a schema keyword; values under const, enum, ... are data."""
    todo: list[Any] = [schema]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            for key, value in node.items():
                if key == "patternProperties" and isinstance(value, dict):
                    yield from (("pattern", name) for name in value)
                if isinstance(value, str):
                    yield key, value
                elif key not in _DATA:
                    todo.append(value)
        elif isinstance(node, list):
            todo.extend(node)
