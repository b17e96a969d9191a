"""SGLang's 4-bit caches: only on CUDA of a recent toolkit, and not in the unified memory pool."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from kvgate.core.source import Source
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject

_SGLANG = frozenset({"sglang"})
_FP4 = ("nvfp4", "fp4_mx_block16")
#: What SGLang asks for where PyTorch has no 4-bit type (mem_cache/kv_cache_dtype.py: PyTorch 2.8 and CUDA 12.8).
_CUDA = (12, 8)
_TAG = re.compile(r"cu(?:da)?[-_]?(1[0-9])\.?(\d)")


def _cuda_only(s: Subject) -> Iterator[Hit]:
    if s.k_word in _FP4 and s.vendor not in ("", "nvidia"):
        yield Hit(f"{s.k_word} is for CUDA only, and the device is {s.vendor}'s", s.dtype_place)


def _toolkit(s: Subject) -> Iterator[Hit]:
    own = s.command.env.get("CUDA_VERSION", "")
    match = re.match(r"(\d{1,2})\.(\d)", own) or _TAG.search(s.command.image.rsplit(":", 1)[-1])
    if s.k_word in _FP4 and match and (int(match[1]), int(match[2])) < _CUDA:
        yield Hit(f"{s.k_word} needs CUDA 12.8, and this is {match[1]}.{match[2]}", s.dtype_place, "warning")


def _unified(s: Subject) -> Iterator[Hit]:
    if s.k_word in _FP4 and s.given("enable_unified_memory"):
        yield Hit(f"{s.k_word} does not go with the unified memory pool", s.place("enable_unified_memory"))


def _rule(name: str, title: str, why: str, fix: str, check: Callable[[Subject], Iterator[Hit]]) -> Rule:
    source = Source("spec", "arg_groups/kv_cache_hook.py handle_kv4_compatibility", "0.5.23")
    return Rule(name, _SGLANG, "error", title, why, fix, source, check, newest_only=True)


RULE = (
    _rule(
        "sglang-fp4-cuda-only",
        "a 4-bit cache on a device that is not NVIDIA's",
        "SGLang stops: FP4 is not tested on other platforms",
        "write fp8_e4m3",
        _cuda_only,
    ),
    _rule(
        "sglang-fp4-old-cuda",
        "a 4-bit cache with CUDA before 12.8",
        "the 4-bit conversions came with CUDA 12.8 and PyTorch 2.8",
        "use an image with CUDA 12.8 or later",
        _toolkit,
    ),
    _rule(
        "sglang-fp4-unified-memory",
        "a 4-bit cache with --enable-unified-memory",
        "the unified pool allocates no block scales",
        "leave --enable-unified-memory out",
        _unified,
    ),
)
