"""SGLang: an FP8 cache on Hopper through FlashAttention 3 at long contexts, whose accumulation nobody has read."""

from __future__ import annotations

from collections.abc import Iterator

from kvgate.core.source import Source
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject

#: Below this the loss in one accumulator was not seen (as in the rule for vLLM).
_LONG_CONTEXT_TOKENS = 65_536


def _accumulation(s: Subject) -> Iterator[Hit]:
    if s.effective_words[0] != "fp8_e4m3" or not s.on_capability(("9",)):
        return
    named = [b for b in (s.get("decode_backend"), s.get("prefill_backend"), s.backend) if b]
    mla = s.model is not None and s.model.is_mla
    context = s.context_tokens
    if ("fa3" in named or (not named and not mla)) and context is not None and context >= _LONG_CONTEXT_TOKENS:
        yield Hit(f"fa3 reads an FP8 cache of {context:,} tokens here", s.dtype_place)


RULE = Rule(
    "sglang-fa3-accumulation",
    frozenset({"sglang"}),
    "warning",
    "FP8 attention on Hopper at long contexts; whether SGLang's kernel adds up in two levels was not read",
    "with one accumulator vLLM's build lost a needle at 128K (91 to 13 %), and found it again with two (89 %)",
    "check at the longest context that is served: kvgate check with needle",
    Source("spec", "vllm blog of 2026-04-22; the kernel of SGLang is its own build and was not read", "2026-04-22"),
    _accumulation,
)
