"""A given text decoded token by token: what vLLM's sampler is told for requests that ask for it.

vLLM loads this by its name (`--logits-processors vllm_forced:ForcedTokens`) into its workers; it imports vLLM of that
interpreter. Log-probabilities are computed before it (`logprobs_mode` is raw), so that they are the model's own.
Source: vLLM 0.32.0 v1/sample/logits_processor/__init__.py AdapterLogitsProcessor, v1/sample/sampler.py (runner V1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor  # type: ignore[import-not-found,unused-ignore]

#: Name among a request's `vllm_xargs`.
KEY = "kvgate_forced"


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

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Forced | None:
        ids = (params.extra_args or {}).get(KEY)
        return Forced(ids) if ids else None
