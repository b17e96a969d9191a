"""Combinations that are known to go wrong: one rule for each id in the engines' facts, `[[trouble]]`."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from kvgate.enginefacts.facts import TroubleRow, load
from kvgate.enginefacts.versions import Holds
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject

_ENGINES = ("vllm", "sglang", "trtllm", "llama_cpp")


def _applies(row: TroubleRow, s: Subject) -> bool:
    """Whether every condition of a row is known to hold."""
    return (
        s.holds(row.since, row.until) is not Holds.NO
        and _dtypes(row, s)
        and (not row.backends or s.backend in row.backends)
        and (not row.models or (s.model is not None and s.model.is_called(row.models)))
        and (not row.traits or (s.model is not None and set(row.traits) <= s.model.traits))
        and (not row.vendor or s.vendor == row.vendor)
        and (not row.capabilities or s.on_capability(row.capabilities))
        and (not row.architectures or any(fnmatchcase(s.capability, a) for a in row.architectures))
        and (not row.heads or (s.model is not None and bool(s.model.head_dims & set(row.heads))))
        and all(_flag(s, key, pattern) for key, pattern in row.flags.items())
        and all(fnmatchcase(s.command.env.get(name, ""), pattern) for name, pattern in row.env.items())
        and (not row.context_from_tokens or (s.context_tokens or 0) >= row.context_from_tokens)
    )


def _dtypes(row: TroubleRow, s: Subject) -> bool:
    k, v = s.effective_words
    # "auto" is a condition of its own only where the checkpoint does not already say what it becomes.
    return _word_fits((k, v), row.dtypes) and _word_fits((k,), row.k_dtypes) and _word_fits((v,), row.v_dtypes)


def _word_fits(words: tuple[str | None, ...], patterns: tuple[str, ...]) -> bool:
    return not patterns or any(w is not None and fnmatchcase(w, p) for w in words for p in patterns)


def _flag(s: Subject, key: str, pattern: str) -> bool:
    if not pattern:
        return not s.given(key)
    value = s.get(key)
    return value is not None and fnmatchcase(value.lower(), pattern)


def _rule(engine: str, rows: tuple[TroubleRow, ...]) -> Rule:
    first = rows[0]
    same = all((r.since, r.until) == (first.since, first.until) for r in rows)

    def check(subject: Subject) -> Iterator[Hit]:
        row = next((r for r in rows if _applies(r, subject)), None)
        if row is not None:
            keys = tuple(row.flags) or ("kv_dtype", "k_dtype", "v_dtype")
            yield Hit(
                row.message, subject.place(*keys, "kv_dtype", "k_dtype", "v_dtype"), row.severity, row.why, row.fix
            )

    return Rule(
        first.id,
        frozenset({engine}),
        first.severity,
        first.message,
        first.why,
        first.fix,
        first.source.as_source(),
        check,
        first.since if same else "",
        first.until if same else "",
    )


def _rules() -> tuple[Rule, ...]:
    found = []
    for engine in _ENGINES:
        by_id: dict[str, list[TroubleRow]] = {}
        for row in load(engine).trouble:
            by_id.setdefault(row.id, []).append(row)
        found += [_rule(engine, tuple(rows)) for rows in by_id.values()]
    return tuple(found)


RULE = _rules()
