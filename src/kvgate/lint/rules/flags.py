"""Options given twice, misspelled, or of another engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher, get_close_matches
from functools import cache

from kvgate.core.source import Source
from kvgate.lint.command import Setting
from kvgate.lint.read.argv import facts_of
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject

_ALL = frozenset({"vllm", "sglang", "trtllm", "llama_cpp"})
#: Unknown options that are held against the known ones, and characters of a name.
_MAX_UNKNOWN, _MAX_NAME = 200, 80
#: Characters: as many are a slip of the hand. What differs in more may be an option that was not read.
_TYPO = 2
#: Names that older documents have; what they became.
_GONE = {"sglang": {"--int8-kv-cache": "SGLang has no int8 KV cache: write --kv-cache-dtype fp8_e4m3"}}


def _twice(s: Subject) -> Iterator[Hit]:
    seen: dict[str, Setting] = {}
    for setting in s.command.settings:
        if not setting.name or setting.origin != "argv" or "." in setting.key.removeprefix("attention_config"):
            continue
        before = seen.get(setting.key)
        seen[setting.key] = setting
        if before is None or before.name == "MODEL":
            continue
        if before.value == setting.value:
            yield Hit(f"{setting.written} stands twice, with the same value", setting.place, "warning")
        else:
            yield Hit(f"{setting.written} stands twice: {before.value} and then {setting.value}", setting.place)
    for note in s.command.notes:
        if note.endswith("stands twice"):
            yield Hit(note, s.command.place)


def _underscores(s: Subject) -> Iterator[Hit]:
    for setting in s.command.settings:
        if setting.odd_spelling:
            yield Hit(
                f"{setting.written} is spelled {setting.name} here", setting.place, None, "", f"write {setting.name}"
            )


def _unknown(s: Subject) -> list[Setting]:
    return [x for x in s.command.settings if not x.name and x.origin == "argv" and x.written.startswith("-")]


def _equals(s: Subject) -> Iterator[Hit]:
    for setting in s.command.settings:
        if setting.glued and setting.name:
            yield Hit(f"{setting.written}={setting.value} is one word", setting.place)


def _owner(s: Subject, setting: Setting) -> tuple[str, str] | None:
    """The other engine whose cache option this is, with kvgate's word for it."""
    name = setting.written.partition(".")[0]
    for engine in sorted(_ALL - {s.engine}):
        key = _cache_options(engine).get(name)
        if key is not None:
            return engine, key
    return None


@cache
def _cache_options(engine: str) -> Mapping[str, str]:
    """Names of options of the cache, each with kvgate's word."""
    facts = facts_of(engine)
    rows = [r for r in facts.flag if r.key in _CACHE_KEYS] if facts is not None else []
    return {name: r.key for r in rows for name in (r.name, *r.aliases) if name}


def _other_engine(s: Subject) -> Iterator[Hit]:
    for setting in _unknown(s):
        owner = _owner(s, setting)
        if owner is None:
            continue
        engine, key = owner
        own = next((r.name for r in (s.facts.flag if s.facts else ()) if r.key in _alike(key) and r.name), "")
        fix = f"write {own}" if own else "leave it out"
        yield Hit(f"{setting.written} is an option of {engine}, not of {s.engine}", setting.place, None, "", fix)


_CACHE_KEYS = frozenset(
    {"kv_dtype", "k_dtype", "v_dtype", "scales_json", "skip_layers", "flash_attention", "memory_fraction", "backend"}
)


def _alike(key: str) -> tuple[str, ...]:
    return ("kv_dtype", "k_dtype") if key in ("kv_dtype", "k_dtype", "v_dtype") else (key,)


def _misspelled(s: Subject) -> Iterator[Hit]:
    rows = s.facts.flag if s.facts else ()
    names = {
        r.name.replace("_", "-"): r.name for r in rows if r.name and r.key in _CACHE_KEYS | {"calculate_kv_scales"}
    }
    known = _GONE.get(s.engine, {})
    for setting in _unknown(s)[:_MAX_UNKNOWN]:
        name = setting.written.partition(".")[0].replace("_", "-")
        if len(name) < 8 or setting.written in known or _owner(s, setting) is not None:
            continue
        close = get_close_matches(name[:_MAX_NAME], names, n=1, cutoff=0.86)
        if not close or set(close[0].split("-")) < set(name.split("-")):
            # A word more makes another option: SGLang has --mm-attention-backend beside --attention-backend.
            continue
        said = f"{setting.written} is no option that is known; {names[close[0]]} is"
        stops = s.command.bare and _changed(name, close[0]) <= _TYPO
        why = f"{s.engine}'s own parser stops at an option that it does not have" if stops else ""
        yield Hit(said, setting.place, "error" if stops else None, why, f"write {names[close[0]]}")


def _changed(one: str, other: str) -> int:
    """Characters that differ; two that changed places are two."""
    steps = SequenceMatcher(None, one[:_MAX_NAME], other, autojunk=False).get_opcodes()
    return sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in steps if tag != "equal")


def _gone(s: Subject) -> Iterator[Hit]:
    table = _GONE.get(s.engine, {})
    for setting in _unknown(s):
        if setting.written in table:
            yield Hit(table[setting.written], setting.place)


RULE = (
    Rule(
        "flag-twice",
        _ALL,
        "error",
        "an option stands twice with two values",
        "the last one counts, and a reader takes the first",
        "leave one of them out",
        Source("spec", "argparse and llama.cpp's common/arg.cpp: the last value counts"),
        _twice,
        timeless=True,
    ),
    Rule(
        "flag-underscores",
        frozenset({"sglang", "trtllm"}),
        "warning",
        "an option is spelled with the other of '_' and '-'",
        "vLLM's and llama.cpp's parsers take both; this engine's is not known to",
        "write the engine's own spelling",
        Source("spec", "vllm utils/argparse_utils.py; vllm-project.github.io pull 195", "0.32.0"),
        _underscores,
    ),
    Rule(
        "flag-of-another-engine",
        _ALL,
        "error",
        "an option of the KV cache belongs to another engine",
        "the parser stops at an unknown option, or a wrapper drops it",
        "write this engine's own option",
        Source("spec", "the engines' own lists, enginefacts/*.toml"),
        _other_engine,
    ),
    Rule(
        "flag-misspelled",
        _ALL,
        "warning",
        "an option is nearly one that sets the KV cache",
        "an unknown option stops the engine, or is dropped by a wrapper",
        "write the option's own name",
        Source("spec", "the engines' own lists, enginefacts/*.toml"),
        _misspelled,
    ),
    Rule(
        "llama-equals-sign",
        frozenset({"llama_cpp"}),
        "error",
        "an option and its value are joined by an equals sign",
        "llama.cpp looks the whole word up among its options, and stops with 'invalid argument'",
        "write name and value as two words",
        Source("spec", "common/arg.cpp common_params_parse_ex", "b11434"),
        _equals,
    ),
    Rule(
        "sglang-int8-kv-cache-flag",
        frozenset({"sglang"}),
        "error",
        "SGLang has no --int8-kv-cache",
        "an older page names it; the parser of 0.5.23 does not have it",
        "write --kv-cache-dtype fp8_e4m3",
        Source("spec", "arg_groups/fields/", "0.5.23"),
        _gone,
        newest_only=True,
    ),
)
