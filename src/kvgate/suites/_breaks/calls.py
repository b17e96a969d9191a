"""Tool calls: is there one, to a tool that exists, with arguments that conform?  One check, `calls`.

Without an expectation in the file only what the base does says whether a call was due; that is in relative.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.suites._breaks.answer import Answer, Call
from kvgate.suites._breaks.expect import Expect, ExpectedCall
from kvgate.suites._breaks.json_answer import MAX_DEPTH, loads
from kvgate.suites._breaks.json_scan import scan
from kvgate.suites._breaks.schema import violations
from kvgate.suites._breaks.taxonomy import Flag, State, one_line

#: jsonschema keyword -> class; anything else is a schema_violation.
_CLASS = {
    "required": "missing_required",
    "additionalProperties": "unexpected_arg",
    "type": "type_mismatch",
    "enum": "enum_violation",
    "const": "enum_violation",
}


def same_name(a: str, b: str) -> bool:
    """Tool names are equal up to `.`, `-` and `_`: engines and templates rewrite them."""
    return _plain(a) == _plain(b)


def check_calls(answer: Answer, expect: Expect) -> tuple[State, list[Flag]]:
    """All that is wrong with the calls of one answer. A call that the limit cut short is UNKNOWN, not wrong."""
    tools = expect.tools or {}
    if not answer.calls:
        if expect.call != "required":
            return State.OK, []
        if answer.cut:
            return State.UNKNOWN, []
        return State.BAD, [_flag("missing_call", "no tool call")]
    if expect.call == "forbidden":
        return State.BAD, [_flag("spurious_call", _names(answer.calls))]
    flags: list[Flag] = []
    unfinished = False
    for i, call in enumerate(answer.calls):
        last_cut = answer.cut and i == len(answer.calls) - 1
        found, open_end = _check_one(call, tools, last_cut)
        flags += found
        unfinished |= open_end
    if expect.calls and not unfinished:
        flags += _check_expected(answer.calls, expect.calls)
    if flags:
        return State.BAD, flags
    return (State.UNKNOWN if unfinished else State.OK), []


def arguments_of(call: Call) -> dict[str, Any] | None:
    """The arguments as an object; None if they are not one."""
    if scan(call.arguments).depth > MAX_DEPTH:
        return None
    try:
        value = loads(call.arguments)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _check_one(call: Call, tools: Mapping[str, Mapping[str, Any]], cut: bool) -> tuple[list[Flag], bool]:
    """Flags of one call, and whether it was cut while still fine."""
    name = next((t for t in tools if same_name(t, call.name)), None)
    if name is None:
        return [
            _flag("unknown_tool", f"{one_line(call.name, 40)!r} is not one of {', '.join(tools) or 'no tools'}")
        ], False
    arguments = arguments_of(call)
    if arguments is None:
        if cut and scan(call.arguments).prefix:
            return [], True
        return [_flag("args_not_json", call.arguments)], False
    schema = tools[name]
    flags = [_flag(_CLASS.get(v.keyword, "schema_violation"), f"{name}: {v}") for v in violations(schema, arguments)]
    if "additionalProperties" not in schema and "patternProperties" not in schema and "properties" in schema:
        # Silence is not consent: an argument that the tool does not name makes most callees fail.
        extra = sorted(set(arguments) - set(schema["properties"]))
        flags += [_flag("unexpected_arg", f"{name}: {key}") for key in extra]
    return flags, False


def _check_expected(calls: Sequence[Call], expected: Sequence[ExpectedCall]) -> list[Flag]:
    """Calls against the right ones, matched by name in any order."""
    left = list(calls)
    flags: list[Flag] = []
    for want in expected:
        same = [c for c in left if same_name(c.name, want.name)]
        if not same:
            kind = "wrong_tool" if len(calls) >= len(expected) else "wrong_count"
            flags.append(_flag(kind, f"{want.name} was due, got {_names(calls)}"))
            continue
        best = min(same, key=lambda c: len(_drift(c, want)))
        left.remove(best)
        flags += [_flag("value_drift", f"{want.name}: {d}") for d in _drift(best, want)]
    if len(calls) > len(expected):
        flags.append(_flag("wrong_count", f"{len(calls)} calls, {len(expected)} are right"))
    return flags


def _drift(call: Call, want: ExpectedCall) -> list[str]:
    got = arguments_of(call) or {}
    return [
        f"{key} is {one_line(str(got.get(key)), 40)!r}"
        for key, accepted in want.arguments.items()
        if not any(_same_value(got.get(key), value) for value in accepted)
    ]


def _same_value(a: Any, b: Any) -> bool:
    if isinstance(a, str) and isinstance(b, str):
        return a.strip().casefold() == b.strip().casefold()
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def _plain(name: str) -> str:
    return name.replace(".", "_").replace("-", "_").casefold()


def _names(calls: Sequence[Call]) -> str:
    return ", ".join(one_line(c.name, 40) for c in calls[:5])


def _flag(cls: str, detail: str) -> Flag:
    return Flag(cls, "calls", one_line(detail))
