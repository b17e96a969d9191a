"""What vLLM's attention layers hold, as the logits processor that kvgate brings along writes it into the log.

Absence of a warning proves nothing: vLLM scales by 1.0 without a word where a checkpoint has no KV method, and where a
compressed-tensors checkpoint lacks a scale (0.32.0 layers/quantization/compressed_tensors/compressed_tensors.py: the
placeholders are 1.0). So the layers themselves are read, and held against the checkpoint's own tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Any, Final

from kvgate.core.deployment import ScaleSeen
from kvgate.enginefacts.log_patterns import load

#: As in the worker, which cannot be imported here.
LAYERS: Final = "kvgate-layers "
#: Scales are float32 inside vLLM, and bfloat16 or float32 in the file, which float32 holds exactly.
_REL: Final = 1e-6
_TORCH: Final = "torch."


@dataclass(frozen=True, slots=True)
class LayerSeen:
    """One attention layer of a running vLLM.

    Attributes:
        word: its KV word. cache_dtype: torch's name of the cache's type. query_dtype: likewise, as the kernel gets it.
        k_scale, v_scale: what the kernel takes; NaN where it is NaN. heads: scales of K, more than 1 where one a head.
    """

    layer: int
    word: str
    cache_dtype: str
    backend: str | None
    k_scale: float
    v_scale: float
    query_dtype: str
    heads: int = 1


def layers_of(lines: Iterable[str]) -> tuple[LayerSeen, ...]:
    """Layers in their order, each once; empty where the log has no such lines, or such as cannot be read."""
    found: dict[int, LayerSeen] = {}
    for line in lines:
        _, mark, text = line.partition(LAYERS)
        if not mark:
            continue
        try:
            for row in json.loads(text):
                seen = _layer(row)
                found[seen.layer] = seen
        except (ValueError, TypeError, IndexError):
            return ()
    return tuple(found[n] for n in sorted(found))


def _layer(row: Sequence[Any]) -> LayerSeen:
    number, word, cache, backend, k, v, _, query = row[:8]
    return LayerSeen(
        layer=int(number),
        word=str(word),
        cache_dtype=str(cache).removeprefix(_TORCH),
        backend=None if backend is None else str(backend),
        k_scale=float(k),
        v_scale=float(v),
        query_dtype=str(query).removeprefix(_TORCH),
        heads=int(row[8]) if len(row) > 8 else 1,
    )


def scaled(layers: Iterable[LayerSeen]) -> tuple[LayerSeen, ...]:
    """Layers whose cache is FP8: those that scales are for. A kept layer's word is `auto`."""
    return tuple(x for x in layers if x.word.startswith("fp8") and not x.word.endswith("per_token_head"))


def scales_seen(
    layers: Sequence[LayerSeen], side: str, wanted: Mapping[int, float] | None
) -> tuple[ScaleSeen | None, str]:
    """Scales of one side, and what is wrong with them; "" where all are as wanted.

    Args:
        side: "k" or "v".
        wanted: the checkpoint's scale a layer; empty where it has none, so that 1.0 is right; None is not known.

    Returns:
        None without a scaled layer. The origin is "unit" where every scale is 1.0, "checkpoint" where every one is the
        checkpoint's, else None.
    """
    here = {x.layer: getattr(x, f"{side}_scale") for x in scaled(layers)}
    if not here:
        return None, ""
    right = {n: x if wanted is None else wanted.get(n, 1.0) for n, x in here.items()}
    odd = {n: x for n, x in here.items() if not isclose(x, right[n], rel_tol=_REL)}
    is_unit = all(x == 1.0 for x in here.values())
    own = bool(wanted) and not odd
    numbers = [x for x in here.values() if x == x]
    seen = ScaleSeen(
        origin="checkpoint" if own else "unit" if is_unit else None,
        layers=len(here),
        lowest=min(numbers, default=None),
        highest=max(numbers, default=None),
    )
    return seen, _wrong(side, odd, len(here), wanted or {})


def _wrong(side: str, odd: Mapping[int, float], total: int, wanted: Mapping[int, float]) -> str:
    if not odd:
        return ""
    first = min(odd)
    right = f"the checkpoint says {wanted[first]:g}" if first in wanted else "the checkpoint has none, which is 1.0"
    return f"scales of {side.upper()}: {odd[first]:g} in layer {first}, {right} ({len(odd)} of {total} layers differ)"


def shared_word(words: Iterable[str]) -> str | None:
    """The one word that all say; None where they differ or there are none."""
    found = set(words)
    return found.pop() if len(found) == 1 else None


def codec_of(word: str) -> str | None:
    """Codec id of a word of vLLM or of torch: "float8_e4m3fn" is fp8_e4m3."""
    return load("vllm").codec_of(word)
