"""All checks of one answer: absolute flags, in the order of the taxonomy. Pure; safe on hostile text."""

from __future__ import annotations

from kvgate.suites._breaks.alive import check_alive
from kvgate.suites._breaks.answer import Answer
from kvgate.suites._breaks.calls import check_calls
from kvgate.suites._breaks.content import check_code, check_contains, check_numbers, check_refusal
from kvgate.suites._breaks.expect import Expect
from kvgate.suites._breaks.json_answer import read_json_answer
from kvgate.suites._breaks.loops import check_loop
from kvgate.suites._breaks.markup import check_control, check_think, check_tool_markup
from kvgate.suites._breaks.schema import violations
from kvgate.suites._breaks.scripts import check_encoding
from kvgate.suites._breaks.taxonomy import Flag, Inspection, State, in_order


def inspect(answer: Answer, expect: Expect) -> Inspection:
    """Ask every question that applies to the prompt."""
    found: dict[str, tuple[State, list[Flag]]] = {
        "alive": check_alive(answer),
        "loop": check_loop(answer),
        "think": check_think(answer),
        "control": check_control(answer, expect.prompt),
        "tool_markup": check_tool_markup(answer, expect.prompt),
        "encoding": check_encoding(answer, expect.prompt),
        "refusal": check_refusal(answer, expect.refuse),
    }
    if expect.json:
        found |= _json(answer, expect)
    if expect.tools is not None or answer.calls:
        found["calls"] = check_calls(answer, expect)
    if expect.code:
        found["code"] = check_code(answer)
    if expect.numbers:
        found["numbers"] = check_numbers(answer, expect.numbers)
    if expect.contains:
        found["contains"] = check_contains(answer, expect.contains)
    flags = [flag for _, some in found.values() for flag in some]
    return Inspection({check: state for check, (state, _) in found.items()}, in_order(flags))


def _json(answer: Answer, expect: Expect) -> dict[str, tuple[State, list[Flag]]]:
    """The three nested questions; what does not parse fails the stricter ones too, without flags of their own."""
    reading = read_json_answer(answer)
    parses = [f for f in reading.flags if f.check == "json_parses"]
    strict = [f for f in reading.flags if f.check == "json_strict"]
    found = {"json_parses": (reading.parses, parses), "json_strict": (reading.strict, strict)}
    if expect.schema is None:
        return found
    if not reading.parsed:
        found["json_schema"] = (State.BAD if reading.parses is State.BAD else State.UNKNOWN, [])
        return found
    wrong = violations(expect.schema, reading.value)
    flags = [Flag("schema_violation", "json_schema", str(v)) for v in wrong]
    found["json_schema"] = (State.BAD if wrong else State.OK, flags)
    return found
