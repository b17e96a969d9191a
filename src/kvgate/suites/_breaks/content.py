"""What the words say: code that parses, numbers and texts that have to be there, a refusal where none was due."""

from __future__ import annotations

import ast
import re
from decimal import Decimal, InvalidOperation

from kvgate.suites._breaks.answer import Answer
from kvgate.suites._breaks.taxonomy import Flag, State, one_line

_MAX_CODE_CHARS = 20_000
_FENCE = re.compile(r"```[ \t]*([a-zA-Z0-9_+-]*)[^\n]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.,])[-−]?\d+(?:[.,'\u00a0\u202f]\d+)*")
#: Openings of refusals; they stand at the start of an answer, and later only as part of a story.
_REFUSAL = re.compile(
    r"\b(?:i(?:'m| am)? (?:sorry|afraid)\b.{0,40}\b(?:can(?:no|')t|cannot|unable|not able)"
    r"|i (?:can(?:no|')t|cannot|won't) (?:help|assist|provide|answer|fulfil|do that|comply|create|write|generate)"
    r"|i(?:'m| am) (?:unable|not able) to|as an ai\b.{0,60}\b(?:can(?:no|')t|cannot|unable)"
    r"|je ne peux pas|je suis désolé|ich kann (?:dabei |dir |ihnen )?(?:leider )?nicht|es tut mir leid"
    r"|lo siento|no puedo (?:ayudar|proporcionar|responder))"
    r"|抱歉|对不起|我无法|我不能|申し訳(?:ありません|ございません)|お答えできません|죄송",
    re.IGNORECASE | re.DOTALL,
)
_REFUSAL_CHARS = 160


def check_code(answer: Answer) -> tuple[State, list[Flag]]:
    """Python in the answer parses (`ast.parse`; nothing runs). The first fenced block, else the whole text.

    Code that the limit cut short is UNKNOWN.
    """
    text = answer.visible
    blocks = [(lang.lower(), code) for lang, code in _FENCE.findall(text[: 2 * _MAX_CODE_CHARS])]
    python = [code for lang, code in blocks if lang in ("", "python", "py", "python3")]
    code = python[0] if python else text
    last_is_open = bool(python) and text.count("```") % 2 == 1 and len(python) == 1
    if answer.cut and (not python or last_is_open):
        return State.UNKNOWN, []
    problem = _syntax_problem(code)
    if not problem:
        return State.OK, []
    return State.BAD, [Flag("code_unparsable", "code", one_line(problem))]


def check_numbers(answer: Answer, numbers: tuple[str, ...]) -> tuple[State, list[Flag]]:
    """Every expected number is in the answer, in any usual spelling (1,234.5 and 1.234,5 and 1234.5)."""
    seen = values_in(answer.visible)
    return _all_there(answer, "numbers", "number_drift", [n for n in numbers if Decimal(n) not in seen])


def check_contains(answer: Answer, texts: tuple[str, ...]) -> tuple[State, list[Flag]]:
    """Every expected text is in the answer; case and runs of white space do not count."""
    there = " ".join(answer.visible.casefold().split())
    missing = [t for t in texts if " ".join(t.casefold().split()) not in there]
    return _all_there(answer, "contains", "missing_text", missing)


def check_refusal(answer: Answer, refuse: bool) -> tuple[State, list[Flag]]:
    """The answer refuses although it should not, or the reverse. A call is no refusal."""
    refused = bool(_REFUSAL.search(answer.visible.lstrip()[:_REFUSAL_CHARS].replace("’", "'"))) and not answer.calls
    if refused == refuse:
        return State.OK, []
    if refuse and answer.cut and not answer.visible.strip():
        return State.UNKNOWN, []
    detail = one_line(answer.visible.strip(), 60)
    return State.BAD, [Flag("refusal_flip", "refusal", f"{'refuses' if refused else 'does not refuse'}: {detail!r}")]


def numbers_in(text: str) -> list[str]:
    """Numbers as written, in order."""
    return [m.replace("−", "-") for m in _NUMBER.findall(text[:_MAX_CODE_CHARS])]


def values_in(text: str) -> set[Decimal]:
    """Every value that a number in the text can mean: 1,234 is 1234 and 1.234."""
    values: set[Decimal] = set()
    for number in numbers_in(text):
        plain = re.sub(r"['\u00a0\u202f]", "", number)
        for spelling in {plain.replace(",", ""), plain.replace(".", "").replace(",", "."), plain}:
            try:
                values.add(Decimal(spelling))
            except InvalidOperation:
                continue
    return values


def _all_there(answer: Answer, check: str, cls: str, missing: list[str]) -> tuple[State, list[Flag]]:
    if not missing:
        return State.OK, []
    if answer.cut:
        return State.UNKNOWN, []
    return State.BAD, [Flag(cls, check, one_line(f"not in the answer: {', '.join(missing)}"))]


def _syntax_problem(code: str) -> str:
    if not code.strip():
        return "no code"
    if len(code) > _MAX_CODE_CHARS:
        return f"over {_MAX_CODE_CHARS} characters"
    try:
        ast.parse(code)
    except SyntaxError as e:
        return f"line {e.lineno}: {e.msg}"
    except (ValueError, RecursionError, MemoryError) as e:
        # NUL characters; nesting that the parser gives up on.
        return f"{type(e).__name__}: {e}"
    return ""
