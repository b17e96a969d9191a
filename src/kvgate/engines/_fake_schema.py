"""An instance of a JSON schema, deterministic in a key: what the fake engine answers where JSON is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.engines._fake_script import unit

_MAX_DEPTH = 8
_FORMATS = {
    "date": "2026-03-14",
    "date-time": "2026-03-14T09:26:53Z",
    "time": "09:26:53Z",
    "email": "ann@example.org",
    "uri": "https://example.org/",
    "uuid": "3f2b8c1e-5d4a-4f6b-9c7d-0123456789ab",
}


def instance(schema: Any, words: Sequence[str], key: object) -> Any:
    """A small value that conforms, with strings from `words`. Required properties only, or all if none is required.

    Understands type, enum, const, properties, items, bounds, formats, local `$ref`, allOf, anyOf and oneOf.
    """
    return _value(schema, schema, words or ["ok"], (key,), 0)


def _value(schema: Any, root: Any, words: Sequence[str], key: tuple[object, ...], depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return None
    schema = _flat(schema, root)
    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][int(unit(key, "enum") * len(schema["enum"]))]
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    if kind is None:
        kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
    if kind == "object":
        properties = schema.get("properties") or {}
        names = schema.get("required") or list(properties)
        return {n: _value(properties.get(n, {}), root, words, (*key, n), depth + 1) for n in names}
    if kind == "array":
        n_items = max(int(schema.get("minItems", 1)), 1)
        return [_value(schema.get("items", {}), root, words, (*key, i), depth + 1) for i in range(n_items)]
    if kind in ("integer", "number"):
        return _number(schema, kind == "integer", key)
    if kind == "boolean":
        return unit(key, "bool") < 0.5
    return None if kind == "null" else _string(schema, words, key)


def _flat(schema: Mapping[str, Any], root: Any, hops: int = 0) -> Mapping[str, Any]:
    """`$ref` followed, allOf merged, the first of anyOf and oneOf taken."""
    if hops > _MAX_DEPTH:
        return {}
    out = dict(schema)
    ref = out.pop("$ref", None)
    parts: list[Any] = [_resolve(ref, root)] if isinstance(ref, str) else []
    parts += out.pop("allOf", [])
    for choice in ("anyOf", "oneOf"):
        parts += out.pop(choice, [])[:1]
    for part in parts:
        if isinstance(part, Mapping):
            merged = _flat(part, root, hops + 1)
            properties = {**out.get("properties", {}), **merged.get("properties", {})}
            out = {**out, **merged} | ({"properties": properties} if properties else {})
    return out


def _resolve(ref: str, root: Any) -> Any:
    node = root
    for step in ref.removeprefix("#/").split("/") if ref.startswith("#/") else []:
        node = node.get(step) if isinstance(node, Mapping) else None
    return node


def _number(schema: Mapping[str, Any], whole: bool, key: tuple[object, ...]) -> int | float:
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + (1 if "exclusiveMinimum" in schema else 0))
    high = schema.get("maximum", schema.get("exclusiveMaximum", low + 50) - (1 if "exclusiveMaximum" in schema else 0))
    step = schema.get("multipleOf", 1 if whole else 0.5)
    n_steps = max(int((high - low) / step), 0)
    first = -(-low // step) * step
    value = min(first + step * int(unit(key, "n") * (n_steps + 1)), high)
    return int(value) if whole else float(value)


def _string(schema: Mapping[str, Any], words: Sequence[str], key: tuple[object, ...]) -> str:
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    text = words[int(unit(key, "word") * len(words))]
    least, most = int(schema.get("minLength", 1)), int(schema.get("maxLength", 24))
    while len(text) < least:
        text += " " + text
    return text[:most]
