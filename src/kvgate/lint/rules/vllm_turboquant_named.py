"""vLLM: TURBOQUANT or ULTRAQUANT named for all layers of a dense model, whose boundary layers stay in 16 bits.

vLLM 0.32.0 engine/arg_utils.py adds the first two and the last two layers to the skip list (none for hybrids); those
layers are asked for the named backend too, which reads packed caches only.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvgate.core.source import Source
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject

_PACKED = {"TURBOQUANT": "turboquant_", "ULTRAQUANT": "ultraquant_"}


def _named(s: Subject) -> Iterator[Hit]:
    word = s.k_word or ""
    prefix = _PACKED.get(s.backend or "")
    dense = s.model is not None and bool(s.model.layers) and not s.model.is_hybrid
    if prefix and word.startswith(prefix) and dense:
        yield Hit(
            f"{s.backend} is named for every layer, and the first two and the last two stay in 16 bits, "
            "which it does not read",
            s.place("backend", "attention_config"),
        )


RULE = Rule(
    "vllm-turboquant-named",
    frozenset({"vllm"}),
    "error",
    "TURBOQUANT is named on a dense model, whose boundary layers it cannot serve",
    "the start stops with a ValueError: the kept layers have no valid backend",
    "leave --attention-backend out: vLLM takes TURBOQUANT for the packed layers by itself",
    Source("spec", "engine/arg_utils.py; turboquant/config.py get_boundary_skip_layers; platforms/cuda.py", "0.32.0"),
    _named,
    newest_only=True,
)
