"""What a golden prompt asks of its answer. Made from a case's body; everything is optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ExpectedCall:
    """One call that is right: the tool, and per named argument the values that count as right."""

    name: str
    arguments: Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Expect:
    """Expectations of one prompt.

    Attributes:
        prompt: the text of all messages; what it holds itself is no leak when it comes back.
        json: the answer has to be JSON. schema: and conform to this.
        tools: name -> parameter schema. call: "required", "forbidden" or "" (then the base is the measure).
        calls: the right calls, in any order. code: "python" or "".
        numbers: numbers, and contains: texts that the answer has to hold.
        refuse: True if refusing is the right answer.
        lowered_limit: token limit, where a preset set it below the prompt's own.
    """

    prompt: str = ""
    json: bool = False
    schema: Mapping[str, Any] | None = None
    tools: Mapping[str, Mapping[str, Any]] | None = None
    call: str = ""
    calls: tuple[ExpectedCall, ...] = ()
    code: str = ""
    numbers: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()
    refuse: bool = False
    lowered_limit: int | None = None

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Expect:
        """The expectations in the body of a golden case (made by the golden reader, hence of known shape)."""
        checks = body.get("checks", {})
        calls = tuple(ExpectedCall(c["name"], c.get("arguments", {})) for c in checks.get("calls", ()))
        tools = {t["function"]["name"]: t["function"].get("parameters") or {} for t in body.get("tools", ())}
        return cls(
            prompt="\n".join(_text(m) for m in body.get("messages", ())),
            json=bool(checks.get("json")),
            schema=checks.get("schema"),
            tools=tools or None,
            call="required" if calls else checks.get("call", ""),
            calls=calls,
            code=checks.get("code", ""),
            numbers=tuple(str(n) for n in checks.get("numbers", ())),
            contains=tuple(checks.get("contains", ())),
            refuse=bool(checks.get("refuse")),
            lowered_limit=body.get("max_tokens") if body.get("limit_lowered") else None,
        )


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content)
