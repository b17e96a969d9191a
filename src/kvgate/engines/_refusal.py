"""An answer with an error in it -> BadAnswer with a kind, the status and the server's own words, cut and cleaned."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kvgate.core.errors import BadAnswer

if TYPE_CHECKING:
    from kvgate.engines._http import Reply

#: llama.cpp's error type, OpenAI's error code.
_CONTEXT_WORDS = ("exceed_context_size_error", "context_length_exceeded")
#: vLLM ("maximum context length is"), SGLang ("longer than the model's context length"), llama.cpp ("context size").
_CONTEXT = re.compile(r"(maximum|model's) context length|available context size|max_model_len", re.IGNORECASE)


def refusal(path: str, reply: Reply, clean: Callable[[str], str]) -> BadAnswer:
    """The error for `reply`; `clean` makes a server's words fit for a message."""
    message, words = said_in(reply.body)
    exceeded = any(w in _CONTEXT_WORDS for w in words) or _CONTEXT.search(message) is not None
    kind = "context_exceeded" if exceeded else "http_status" if reply.status != 200 else "error_in_200"
    said = clean(message) or "no message"
    label = f"{kind}: " if exceeded else ""
    return BadAnswer(f"{path}: {label}HTTP {reply.status}: {said}", kind=kind, status=reply.status)


def said_in(body: bytes) -> tuple[str, tuple[str, ...]]:
    """The message and the machine words (type, code) of an error body; the body itself if it is no JSON."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return body[:2000].decode("utf-8", "replace"), ()
    error = value.get("error", value) if isinstance(value, Mapping) else value
    if isinstance(error, Mapping):
        message = error.get("message") or error.get("detail") or json.dumps(error)
        return str(message), tuple(str(error.get(key)) for key in ("type", "code"))
    return str(error), ()


#: "maximum context length is 2048 tokens" (vLLM), "model's context length (2048 tokens)" (SGLang), "available context
#: size (2048 tokens)" (llama.cpp).
_LIMIT = re.compile(r"context (?:length|size)(?: is| of)?[ (]*(\d{1,9})(?: tokens)?")


def context_limit(message: str) -> int | None:
    """Tokens of context that a refusal names; None where it names none."""
    found = _LIMIT.search(message)
    return int(found[1]) if found else None
