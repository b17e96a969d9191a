"""llama.cpp's Hadamard rotation: off by variable, before it existed, or not for this model."""

from __future__ import annotations

from collections.abc import Iterator

from kvgate.core.source import Source
from kvgate.enginefacts.versions import Holds
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject

_LLAMA = frozenset({"llama_cpp"})
_VARIABLE = "LLAMA_ATTN_ROT_DISABLE"
#: The first build seen with it, and the last seen without; the tag between was not read.
_WITH, _WITHOUT = "b8643", "b8613"
_FLOATS = ("f32", "f16", "bf16")
_PULL = "llama.cpp pull 21038, merged 2026-04-01"


def _quantized(s: Subject) -> bool:
    return any(w is not None and w not in _FLOATS and s.codec(w) for w in (s.k_word, s.v_word))


def _off(s: Subject) -> Iterator[Hit]:
    value = s.command.env.get(_VARIABLE, "")
    if value not in ("", "0"):
        place = s.command.place.at(_VARIABLE)
        if _quantized(s):
            yield Hit(f"{_VARIABLE} switches rotation off for a quantized cache", place)
        else:
            yield Hit(f"{_VARIABLE} does nothing: {s.k_word} and {s.v_word} caches are never rotated", place, "info")


def _before(s: Subject) -> Iterator[Hit]:
    if not _quantized(s) or s.version is None:
        return
    if s.holds("", _WITHOUT) is Holds.YES:
        yield Hit("this build is from before rotation (2026-04-01)", s.place("k_dtype", "v_dtype"))
    elif s.holds(_WITH, "") is Holds.NO:
        yield Hit(
            "whether this build rotates was not read: it is from around 2026-04-01", s.place("k_dtype", "v_dtype")
        )


def _heads(s: Subject) -> Iterator[Hit]:
    if not _quantized(s) or s.model is None or not s.model.layers or s.command.env.get(_VARIABLE, "") not in ("", "0"):
        return
    if s.version is not None and s.holds(_WITH, "") is not Holds.YES:
        return
    odd = sorted(d for d in s.model.head_dims if d % 64)
    if odd:
        yield Hit(
            f"heads of {', '.join(map(str, odd))} are not rotated: only multiples of 64 are",
            s.place("k_dtype", "v_dtype"),
        )


RULE = (
    Rule(
        "llama-rotation-disabled",
        _LLAMA,
        "warning",
        f"{_VARIABLE} is set",
        "a q4_0 cache without rotation was six times as far from f32 (KL 0.241 against 0.038, SmolLM2-135M)",
        "leave it out, except to reproduce a build from before 2026-04-01",
        Source("spec", _PULL + "; figures seen on xllamacpp 2026.10.11549"),
        _off,
    ),
    Rule(
        "llama-before-rotation",
        _LLAMA,
        "warning",
        "the build is from before rotation, or from the days around it",
        "results of the two sides of 2026-04-01 are not comparable for quantized caches",
        "use b8643 or later, and do not carry results over",
        Source("spec", _PULL),
        _before,
    ),
    Rule(
        "llama-not-rotated",
        _LLAMA,
        "warning",
        "the model's head size is not rotated",
        "rotation is for multiples of 64 with one head size in all layers of a cache",
        "expect the quality of a cache without rotation, and check it",
        Source("spec", "llama.cpp src/llama-kv-cache.cpp", "b11434"),
        _heads,
        "b8643",
    ),
)
