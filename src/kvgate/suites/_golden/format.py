"""One line of a golden file: an OpenAI-format chat and what its answer must satisfy. Unknown keys are errors.

    {"id": "invoice-1", "messages": [{"role": "user", "content": "..."}], "category": "json", "tags": ["critical"],
     "max_tokens": 200, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {...}}},
     "tools": [...], "tool_choice": "auto", "schema": {...}, "checks": {...}}

Sent to the engine: messages, tools, tool_choice, response_format, max_tokens. Only checked: `schema` (the answer must
conform although the engine is not told, which guided decoding would hide) and `checks`. Tag `critical`: any confirmed
break of this prompt fails the candidate. Tag `smoke`: taken first where a preset limits the number of prompts.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from kvgate.suites._breaks.schema import schema_problem

MAX_MESSAGES = 200


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TextPart(_Strict):
    """A part of a message. Images and audio are not supported."""

    type: Literal["text"]
    text: str


class CalledFunction(_Strict):
    """What an earlier turn called; `arguments` is JSON as text, as servers return it."""

    name: str
    arguments: str


class CalledTool(_Strict):
    """One tool call of an earlier assistant turn."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(_Strict):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | tuple[TextPart, ...] | None = None
    name: str | None = None
    tool_calls: tuple[CalledTool, ...] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if not self.content and not self.tool_calls:
            raise ValueError(f"a {self.role} message without content")
        return self


class Function(_Strict):
    """A tool's declaration; `parameters` is a JSON Schema without remote references."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    strict: bool | None = None

    @field_validator("parameters")
    @classmethod
    def _good_schema(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _checked(value)


class Tool(_Strict):
    """A tool that the model may call."""

    type: Literal["function"] = "function"
    function: Function


class NamedSchema(_Strict):
    """The schema of a response format."""

    name: str
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None
    description: str | None = None

    @field_validator("schema_")
    @classmethod
    def _good_schema(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _checked(value)


class ResponseFormat(_Strict):
    """OpenAI's response_format."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with type json_schema, and only with it")
        return self


class RightCall(_Strict):
    """A call that is due. `arguments`: per argument the values that count as right; others are free."""

    name: str
    arguments: dict[str, list[Any]] = Field(default_factory=dict)


class Checks(_Strict):
    """What the answer must satisfy, beyond what holds for every answer.

    json: it is one JSON value (implied by `schema` and by a JSON response format). code: it holds Python that parses.
    call: a tool call is "required" or "forbidden". calls: exactly these are due, in any order. numbers, contains: the
    answer holds these. refuse: refusing is the right answer.
    """

    as_json: bool = Field(default=False, alias="json")
    code: Literal["python"] | None = None
    call: Literal["required", "forbidden"] | None = None
    calls: tuple[RightCall, ...] = ()
    numbers: tuple[int | float | str, ...] = ()
    contains: tuple[str, ...] = ()
    refuse: bool = False

    @field_validator("numbers")
    @classmethod
    def _are_numbers(cls, value: tuple[int | float | str, ...]) -> tuple[int | float | str, ...]:
        for n in value:
            try:
                finite = Decimal(str(n)).is_finite()
            except InvalidOperation:
                finite = False
            if not finite:
                raise ValueError(f"{str(n)[:40]!r} is not a number")
        return value


class Prompt(_Strict):
    """One line of a golden file; the module's docstring shows the format."""

    id: str = Field(min_length=1, max_length=100)
    messages: tuple[Message, ...] = Field(min_length=1, max_length=MAX_MESSAGES)
    tags: tuple[str, ...] = ()
    category: str = Field(default="", pattern=r"^[A-Za-z0-9_ -]{0,40}$")
    max_tokens: int | None = Field(default=None, ge=1, le=100_000)
    tools: tuple[Tool, ...] = ()
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    checks: Checks = Checks()

    @field_validator("schema_")
    @classmethod
    def _good_schema(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if value is None else _checked(value)

    @model_validator(mode="after")
    def _hangs_together(self) -> Prompt:
        if self.messages[-1].role not in ("user", "tool"):
            raise ValueError(f"the last message is from {self.messages[-1].role}; it must be from user or tool")
        names = [t.function.name for t in self.tools]
        if len(set(names)) != len(names):
            raise ValueError("two tools have one name")
        unknown = [c.name for c in self.checks.calls if c.name not in names]
        if unknown:
            raise ValueError(f"checks.calls names {unknown[0]!r}, which is not one of the tools")
        if not self.tools and (self.tool_choice is not None or self.checks.call == "required"):
            raise ValueError("tool_choice and a required call need tools")
        if self.checks.calls and self.checks.call == "forbidden":
            raise ValueError("checks.calls and call forbidden exclude each other")
        return self

    def answer_schema(self) -> dict[str, Any] | None:
        """The schema that the answer must conform to, if any."""
        if self.schema_ is not None:
            return self.schema_
        if self.response_format is None or self.response_format.type == "text":
            return None
        named = self.response_format.json_schema
        return named.schema_ if named is not None else {"type": "object"}


def _checked(schema: dict[str, Any]) -> dict[str, Any]:
    problem = schema_problem(schema)
    if problem:
        raise ValueError(f"schema: {problem}")
    return schema
