"""What an attached server is, found by asking: its tokenizer and its chat template by what they do to a fixed text.

Two servers may list one model and cut text differently, or wrap a chat differently; what they answer is then not
comparable, and nothing else would tell.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kvgate.core.engine import Generate, Generated
from kvgate.core.errors import BadAnswer
from kvgate.engines._refusal import context_limit

#: Words, numbers, code, three scripts, blanks and a special-looking word: where tokenizers part.
PROBE_TEXT = (
    "The quick brown fox jumps over 12,345.678 lazy dogs!  def f(x):\n\treturn {'a': x**2}\n\n"
    "Zażółć gęślą jaźń. Быстрая лиса. 敏捷的棕色狐狸 🦊 <|endoftext|> don't re-enter   the\u00a0room"
)
#: A chat with every role, so that a template that treats one of them differently shows.
PROBE_CHAT: Sequence[Mapping[str, Any]] = (
    {"role": "system", "content": "Answer in one word."},
    {"role": "user", "content": "Which animal jumps?"},
    {"role": "assistant", "content": "Fox."},
    {"role": "user", "content": "Over which?"},
)


class Asked(Protocol):
    """The session, as these questions see it."""

    async def exact_tokens(self, text: str) -> tuple[int, ...]: ...

    async def post_json(self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None) -> Any: ...

    async def model_name(self, *, timeout_s: float | None = None) -> str: ...

    async def generate(self, request: Generate) -> Generated: ...


async def tokenizer_digest(session: Asked) -> str | None:
    """Digest of the ids of a fixed text; None where the server has no tokenizer to ask."""
    try:
        return _digest("ids", await session.exact_tokens(PROBE_TEXT))
    except BadAnswer:
        return None


async def template_digest(session: Asked) -> str | None:
    """Digest of a fixed chat as the server wraps it: the text, its ids, or at least how many; None if none is told."""
    chat = list(PROBE_CHAT)
    try:
        answer = await session.post_json("/apply-template", {"messages": chat})
        if isinstance(answer, Mapping) and isinstance(answer.get("prompt"), str):
            return _digest("text", answer["prompt"])
    except BadAnswer:
        pass
    try:
        body = {"model": await session.model_name(), "messages": chat, "add_generation_prompt": True}
        answer = await session.post_json("/tokenize", body)
        if isinstance(answer, Mapping) and isinstance(answer.get("tokens"), list) and answer["tokens"]:
            return _digest("chat ids", answer["tokens"])
    except BadAnswer:
        pass
    try:
        n = (await session.generate(Generate(messages=chat, max_tokens=1))).usage.get("prompt_tokens")
    except BadAnswer:
        return None
    return _digest("chat tokens", n) if n else None


async def find_context(session: Asked, want: int) -> int | None:
    """Tokens of context of a server that announces none: a prompt of the wanted length, less where that is refused.

    Returns:
        `want` where it fits, what the refusal names or the longest half that fits where it does not; None where the
        server refuses even short prompts, or for another reason.
    """
    tokens = want
    while tokens >= _LEAST_TOKENS:
        try:
            # Half a character a token: "a" and blank by turns is one token each in every tokenizer seen.
            await session.generate(Generate(prompt=" a" * (tokens - _MARGIN_TOKENS), max_tokens=1))
        except BadAnswer as e:
            if e.kind != "context_exceeded":
                return None
            named = context_limit(str(e))
            if named is not None and named < tokens:
                return named
            tokens //= 2
            continue
        return tokens
    return None


#: Of a beginning of text and of the one token that is generated.
_MARGIN_TOKENS = 8
_LEAST_TOKENS = 128


def _digest(how: str, value: Any) -> str:
    return hashlib.sha256(json.dumps([how, value]).encode("utf-8", "surrogatepass")).hexdigest()
