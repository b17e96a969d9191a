"""Bodies of OpenAI-style and llama.cpp servers -> Generated. A whole body is one piece, a stream is many.

Nothing is repaired: arguments of a tool call that arrive without their last brace are returned without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvgate.core.engine import Generated
from kvgate.core.errors import BadAnswer
from kvgate.engines._logprobs import Row, check_rows, read_rows

#: llama.cpp's native `stop_type` in OpenAI's words.
_STOP_WORDS = {"limit": "length", "eos": "stop", "word": "stop"}


@dataclass(frozen=True, slots=True)
class Piece:
    """What one body adds to an answer.

    Attributes:
        hidden: it carries output that is not text (reasoning, a refusal): tokens all the same.
        has_choice: False for the closing usage chunk.
        tokens_so_far: generated tokens by the server's own count, if it gives one.
        last: the shape's own end mark (llama.cpp native; OpenAI streams end with [DONE] instead).
    """

    text: str = ""
    tools: Sequence[Mapping[str, Any]] = ()
    hidden: bool = False
    finish_reason: str | None = None
    rows: Sequence[Row] = ()
    ids: tuple[int, ...] | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    tokens_so_far: int | None = None
    has_choice: bool = True
    last: bool = False


Reader = Callable[[Mapping[str, Any]], Piece]


def chat_piece(body: Mapping[str, Any]) -> Piece:
    """A chat completion or one chunk of it."""
    choice = _choice(body)
    usage = _usage(body)
    if choice is None:
        return Piece(usage=usage, tokens_so_far=_count(body, usage), has_choice=False)
    said = choice.get("delta") if "delta" in choice else choice.get("message")
    if not isinstance(said, Mapping):
        raise BadAnswer("the answer's choice has no message", kind="bad_shape")
    tools = said.get("tool_calls") or []
    if not isinstance(tools, list) or not all(isinstance(t, Mapping) for t in tools):
        raise BadAnswer("tool_calls is no list of objects", kind="bad_shape")
    hidden = any(said.get(key) for key in ("reasoning_content", "reasoning", "refusal", "function_call"))
    return Piece(
        text=_text(said.get("content")),
        tools=tools,
        hidden=bool(hidden),
        finish_reason=_word(choice.get("finish_reason")),
        rows=read_rows(choice.get("logprobs")),
        ids=_ids(choice.get("token_ids")),
        usage=usage,
        tokens_so_far=_count(body, usage),
    )


def completion_piece(body: Mapping[str, Any]) -> Piece:
    """A text completion or one chunk of it."""
    choice = _choice(body)
    usage = _usage(body)
    if choice is None:
        return Piece(usage=usage, tokens_so_far=_count(body, usage), has_choice=False)
    if "text" not in choice:
        raise BadAnswer("the answer's choice has no text", kind="bad_shape")
    return Piece(
        text=_text(choice["text"]),
        finish_reason=_word(choice.get("finish_reason")),
        rows=read_rows(choice.get("logprobs")),
        ids=_ids(choice.get("token_ids")),
        usage=usage,
        tokens_so_far=_count(body, usage),
    )


def native_piece(body: Mapping[str, Any]) -> Piece:
    """llama.cpp's `/completion`, whole or streamed."""
    if "content" not in body:
        raise BadAnswer("the answer has no content", kind="no_choices")
    if body.get("truncated") is True:
        raise BadAnswer("the server cut the prompt to fit its context", kind="context_exceeded")
    counts = {"prompt_tokens": body.get("tokens_evaluated"), "completion_tokens": body.get("tokens_predicted")}
    usage = {name: n for name, n in counts.items() if isinstance(n, int)}
    return Piece(
        text=_text(body["content"]),
        finish_reason=_STOP_WORDS.get(str(body.get("stop_type"))),
        rows=read_rows(body.get("completion_probabilities")),
        ids=_ids(body.get("tokens")),
        usage=usage,
        tokens_so_far=usage.get("completion_tokens"),
        last=body.get("stop") is True,
    )


def _choice(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The first choice; None for an empty list, which only a chunk may have."""
    choices = body.get("choices")
    if not isinstance(choices, list):
        raise BadAnswer("the answer has no choices", kind="no_choices")
    if not choices:
        return None
    if not isinstance(choices[0], Mapping):
        raise BadAnswer("the answer's choice is no object", kind="bad_shape")
    return choices[0]


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadAnswer("the answer's text is no string", kind="bad_shape")
    return value


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _ids(value: Any) -> tuple[int, ...] | None:
    whole = isinstance(value, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in value)
    return tuple(value) if whole else None


def _usage(body: Mapping[str, Any]) -> dict[str, int]:
    usage = body.get("usage")
    if not isinstance(usage, Mapping):
        return {}
    # A negative count counts nothing; what is not told is unknown.
    return {str(k): n for k, n in usage.items() if isinstance(n, int) and not isinstance(n, bool) and n >= 0}


def _count(body: Mapping[str, Any], usage: Mapping[str, int]) -> int | None:
    if "completion_tokens" in usage:
        return usage["completion_tokens"]
    timings = body.get("timings")
    n = timings.get("predicted_n") if isinstance(timings, Mapping) else None
    return n if isinstance(n, int) else None


class Assembler:
    """Pieces -> one Generated, with the time and the token count of each event.

    Args:
        read: the shape. top_logprobs: what was asked; rows that were asked for must come.
    """

    def __init__(self, read: Reader, top_logprobs: int) -> None:
        self._read, self._asked = read, top_logprobs
        self._text: list[str] = []
        self._tools: dict[int, dict[str, Any]] = {}
        self._rows: list[Row] = []
        self._ids: list[int] | None = []
        self._usage: dict[str, int] = {}
        self._finish: str | None = None
        self._events: list[tuple[int, int | None]] = []
        self._tokens_so_far: int | None = None
        self._hidden = False
        self._raw: Mapping[str, Any] = {}
        self.saw_choice = False
        self.saw_last = False

    def add(self, body: Any, arrived_ns: int | None = None) -> None:
        """Take one body; `arrived_ns` (monotonic) for a streamed one.

        Raises:
            BadAnswer: not an object, an error, or another shape than expected.
        """
        if not isinstance(body, Mapping):
            raise BadAnswer("the answer is no JSON object", kind="bad_shape")
        piece = self._read(body)
        self._raw = body
        self.saw_choice |= piece.has_choice
        self.saw_last |= piece.last
        self._text.append(piece.text)
        for position, tool in enumerate(piece.tools):
            self._add_tool(tool, position)
        self._rows.extend(piece.rows)
        self._add_ids(piece)
        self._usage.update(piece.usage)
        self._hidden |= piece.hidden
        self._finish = piece.finish_reason or self._finish
        if arrived_ns is not None:
            self._add_event(piece, arrived_ns)

    def finish(self) -> Generated:
        """The answer.

        Raises:
            BadAnswer: no choice came, logprobs were asked for and did not come, or they mean nothing.
        """
        if not self.saw_choice:
            raise BadAnswer("the answer has no choices", kind="no_choices")
        text = "".join(self._text)
        said_something = bool(text or self._tools or self._hidden)
        if self._asked and not self._rows and said_something:
            raise BadAnswer("logprobs were asked for and did not come", kind="no_logprobs")
        check_rows(self._rows)
        return Generated(
            text=text,
            finish_reason=self._finish,
            tool_calls=tuple(self._tools[i] for i in sorted(self._tools)),
            token_ids=tuple(self._ids) if self._ids else None,
            usage=self._usage,
            events=tuple(self._events),
            topk=tuple(row.logprobs for row in self._rows),
            raw=self._raw,
        )

    def _add_tool(self, tool: Mapping[str, Any], position: int) -> None:
        index = tool.get("index", position)
        known = self._tools.setdefault(index if isinstance(index, int) else position, {})
        for key, value in tool.items():
            if key == "index" or value is None:
                continue
            if key == "function" and isinstance(value, Mapping):
                known["function"] = _joined(known.get("function", {}), value)
            else:
                known[key] = value

    def _add_ids(self, piece: Piece) -> None:
        """Ids are whole or nothing: one event without them makes the list useless."""
        ids = piece.ids
        if ids is None and piece.rows and all(row.token_id is not None for row in piece.rows):
            ids = tuple(row.token_id for row in piece.rows if row.token_id is not None)
        if ids is None and (piece.text or piece.tools):
            self._ids = None
        elif ids and self._ids is not None:
            self._ids.extend(ids)

    def _add_event(self, piece: Piece, arrived_ns: int) -> None:
        before, count = self._tokens_so_far, piece.tokens_so_far
        if count is None and piece.rows:
            count = len(self._rows)
        shown = bool(piece.text or piece.tools or piece.hidden)
        # Tokens that a parser holds back show only in the count; a closing chunk's total is no arrival.
        swallowed = piece.has_choice and before is not None and count is not None and count > before
        if shown or swallowed:
            self._events.append((arrived_ns, count))
        if piece.has_choice and count is not None:
            self._tokens_so_far = count


def _joined(known: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A function call plus its next fragment: names come once, arguments in fragments."""
    out = dict(known)
    for key, value in more.items():
        if key == "arguments" and isinstance(value, str):
            out[key] = out.get(key, "") + value
        elif value is not None:
            out[key] = value
    return out
