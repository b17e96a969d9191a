"""One answer as the checks read it: text, tool calls, finish reason. Built from a Raw's body; trusts nothing in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

#: Longer answers are cut here before any check: with a token limit only a broken server sends more.
MAX_CHARS = 200_000

_THINK = re.compile(r"\A\s*(?:<think>)?.*?</think>\s*", re.DOTALL)


@dataclass(frozen=True)
class Call:
    """One tool call. `arguments` is the text the server returned, or the JSON of the object it returned instead."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Answer:
    """Content, calls and how it ended.

    Attributes:
        text: content as the server gave it, at most MAX_CHARS. oversized: there was more.
        tokens: generated tokens by the server's count, None if it gives none.
        cut: it ended at the token limit, so that its end says nothing.
    """

    text: str
    calls: tuple[Call, ...] = ()
    finish: str | None = None
    oversized: bool = False
    tokens: int | None = None

    @property
    def cut(self) -> bool:
        return self.finish == "length" or self.oversized

    @cached_property
    def visible(self) -> str:
        """The text without a leading, closed think block; templates that open it leave only `</think>` behind."""
        return _THINK.sub("", self.text, count=1) if "</think>" in self.text else self.text

    @classmethod
    def from_body(cls, body: Mapping[str, Any] | None) -> Answer:
        """The answer in a Raw's body; what is missing or of a wrong type is empty."""
        body = body or {}
        text = body.get("text")
        text = text if isinstance(text, str) else ""
        finish = body.get("finish_reason")
        calls = body.get("tool_calls")
        return cls(
            text[:MAX_CHARS],
            tuple(_call(c) for c in calls) if isinstance(calls, list | tuple) else (),
            finish if isinstance(finish, str) else None,
            len(text) > MAX_CHARS,
            _tokens(body.get("usage")),
        )


def _tokens(usage: Any) -> int | None:
    n = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    return n if isinstance(n, int) else None


def _call(item: Any) -> Call:
    function = item.get("function", item) if isinstance(item, Mapping) else {}
    function = function if isinstance(function, Mapping) else {}
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(arguments, str):
        # The OpenAI format says text; some servers return the object itself.
        arguments = "" if arguments is None else json.dumps(arguments, sort_keys=True, ensure_ascii=False)
    return Call(name if isinstance(name, str) else "", arguments[:MAX_CHARS])
