"""A quantized cache that kvgate has not judged on this model, or has judged against."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from kvgate.core.source import Source
from kvgate.lint.judged import Judged, asked_model
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject


def _check(s: Subject) -> Iterator[Hit]:
    # What a person said with --model comes before the command's own word for it.
    name = s.model.name if s.model is not None else s.get("model") or s.get("hf_repo") or ""
    if s.judged is None or not s.is_quantized or not name:
        return
    k, v = (s.codec(w) or (w or "") for w in s.effective_words)
    model = asked_model(name)
    found = [j for j in s.judged if j.is_about(model, s.engine, k, v)]
    shown = k if k == v else f"k={k},v={v}"
    if not found:
        yield Hit(f"no verdict on {shown} for this model is in the store", s.dtype_place)
        return
    newest = found[-1]
    if newest.decision == "FAIL":
        yield Hit(
            f"{shown} FAILed on this model (run {newest.run})",
            s.dtype_place,
            "error",
            "this very cache lost too much against its baseline, by the store's newest verdict on it",
            f"do not ship {shown} here; {_show(newest)} names the next recipe",
        )
    elif newest.decision != "PASS":
        yield Hit(f"{shown} is {newest.decision} on this model (run {newest.run})", s.dtype_place)


def _show(judged: Judged) -> str:
    """The command to see the run. An address of a database may hold a password, and is left out."""
    said = f" --store {shlex.quote(judged.store)}" if judged.store and "://" not in judged.store else ""
    return f"kvgate show {judged.run}{said}"


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
