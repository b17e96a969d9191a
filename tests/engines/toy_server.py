"""A language model over bytes in a few lines, behind OpenAI's interface: what the stand-ins of engines serve.

Copied into environments that have no kvgate; imports the standard library only. It proves nothing of an engine.
Letters a to z are the tokens that it says; the distribution hangs on the last four tokens and on the length.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from typing import Any

SAID = range(97, 123)


def logprobs(ids: Sequence[int]) -> list[tuple[int, float]]:
    """(token, log-probability) after `ids`, most likely first."""
    seed = len(ids) * 7
    for i in ids[-4:]:
        seed = (seed * 131 + i + 1) % 1_000_003
    logits = [((seed * (t + 3) * 7919) % 10_007) / 2_000 + t / 1e6 for t in SAID]
    norm = math.log(math.fsum(math.exp(x) for x in logits))
    return sorted(((t, x - norm) for t, x in zip(SAID, logits, strict=True)), key=lambda e: -e[1])


def grown(ids: Sequence[int], n: int) -> Iterator[tuple[int, list[tuple[int, float]]]]:
    """The greedy continuation: each token with the distribution that it was chosen from."""
    text = list(ids)
    for _ in range(n):
        top = logprobs(text)
        text.append(top[0][0])
        yield top[0][0], top


def tokens(prompt: Any) -> list[int]:
    return list(prompt) if isinstance(prompt, list) else list(str(prompt).encode())


def rendered(messages: Sequence[Any]) -> str:
    return "".join(f"{m['role']}: {m['content']}\n" for m in messages)


class TooLong(Exception):
    """More tokens than the context has."""


class Toy(BaseHTTPRequestHandler):
    """OpenAI's endpoints; a stand-in adds its engine's own.

    Class attributes are set by the stand-in: `key` ("" asks for none), `model`, `context`, `owner`, `slow_s`.
    """

    key, model, context, owner, slow_s = "", "model", 1024, "toy", 0.0
    #: File that every request and its answer are written to, one JSON value a line.
    record = ""
    open_paths: tuple[str, ...] = ("/health", "/metrics")
    protocol_version = "HTTP/1.1"

    def page(self, path: str) -> Any:
        """JSON value or text of a GET page; None where there is none."""
        if path == "/health":
            return ""
        if path == "/v1/models":
            card = {"id": self.model, "object": "model", "created": 1, "owned_by": self.owner, "root": self.model}
            return {"object": "list", "data": [card | {"max_model_len": self.context}]}
        return None

    def answers(self) -> dict[str, Callable[[Any], Any]]:
        """POST path -> what makes the answer."""
        return {"/v1/completions": self.complete, "/v1/chat/completions": self.chat}

    def error(self, status: int, message: str) -> None:
        kind = "BadRequestError" if status == 400 else "Unauthorized"
        self.send(status, {"object": "error", "message": message, "type": kind, "param": None, "code": status})

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not self.allowed(path):
            return
        value = self.page(path)
        self.send(404 if value is None else 200, {"detail": "Not Found"} if value is None else value)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed(self.path):
            return
        make = self.answers().get(self.path)
        if make is None:
            self.send(404, {"detail": "Not Found"})
            return
        time.sleep(self.slow_s)
        try:
            made = make(body)
        except TooLong as e:
            self.error(400, str(e))
            return
        if made is not None:
            self.note(self.path, body, made)
            self.send(200, made)

    def note(self, path: str, body: Any, answer: Any) -> None:
        if self.record:
            with open(self.record, "a", encoding="utf-8") as f:
                f.write(json.dumps({"path": path, "body": body, "answer": answer}) + "\n")

    def allowed(self, path: str) -> bool:
        if self.key and path not in self.open_paths and self.headers.get("Authorization") != f"Bearer {self.key}":
            self.send(401, {"error": "Unauthorized"})
            return False
        return True

    def fits(self, ids: Sequence[int], more: int) -> None:
        if len(ids) + more > self.context:
            raise TooLong(self.too_long(len(ids), more))

    def too_long(self, n: int, more: int) -> str:
        return f"{n} and {more} tokens are over the context of {self.context}"

    def complete(self, body: Any) -> Any:
        ids = tokens(body["prompt"])
        return self.said(body, ids, chat=False, k=body.get("logprobs") or 0)

    def chat(self, body: Any) -> Any:
        ids = list(rendered(body["messages"]).encode())
        return self.said(body, ids, chat=True, k=body.get("top_logprobs") or 0 if body.get("logprobs") else 0)

    def said(self, body: Any, ids: list[int], *, chat: bool, k: int) -> Any:
        n = body.get("max_tokens") or 16
        self.fits(ids, n)
        made = list(grown(ids, n))
        text = bytes(t for t, _ in made).decode()
        if body.get("stream"):
            self.stream(body, made, len(ids), chat=chat)
            return None
        return self.whole(text, made, len(ids), chat=chat, k=k)

    def usage(self, before: int, after: int) -> dict[str, Any]:
        return {"prompt_tokens": before, "completion_tokens": after, "total_tokens": before + after}

    def whole(self, text: str, made: Sequence[Any], before: int, *, chat: bool, k: int) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None}
        if chat:
            choice["message"] = {"role": "assistant", "content": text}
            if k:
                choice["logprobs"] = {"content": [self.chat_row(t, top, k) for t, top in made]}
        else:
            choice["text"] = text
            if k:
                choice["logprobs"] = {
                    "text_offset": [0 for _ in made],
                    "tokens": [chr(t) for t, _ in made],
                    "token_logprobs": [top[0][1] for _, top in made],
                    "top_logprobs": [{chr(i): x for i, x in top[:k]} for _, top in made],
                }
        kind = "chat.completion" if chat else "text_completion"
        head = {"id": "1", "object": kind, "created": 1, "model": self.model}
        return head | {"choices": [choice], "usage": self.usage(before, len(made))}

    def chat_row(self, token: int, top: Sequence[tuple[int, float]], k: int) -> dict[str, Any]:
        named = [{"token": chr(i), "bytes": [i], "logprob": x} for i, x in top[:k]]
        return {"token": chr(token), "bytes": [token], "logprob": top[0][1], "top_logprobs": named}

    def stream(self, body: Any, made: Sequence[Any], before: int, *, chat: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        kind = "chat.completion.chunk" if chat else "text_completion"
        head = {"id": "1", "object": kind, "created": 1, "model": self.model}
        for n, (token, _) in enumerate(made, 1):
            said: dict[str, Any] = (
                {"delta": {"role": "assistant", "content": chr(token)}} if chat else {"text": chr(token)}
            )
            choice = {"index": 0, "finish_reason": "length" if n == len(made) else None} | said
            usage = {"usage": self.usage(before, n)} if _wants(body, "continuous_usage_stats") else {}
            self.event(body, head | {"choices": [choice]} | usage)
        if _wants(body, "include_usage"):
            self.event(body, head | {"choices": [], "usage": self.usage(before, len(made))})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def event(self, body: Any, value: Any) -> None:
        self.note(self.path + " stream", body, value)
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def send(self, status: int, value: Any) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(value, str) else "application/json")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


def _wants(body: Any, option: str) -> bool:
    return bool((body.get("stream_options") or {}).get(option))
