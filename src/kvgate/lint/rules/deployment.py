"""What holds for every engine: many models under one option, parallelism, old toolkits, values that cannot be read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvgate.core.source import Source
from kvgate.enginefacts.facts import load
from kvgate.lint.read.argv import UNREAD
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject

_ALL = frozenset({"vllm", "sglang", "trtllm", "llama_cpp", "ollama", "lmdeploy"})
_SERVERS = frozenset({"vllm", "sglang", "trtllm"})
_CUDA = re.compile(r"cu(?:da)?[-_]?(\d{2})\.?(\d)")
#: More ranks than any machine has; and the largest number of them that a fix names.
_MAX_RANKS, _MAX_NAMED = 65_536, 64
_KEYS = ("kv_dtype", "k_dtype", "v_dtype", "backend", "skip_layers", "scales_json")


def _many(s: Subject) -> Iterator[Hit]:
    if s.is_quantized and s.others and (s.model is None or s.model.name not in s.others):
        names = ", ".join(s.others[:3])
        yield Hit(f"{s.k_word} is given to this model and to {names}", s.dtype_place)


def _opaque(s: Subject) -> Iterator[Hit]:
    for setting in s.command.settings:
        if setting.key == UNREAD:
            yield Hit(f"{setting.written} may hold options: what is in it was not checked", setting.place)
        elif setting.opaque and setting.key in _KEYS:
            yield Hit(f"the value of {setting.written} is a variable or template: it was not checked", setting.place)


def _tp(s: Subject) -> Iterator[Hit]:
    tp = s.number("tp")
    heads = s.model.kv_heads if s.model is not None else 0
    # Written so that NaN and infinity are left to the engine.
    if tp is None or not heads or not 2 <= tp <= _MAX_RANKS:
        return
    ranks = int(tp)
    if heads % ranks and ranks % heads:
        fits = ", ".join(str(n) for n in range(1, min(heads, _MAX_NAMED) + 1) if heads % n == 0)
        yield Hit(
            f"{heads} KV heads cannot be shared out among {ranks} ranks",
            s.place("tp"),
            "error",
            "every rank holds the same number of whole heads, or every head lies on the same number of ranks: "
            "the engine stops where neither divides the other",
            f"use a number of ranks that divides the heads: {fits}",
        )
    elif heads < ranks:
        yield Hit(f"{heads} KV heads on {ranks} ranks: each keeps one, so the cache grows", s.place("tp"))


def _old_cuda(s: Subject) -> Iterator[Hit]:
    text = s.command.env.get("CUDA_VERSION", "") or s.command.image.rsplit(":", 1)[-1]
    match = re.match(r"(\d{2})\.(\d)", text) or _CUDA.search(text)
    if s.is_fp8 and match and (int(match[1]), int(match[2])) < (11, 8):
        yield Hit(f"FP8 needs CUDA 11.8, and this is {match[1]}.{match[2]}", s.dtype_place)


def _unknown_version(s: Subject) -> Iterator[Hit]:
    if s.known == "unknown" and s.facts is not None:
        newest, since, until = s.facts.newest, s.facts.known_since, s.facts.known_until
        yield Hit(f"{s.engine} {s.version_text} has not been read: {since} to before {until} has, {newest} in full")


def _backend_pinned(s: Subject) -> Iterator[Hit]:
    if s.given("scales_json") and not s.command.program and not s.given("model"):
        # A file of scales alone: there is no server.
        return
    if s.engine == "sglang" and s.is_quantized and s.backend is None and not s.given("decode_backend"):
        yield Hit("no --attention-backend: which kernel runs depends on device, model and KV type", s.dtype_place)


RULE = (
    Rule(
        "one-kv-type-many-models",
        _ALL,
        "warning",
        "one KV type is given to several models",
        "at the same q8_0 two families differed tenfold (KL 0.377 against under 0.04)",
        "check each model on its own",
        Source(
            "spec", "KL benchmark of April 2026 (local models, top-40), second-hand; build and context not published"
        ),
        _many,
    ),
    Rule(
        "value-not-readable",
        _ALL,
        "warning",
        "an option's value is a variable or a template",
        "lint runs and expands nothing",
        "render it first, or lint the command with the value written out",
        Source("file", "the text itself"),
        _opaque,
        timeless=True,
    ),
    Rule(
        "tp-replicates-heads",
        _SERVERS,
        "warning",
        "there are fewer KV heads than tensor-parallel ranks",
        "heads are replicated, one on each rank: less capacity than the ranks promise",
        "use fewer ranks, or decode-context parallelism",
        Source("arithmetic", "max(1, KV heads / ranks) heads on each rank; vllm v1/core/kv_cache_utils.py", "0.32.0"),
        _tp,
    ),
    Rule(
        "fp8-old-cuda",
        frozenset({"vllm"}),
        "error",
        "an FP8 cache with CUDA before 11.8",
        "the FP8 types came with CUDA 11.8",
        "use an image with CUDA 11.8 or later",
        Source("spec", "vllm docs, Quantized KV Cache: fp8_e4m3 and fp8_e5m2 on CUDA 11.8+"),
        _old_cuda,
    ),
    Rule(
        "version-not-read",
        frozenset({"vllm", "sglang", "trtllm", "llama_cpp"}),
        "info",
        "the engine's version is outside what has been read",
        "what is an error for a known version is a warning here",
        "use a version that was read, or look the facts up for yours",
        Source(
            "spec", "enginefacts/*.toml: " + ", ".join(f"{e} {load(e).newest}" for e in ("vllm", "sglang", "trtllm"))
        ),
        _unknown_version,
        timeless=True,
    ),
    Rule(
        "sglang-backend-not-pinned",
        frozenset({"sglang"}),
        "info",
        "the attention backend is left to SGLang",
        "a comparison then may change the kernel with the KV type",
        "name --attention-backend on both arms",
        Source("spec", "model_override_base.get_default_attn_backend", "0.5.23"),
        _backend_pinned,
    ),
)
