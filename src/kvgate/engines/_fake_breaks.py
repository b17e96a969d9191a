"""Faults of an answer: breaks that a rerun repeats, and noise that it does not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import NormalDist

from kvgate.engines._fake_answers import Answer, Asked
from kvgate.engines._fake_script import FakeScript, unit

_Break = Callable[[Answer], Answer]


def _text(given: Answer, text: str) -> Answer:
    return replace(given, text=text)


def _arguments(given: Answer, change: Callable[[str], str]) -> Answer:
    name, arguments = given.tool or ("", "{}")
    return replace(given, tool=(name, change(arguments)))


def _dropped(arguments: str) -> str:
    value = json.loads(arguments)
    if isinstance(value, dict) and value:
        value.pop(next(iter(value)))
    return json.dumps(value)


def _mistyped(text: str) -> str:
    value = json.loads(text)
    if isinstance(value, dict) and value:
        first = next(iter(value))
        value[first] = 7 if isinstance(value[first], str) else "seven"
        return json.dumps(value, ensure_ascii=False)
    return json.dumps({"unexpected": True})


def _said_instead(given: Answer) -> Answer:
    return replace(given, text="I would look that up for you.", tool=None, finish_reason="stop")


def _cut(given: Answer) -> Answer:
    if given.tool:
        return replace(_arguments(given, lambda a: a[: len(a) // 2]), finish_reason="length")
    return replace(given, text=given.text[: len(given.text) // 2], finish_reason="length")


def _other_tool(given: Answer) -> Answer:
    name, arguments = given.tool or ("", "{}")
    return replace(given, tool=(name + "_v2", arguments))


def _drifted(given: Answer) -> Answer:
    """The first digit of the text, one higher."""
    at = next((i for i, c in enumerate(given.text) if c.isdigit()), None)
    if at is None:
        return given
    return _text(given, given.text[:at] + str((int(given.text[at]) + 1) % 10) + given.text[at + 1 :])


#: Per kind of answer, what each class does to it; the first is the plainest.
_HOW: Mapping[str, Mapping[str, _Break]] = {
    "json": {
        "invalid_json": lambda a: _text(a, a.text[:-1]),
        "schema_violation": lambda a: _text(a, _mistyped(a.text)),
        "extra_data": lambda a: _text(a, a.text + "\n" + a.text),
    },
    "tool": {
        "args_not_json": lambda a: _arguments(a, lambda text: text[:-1]),
        "missing_call": _said_instead,
        "wrong_tool": _other_tool,
        "missing_required": lambda a: _arguments(a, _dropped),
        "type_mismatch": lambda a: _arguments(a, _mistyped),
    },
    "needle": {"number_drift": _drifted},
    "number": {"number_drift": _drifted},
    "code": {"code_unparsable": lambda a: _text(a, a.text.replace("(x):", "(x:"))},
    "text": {"repetition_loop": lambda a: _text(a, a.text + " and so on" * 60)},
}
#: What can happen to any answer.
_ANY: Mapping[str, _Break] = {
    "truncated": _cut,
    "empty_output": lambda a: replace(a, text="", tool=None, finish_reason="stop"),
    "repetition_loop": lambda a: replace(a, text=(a.text or "no") + " again" * 80, tool=None, finish_reason="length"),
    "mojibake": lambda a: replace(a, text=(a.text or "ok") + " Ã©Ã¼�Ã¶�Ã¤", tool=None, finish_reason="stop"),
    "control_tokens": lambda a: replace(a, text=(a.text or "ok") + "<|im_end|>", tool=None, finish_reason="stop"),
}


def broken(script: FakeScript, asked: Asked, given: Answer) -> Answer:
    """The answer, broken if the script says so for this prompt."""
    if given.kind not in script.break_kinds:
        return given
    what = asked.digest if script.break_by == "prompt" else given.kind
    if unit(script.seed, "break", what) >= script.break_rate:
        return given
    return _break(given, script, (script.seed, "class", asked.digest))


def _break(given: Answer, script: FakeScript, key: object) -> Answer:
    own = _HOW[given.kind]
    fitting = [c for c in script.break_classes if c in own or c in _ANY]
    name = fitting[int(unit(key) * len(fitting))] if fitting else next(iter(own))
    return (own.get(name) or _ANY[name])(given)


def intensity(script: FakeScript, noise_seed: int, request: int) -> float:
    """The chance that request number `request` is disturbed: drifting, and shared within a burst."""
    z = NormalDist().inv_cdf(min(max(unit(noise_seed, "burst", request // script.noise_burst), 1e-9), 1 - 1e-9))
    sigma = script.noise_clustered
    # The log-normal factor has mean 1, so clustering alone leaves the average rate as it is.
    return script.noise_rate * math.exp(sigma * z - sigma * sigma / 2) * (1 + script.noise_drift * request / 100)


def disturbed(script: FakeScript, noise_seed: int, request: int, given: Answer) -> Answer:
    """The answer, perhaps disturbed; depends on the request's number, not on its prompt."""
    key = (noise_seed, "noise", request)
    if not script.noise_rate or unit(key) >= intensity(script, noise_seed, request):
        return given
    if given.kind in ("json", "tool", "needle", "number"):
        return _break(given, script.model_copy(update={"break_classes": ()}), key)
    words = given.text.split(" ")
    n_changed = min(len(words), int((1 - unit(key, "tail")) ** (-1 / script.noise_tail)))
    for i in range(n_changed):
        at = int(unit(key, "at", i) * len(words))
        words[at] = words[at][::-1]
    return replace(given, text=" ".join(words))
