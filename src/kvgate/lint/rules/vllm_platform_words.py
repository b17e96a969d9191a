"""vLLM on AMD's GPUs and on CPUs: words of the KV option that none of the platform's backends reads.

NVIDIA's devices are judged by the order of choice, in `vllm_selection`; of other vendors there are no rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvgate.core.source import Source
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject

_NAMES = {"amd": "ROCm", "cpu": "the CPU"}


def _unread(s: Subject) -> Iterator[Hit]:
    word = s.effective_words[0]
    if s.facts is None or s.vendor not in _NAMES or word is None or not s.is_quantized:
        return
    everywhere = {w for row in s.facts.backend for w in row.dtypes}
    vendors = ("amd", "any") if s.vendor == "amd" else ("cpu",)
    here = [w for row in s.facts.backend if row.vendor in vendors for w in row.dtypes]
    if word in everywhere and word not in here:
        words = ", ".join(dict.fromkeys(here))
        yield Hit(f"no backend of {_NAMES[s.vendor]} reads {word}", s.dtype_place, None, "", f"write one of {words}")


RULE = Rule(
    "vllm-platform-word",
    frozenset({"vllm"}),
    "error",
    "the KV type has no attention backend on this platform",
    "NVFP4 is read by FlashInfer alone, and the types with a scale for each token by Triton alone",
    "write fp8_e4m3",
    Source("spec", "v1/attention/backends/, class attributes of each backend", "0.32.0"),
    _unread,
    newest_only=True,
)
