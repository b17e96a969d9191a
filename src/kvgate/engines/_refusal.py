"""An answer with an error in it -> BadAnswer with a kind, the status and the server's own words, cut and cleaned."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from kvgate.core.errors import BadAnswer
from kvgate.engines._http import Reply

#: llama.cpp's error type, OpenAI's error code.
_CONTEXT_WORDS = ("exceed_context_size_error", "context_length_exceeded")
#: vLLM ("maximum context length is"), SGLang ("longer than the model's context length"), llama.cpp ("context size").
_CONTEXT = re.compile(r"(maximum|model's) context length|available context size|max_model_len", re.IGNORECASE)


def refusal(path: str, reply: Reply, clean: Callable[[str], str]) -> BadAnswer:
    """The error for `reply`; `clean` makes a server's words fit for a message."""
    message, words = _said(reply.body)
    exceeded = any(w in _CONTEXT_WORDS for w in words) or _CONTEXT.search(message) is not None
    kind = "context_exceeded" if exceeded else "http_status" if reply.status != 200 else "error_in_200"
    said = clean(message) or "no message"
    label = f"{kind}: " if exceeded else ""
    return BadAnswer(f"{path}: {label}HTTP {reply.status}: {said}", kind=kind, status=reply.status)


def _said(body: bytes) -> tuple[str, tuple[str, ...]]:
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
