"""SGLang: fp8_e5m2 with fa3 named for prefill or decode alone, where the check that leads to triton does not look."""

from __future__ import annotations

from collections.abc import Iterator

from kvgate.core.source import Source
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject

_KEYS = ("decode_backend", "prefill_backend")


def _split(s: Subject) -> Iterator[Hit]:
    for key in _KEYS:
        if s.k_word == "fp8_e5m2" and s.get(key) == "fa3":
            name = "decode" if key == "decode_backend" else "prefill"
            yield Hit(f"fa3 is named for {name}, and has no fp8_e5m2", s.place(key))


RULE = Rule(
    "sglang-e5m2-split-fa3",
    frozenset({"sglang"}),
    "error",
    "fa3 is named for prefill or decode of an fp8_e5m2 cache",
    "SGLang changes --attention-backend fa3 to triton, and looks at neither of the two others (read, not run)",
    "write fp8_e4m3, or triton on purpose",
    Source("spec", "arg_groups/overrides.py _attention_backend_fa3_fp8_fallback", "0.5.23"),
    _split,
    newest_only=True,
)
