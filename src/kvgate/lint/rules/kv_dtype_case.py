"""A KV type in capitals: the word exists, and this engine compares letters."""

from __future__ import annotations

from collections.abc import Iterator

from kvgate.core.source import Source
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject


def _case(s: Subject) -> Iterator[Hit]:
    taken = {w for d in s.facts.dtype for w in (d.spelling, *d.aliases)} if s.facts else set()
    taken |= {w.spelling for w in s.facts.word} if s.facts else set()
    for key in ("kv_dtype", "k_dtype", "v_dtype"):
        word = s.get(key)
        if word is not None and s.given(key) and word not in taken and word.lower() in taken:
            yield Hit(
                f"{word!r} is spelled {word.lower()} here", s.command.place_of(key), None, "", f"write {word.lower()}"
            )


RULE = Rule(
    "kv-dtype-case",
    frozenset({"vllm", "sglang", "llama_cpp"}),
    "error",
    "a KV type is written in capitals",
    "the engine compares the words letter by letter, and stops at this one",
    "write it in small letters",
    Source(
        "spec", "argparse choices of vllm 0.32.0 and sglang 0.5.23; llama.cpp common/arg.cpp kv_cache_type_from_str"
    ),
    _case,
)
