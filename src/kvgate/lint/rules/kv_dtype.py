"""Words of the KV option that this engine does not take."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from kvgate.core.source import Source
from kvgate.enginefacts.facts import RefusedRow
from kvgate.enginefacts.versions import Holds
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject

_ENGINES = frozenset({"vllm", "sglang", "trtllm", "llama_cpp"})
_KEYS = ("kv_dtype", "k_dtype", "v_dtype")
#: Words with a rule of their own, by engine.
_OWN = {
    "vllm": {"int8": "vllm-plain-int8", "int4": "vllm-plain-int8"},
    "sglang": {"fp4_e2m1": "sglang-fp4-e2m1"},
    "llama_cpp": {"q8_1": "llama-q8-1-aborts"},
}
#: Since this build there is an FP8 type, whose word was not read.
_LLAMA_FP8 = "b12274"
#: The command line's own list; the two others work only through the binding.
_LLAMA_LISTED = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


def _bad_words(s: Subject) -> Iterator[tuple[str, str, RefusedRow | None]]:
    """Key and word of each option that is set to a word that the engine does not have."""
    if s.facts is None:
        return
    taken = {w for d in s.facts.dtype for w in (d.spelling, *d.aliases)} | {w.spelling for w in s.facts.word}
    for key in _KEYS:
        word = s.get(key)
        if word is not None and s.given(key) and word.lower() not in taken:
            yield key, word, s.facts.refusal_of(word.lower())


def _id_of(s: Subject, word: str) -> str:
    low = word.lower()
    if s.engine == "llama_cpp" and low.startswith(("turbo", "tbq")):
        return "llama-turboquant-mainline"
    if s.engine == "llama_cpp" and low.startswith(("fp8", "float8", "e4m3", "e5m2", "f8")):
        return "llama-fp8-build"
    return _OWN.get(s.engine, {}).get(low, "kv-dtype-unknown")


def _check(name: str, s: Subject) -> Iterator[Hit]:
    for key, word, refused in _bad_words(s):
        if _id_of(s, word) != name:
            continue
        place = s.command.place_of(key)
        setting = s.command.setting(key)
        if setting is not None and setting.unset:
            why = "the engine wants a value behind it and stops at its start"
            yield Hit(f"{setting.written} has no value", place, None, why, _near(s, ""))
            continue
        if name == "llama-fp8-build" and s.version is not None and s.holds(_LLAMA_FP8, "") is Holds.YES:
            yield Hit(
                f"how {_LLAMA_FP8} and later spell their FP8 cache was not read, so {word!r} is unchecked",
                place,
                "info",
            )
            continue
        if refused is not None:
            yield Hit(f"{word!r} is no KV cache type of {s.engine}: {refused.why}", place, None, "", refused.fix)
            continue
        yield Hit(f"{word!r} is no KV cache type of {s.engine}", place, None, "", _near(s, word))


def _near(s: Subject, word: str) -> str:
    words = [d.spelling for d in s.facts.dtype] + [w.spelling for w in s.facts.word] if s.facts else []
    close = get_close_matches(word.lower(), words, n=1, cutoff=0.6)
    return f"write {close[0]}" if close else "write one of " + ", ".join(words)


def _listed(s: Subject) -> Iterator[Hit]:
    for key in ("k_dtype", "v_dtype"):
        word = s.get(key)
        if word in ("mxfp4", "nvfp4"):
            yield Hit(f"the option does not list {word}", s.command.place_of(key))


def _rule(
    name: str,
    title: str,
    why: str,
    fix: str,
    source: Source,
    engines: frozenset[str] = _ENGINES,
    *,
    newest_only: bool = False,
) -> Rule:
    def check(s: Subject) -> Iterator[Hit]:
        return _check(name, s)

    return Rule(name, engines, "error", title, why, fix, source, check, newest_only=newest_only)


RULE = (
    _rule(
        "kv-dtype-unknown",
        "the word is no KV cache type of this engine",
        "the engine refuses to start, or takes it for something else",
        "write one of the engine's own words",
        Source("spec", "the engines' own lists, enginefacts/*.toml"),
    ),
    _rule(
        "vllm-plain-int8",
        "vLLM has no plain int8 KV cache",
        "its integer caches carry a scale for each token and head",
        "write int8_per_token_head",
        Source("spec", "config/cache.py CacheDType", "0.32.0"),
        frozenset({"vllm"}),
    ),
    _rule(
        "sglang-fp4-e2m1",
        "SGLang no longer takes fp4_e2m1",
        "the word was replaced by two recipes that differ in their scales",
        "write nvfp4 or fp4_mx_block16",
        Source("spec", "arg_groups/fields/model.py", "0.5.23"),
        frozenset({"sglang"}),
        newest_only=True,
    ),
    _rule(
        "llama-q8-1-aborts",
        "q8_1 as a cache type aborts llama.cpp's process",
        "it is an operand of dot products; flash attention asserts on it",
        "write q8_0",
        Source("log", "GGML_ASSERT in flash attention, signal 6", "b11549"),
        frozenset({"llama_cpp"}),
    ),
    _rule(
        "llama-turboquant-mainline",
        "TurboQuant types are in forks of llama.cpp, not in the main line",
        "what the main line has is a Hadamard rotation of the q types, on by itself; the pulls were not merged",
        "write q8_0 or q5_1, or say which fork you run",
        Source("spec", "llama.cpp pulls 21010, 21062, 21307 and 21685, none merged", "2026-06"),
        frozenset({"llama_cpp"}),
    ),
    _rule(
        "llama-fp8-build",
        "llama.cpp has FP8 caches only from b12274 on",
        "earlier builds refuse the word",
        "write q8_0, the 8-bit format here",
        Source("spec", "llama.cpp pull 28392", "b12274"),
        frozenset({"llama_cpp"}),
    ),
    Rule(
        "llama-fp4-not-listed",
        frozenset({"llama_cpp"}),
        "error",
        "llama.cpp's options do not list mxfp4 and nvfp4",
        "they work on the CPU, but only through a binding that takes ggml's own number",
        "write one of " + ", ".join(_LLAMA_LISTED),
        Source("spec", "common/arg.cpp kv_cache_types", "b11434"),
        _listed,
    ),
)
