"""The share of memory that an engine may use is a share: 0.95, and not 95."""

from __future__ import annotations

from collections.abc import Iterator

from kvgate.core.source import Source
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject


def _check(s: Subject) -> Iterator[Hit]:
    share = s.number("memory_fraction")
    # Written so that NaN is a finding too.
    if share is None or 0 < share <= 1:
        return
    fix = f"write {share / 100:g}" if 1 < share <= 100 else ""
    yield Hit(f"{s.get('memory_fraction')} is no share of memory", s.place("memory_fraction"), None, "", fix)


RULE = Rule(
    "memory-share",
    frozenset({"vllm", "sglang", "trtllm"}),
    "error",
    "the share of memory is not between 0 and 1",
    "vLLM stops at it, and the others would take memory that is not there",
    "write a share such as 0.9",
    Source("spec", "vllm config/cache.py gpu_memory_utilization; sglang memory_hook.py; llmapi/llm_args.py", "0.32.0"),
    _check,
    timeless=True,
)
