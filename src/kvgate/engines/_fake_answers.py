"""What the fake model answers: deterministic in (script seed, prompt), plausible in form, and nothing more.

The kind of answer follows from the request: a call where tools are given, JSON where it is asked for, the planted code
where the prompt hides seven digits, a number for an arithmetic question, code for code, else text in the prompt's own
words.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvgate.core.observation import content_digest
from kvgate.engines._fake_schema import instance
from kvgate.engines._fake_script import FakeScript, Kind, unit

_CODE = re.compile(r"(?<!\d)\d{7}(?!\d)")
_SUM = re.compile(r"(-?\d+)\s*(\+|-|\*|x|×|times|plus|minus)\s*(-?\d+)")
_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "plus": operator.add,
    "-": operator.sub,
    "minus": operator.sub,
    "*": operator.mul,
    "x": operator.mul,
    "×": operator.mul,
    "times": operator.mul,
}
_LEXICON = re.findall(
    r"\w+",
    "the system keeps a record of each step and reports what it saw so that people can decide what to do next with "
    "clear numbers short notes open questions and a plan for the days after",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as far as an answer depends on it.

    Attributes:
        text: all of the prompt. question: its end, where the question stands. digest: of messages, tools and format.
        tools: name -> parameter schema. schema: of response_format; json: JSON is asked for, with or without one.
    """

    text: str
    question: str
    digest: str
    n_tokens: int = 0
    tools: Mapping[str, Any] | None = None
    json: bool = False
    schema: Any = None
    sampled: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """`tool` is (name, arguments as text); `text` is empty then."""

    kind: Kind
    text: str
    tool: tuple[str, str] | None = None
    finish_reason: str = "stop"

    @property
    def spoken(self) -> str:
        """What the model generated, as one text."""
        return self.text if self.tool is None else "".join(self.tool)


def read_chat(body: Mapping[str, Any]) -> Asked:
    """A chat request; `messages` must be a list of objects.

    Raises:
        ValueError: it is not.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, Mapping) for m in messages):
        raise ValueError("Expected 'messages' to be a list of objects")
    texts = [_content(m) for m in messages]
    wanted = body.get("response_format") or {}
    tools = body.get("tools") if body.get("tool_choice") != "none" else None
    functions = [t.get("function", {}) for t in tools or () if isinstance(t, Mapping)]
    schema = (wanted.get("json_schema") or {}).get("schema") or wanted.get("schema")
    text = "\n".join(texts)
    return Asked(
        text=text,
        question=_question(texts[-1]),
        digest=content_digest([messages, tools, wanted]),
        tools={str(f.get("name")): f.get("parameters") or {} for f in functions} or None,
        json=wanted.get("type") in ("json_object", "json_schema") or re.search(r"\bJSON\b", text) is not None,
        schema=schema or _schema_in(text),
    )


def read_prompt(text: str) -> Asked:
    """A bare prompt."""
    json_asked = re.search(r"\bJSON\b", text) is not None
    return Asked(text, _question(text), content_digest(text), json=json_asked, schema=_schema_in(text))


def answer(script: FakeScript, asked: Asked) -> Answer:
    """The model's own answer, before any fault."""
    key = (script.seed, asked.digest, asked.sampled)
    words = _words(asked.text)
    if asked.tools:
        name = _best(asked.tools, asked.question, key)
        arguments = json.dumps(instance(asked.tools[name], words, key), ensure_ascii=False)
        return Answer("tool", "", (name, arguments), "tool_calls")
    if not asked.json and _CODE.search(asked.text):
        return _needle(script, asked)
    if asked.json:
        schema = asked.schema or {"type": "object", "properties": {k: {"type": "string"} for k in _keys(asked.text)}}
        return Answer("json", json.dumps(instance(schema, words, key), ensure_ascii=False))
    if m := _SUM.search(asked.question):
        return Answer("number", f"The answer is {_OPERATIONS[m[2]](int(m[1]), int(m[3]))}.")
    if re.search(r"\b(function|python|code)\b", asked.question, re.IGNORECASE):
        body = f"def {_plain(words, key)}(x):\n    return x + {int(unit(key, 'code') * 90) + 1}\n"
        return Answer("code", f"```python\n{body}```")
    return Answer("text", _prose(words, key))


def flipped(script: FakeScript, asked: Asked, given: Answer) -> Answer:
    """Words of a text swapped where the runner-up wins."""
    if given.kind != "text" or not script.flip_rate:
        return given
    pool = _words(asked.text)
    words = [
        _pick(pool, (script.seed, asked.digest, "flip", i))
        if unit(script.seed, "flip", asked.digest, i) < script.flip_rate
        else word
        for i, word in enumerate(given.text.split(" "))
    ]
    return replace(given, text=" ".join(words))


def _needle(script: FakeScript, asked: Asked) -> Answer:
    """The code whose sentence shares most words with the question; past the decay length, sometimes another."""
    code = planted_code(asked)
    lost = (
        script.needle_decay_tokens is not None
        and asked.n_tokens > script.needle_decay_tokens
        and unit(script.seed, "needle", asked.digest) < script.needle_decay_rate
    )
    if lost:
        # A shift of 1 to 8,999,999 among the 9,000,000 codes without a leading zero: never the same code.
        shift = 1 + int(unit(script.seed, "lost", asked.digest) * 8_999_999)
        code = str((int(code) - 1_000_000 + shift) % 9_000_000 + 1_000_000)
    return Answer("needle", code)


def planted_code(asked: Asked) -> str:
    """The seven digits that the question asks for."""
    asked_words = {w.lower() for w in re.findall(r"\w+", asked.question)}
    found = list(_CODE.finditer(asked.text))

    def shared(m: re.Match[str]) -> int:
        sentence = re.split(r"[.\n]", asked.text[max(0, m.start() - 160) : m.start()])[-1]
        after = re.split(r"[.\n]", asked.text[m.end() : m.end() + 120])[0]
        return len({w.lower() for w in re.findall(r"\w+", sentence + " " + after)} & asked_words)

    return max(found, key=shared)[0]


def _question(text: str) -> str:
    """The last sentence with a question mark near the end of a text, else the end."""
    sentences = re.findall(r"[^.?!\n]*\?", text[-800:])
    return sentences[-1] if sentences else text[-200:]


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return str(content)


def _words(text: str) -> list[str]:
    """Words to speak with: the prompt's own if most are not ASCII, else its longer ones and a small lexicon."""
    own = list(dict.fromkeys(re.findall(r"[^\W\d_]{2,12}", text[-4000:])))
    foreign = [w for w in own if not w.isascii()]
    if len(foreign) * 2 > len(own):
        return foreign
    return [w.lower() for w in own if len(w) > 4][:24] + _LEXICON


def _pick(words: Sequence[str], key: object) -> str:
    return words[int(unit(key, "pick") * len(words))]


def _plain(words: Sequence[str], key: object) -> str:
    names = [w for w in words if w.isascii() and w.isidentifier() and _is_name(w)] or ["result"]
    return _pick(names, key)


def _is_name(word: str) -> bool:
    try:
        ast.parse(f"{word} = 1")
    except SyntaxError:
        return False
    return True


def _best(tools: Mapping[str, Any], question: str, key: object) -> str:
    asked_words = {w.lower() for w in re.findall(r"[A-Za-z]+", question)}
    return max(tools, key=lambda name: (len(set(re.findall(r"[a-z]+", name.lower())) & asked_words), unit(key, name)))


def _keys(text: str) -> list[str]:
    """Names that a prompt puts in quotes or backticks, as keys of the object it asks for."""
    quoted = re.findall(r"[\"'`]([a-z][a-z0-9_]{1,20})[\"'`]", text)
    return list(dict.fromkeys(quoted))[:6] or ["answer"]


def _schema_in(text: str) -> Any:
    """A JSON schema that stands in the prompt itself."""
    for m in re.finditer(r"\{", text[-4000:]):
        try:
            value, _ = json.JSONDecoder().raw_decode(text[-4000:], m.start())
        except ValueError:
            continue
        if isinstance(value, dict) and ("properties" in value or value.get("type") in ("object", "array")):
            return value
    return None


def _prose(words: Sequence[str], key: object) -> str:
    sentences, at = [], 0
    for s in range(2 + int(unit(key, "sentences") * 3)):
        n = 6 + int(unit(key, "length", s) * 8)
        picked = [_pick(words, (key, at + i)) for i in range(n)]
        at += n
        sentences.append((picked[0][:1].upper() + picked[0][1:] + " " + " ".join(picked[1:])).strip() + ".")
    return " ".join(sentences)
