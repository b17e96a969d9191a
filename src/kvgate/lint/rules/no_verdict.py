"""A quantized cache that kvgate has not judged on this model, or has judged against."""

from __future__ import annotations

from collections.abc import Iterator

from kvgate.core.source import Source
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject


def _check(s: Subject) -> Iterator[Hit]:
    model = s.get("model") or s.get("hf_repo") or (s.model.name if s.model is not None else "")
    if s.judged is None or not s.is_quantized or not model:
        return
    k, v = (s.codec(w) or (w or "") for w in s.effective_words)
    found = [j for j in s.judged if j.is_about(model, s.engine, k, v)]
    shown = k if k == v else f"k={k},v={v}"
    if not found:
        yield Hit(f"no verdict on {shown} for this model is in the store", s.dtype_place)
        return
    newest = found[-1]
    if newest.decision == "FAIL":
        yield Hit(f"{shown} FAILed on this model (run {newest.run})", s.dtype_place, "error")
    elif newest.decision != "PASS":
        yield Hit(f"{shown} is {newest.decision} on this model (run {newest.run})", s.dtype_place)


RULE = Rule(
    "no-valid-verdict",
    frozenset({"vllm", "sglang", "trtllm", "llama_cpp"}),
    "warning",
    "the store holds no PASS for this KV type on this model",
    "what other models lose says little about this one",
    "run kvgate check, and ship on its verdict",
    Source("file", "the store given with --store"),
    _check,
    timeless=True,
)
