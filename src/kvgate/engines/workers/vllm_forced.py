"""A given text decoded token by token: what vLLM's sampler is told for requests that ask for it.

vLLM loads this by its name (`--logits-processors vllm_forced:ForcedTokens`) into its workers; it imports vLLM of that
interpreter. Log-probabilities are computed before it (`logprobs_mode` is raw), so that they are the model's own.
Source: vLLM 0.32.0 v1/sample/logits_processor/__init__.py AdapterLogitsProcessor, v1/sample/sampler.py (runner V1).

It also stands where the loaded layers can be seen: at the first request it writes what each attention layer holds into
the log, lines that begin with `LAYERS`, one JSON list of rows each. A row is

    [layer, KV word, torch dtype of the cache, backend, scale of K, of V, of Q, dtype of the query]

Scales are those that kernels take (`_k_scale_float`: model_executor/layers/attention/attention.py); where a layer has
one a head, the largest, and the count of heads stands at the end of the row.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor  # type: ignore[import-not-found,unused-ignore]

#: Name among a request's `vllm_xargs`.
KEY = "kvgate_forced"
#: Begins the lines of what is inside.
LAYERS = "kvgate-layers "
#: Rows of one line, so that a line stays short enough to be kept whole.
ROWS = 32
_LAYER = re.compile(r"(?:^|\.)(\d+)\.")


class Forced:
    """One request: leaves one token to choose from at each step."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = tuple(int(i) for i in ids)

    def __call__(self, output_ids: Sequence[int], logits: Any) -> Any:
        step = len(output_ids)
        if step < len(self._ids):
            logits.fill_(float("-inf"))
            logits[self._ids[step]] = 0.0
        return logits


class ForcedTokens(AdapterLogitsProcessor):  # type: ignore[misc,unused-ignore]
    """Makes a `Forced` for each request that names its tokens."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self._config, self._told = vllm_config, False

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Forced | None:
        if not self._told:
            self._told = True
            tell(self._config)
        ids = (params.extra_args or {}).get(KEY)
        return Forced(ids) if ids else None


def tell(config: Any) -> None:
    """Write what the layers hold to the log. Another version's layers may look otherwise: then there are no lines."""
    with contextlib.suppress(Exception):
        layers = config.compilation_config.static_forward_context
        rows = list(layer_rows(layers, str(config.model_config.dtype)))
        for first in range(0, len(rows), ROWS):
            print(LAYERS + json.dumps(rows[first : first + ROWS]), file=sys.stderr, flush=True)


def layer_rows(layers: Any, model_dtype: str) -> Iterator[list[Any]]:
    """Rows of the layers that keep a cache in a type."""
    for name, layer in layers.items():
        number = _LAYER.search(name)
        if number is None or not hasattr(layer, "kv_cache_dtype") or not hasattr(layer, "_k_scale"):
            continue
        cache = layer.kv_cache[0] if isinstance(layer.kv_cache, (list, tuple)) else layer.kv_cache
        backend = getattr(layer, "attn_backend", None)
        quantized = getattr(layer, "query_quant", None) is not None
        row = [int(number[1]), layer.kv_cache_dtype, str(cache.dtype), backend.get_name() if backend else None]
        row += [_number(getattr(layer, f"_{side}_scale_float")) for side in "kvq"]
        row.append("torch.float8_e4m3fn" if quantized else model_dtype)
        heads = int(layer._k_scale.numel())
        yield [*row, heads] if heads > 1 else row


def _number(value: Any) -> float | str:
    """A float; NaN and infinity as words, which JSON has no numbers for."""
    number = float(value)
    return number if number - number == 0 else repr(number)
