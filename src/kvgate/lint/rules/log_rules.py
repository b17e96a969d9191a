"""A start log held against the command: what was asked for, and what the engine says it did."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from kvgate.core.errors import UserError
from kvgate.core.source import Source
from kvgate.enginefacts import log_patterns
from kvgate.lint.command import Place
from kvgate.lint.log_view import LogView
from kvgate.lint.rule import Hit, Rule, Severity
from kvgate.lint.subject import Subject

_ALL = frozenset({"vllm", "sglang", "trtllm", "llama_cpp", "ollama"})
#: Ollama's own line, and llama.cpp's of early 2025.
_OLLAMA_TYPES = re.compile(
    r"(?:kv_size|KV self size|init)[^\n]{0,300}?type_k = '?(?P<k>\w+)'?,? [^\n]{0,80}?type_v = '?(?P<v>\w+)'?"
)
_FA3_FALLBACK = "FlashAttention3 only supports fp8_e4m3 if using FP8"


def _codec(engine: str, word: str) -> str | None:
    try:
        return log_patterns.load("llama_cpp" if engine == "ollama" else engine).codec_of(word)
    except UserError:
        return None


def _at(log: LogView, number: int, text: str) -> Place:
    return Place(log.path, number, text[:160])


def _dtype(s: Subject) -> Iterator[Hit]:
    log = s.log
    if log is None:
        return
    wanted = {"k": s.k_word, "v": s.v_word}
    seen: list[tuple[str, str, Place]] = []
    for fact, sides in (("dtype", ("k",)), ("k_type", ("k",)), ("v_type", ("v",))):
        seen += [(side, word, _at(log, line.number, line.text)) for word, line in log.values(fact) for side in sides]
    for match in _OLLAMA_TYPES.finditer(log.text[: 4 << 20]):
        number = log.text.count("\n", 0, match.start()) + 1
        seen += [(side, match[side], _at(log, number, match[0])) for side in ("k", "v")]
    told: set[str] = set()
    for side, word, place in seen:
        asked = wanted[side]
        if asked is None or asked == "auto" or side in told:
            continue
        own = s.codec(asked) or _codec(s.engine, asked) or asked
        found = _codec(s.engine, word) or word.lower().removeprefix("torch.")
        if own != found and word.lower() != asked:
            told.add(side)
            yield Hit(f"{asked} was asked for {side.upper()}, and the log says {word}", place)


def _backend(s: Subject) -> Iterator[Hit]:
    log = s.log
    if log is None or s.backend is None:
        return
    for word, line in log.values("backend"):
        if word.lower().removeprefix("attentionbackendenum.") != s.backend.lower():
            yield Hit(f"{s.backend} was asked for, and the log says {word}", _at(log, line.number, line.text))
            return


def _fallback(s: Subject) -> Iterator[Hit]:
    if s.log is None:
        return
    found = s.log.having(_FA3_FALLBACK)
    if found is not None:
        yield Hit("fa3 was given up for triton", _at(s.log, *found))


def _json_failed(s: Subject) -> Iterator[Hit]:
    if s.log is None:
        return
    found = s.log.having("Defaulting to KV cache scaling factors = 1.0")
    if found is not None:
        yield Hit("the scales file was not used: scales are 1.0", _at(s.log, *found))


def _unit(s: Subject) -> Iterator[Hit]:
    if s.log is None:
        return
    found = s.log.having("Using KV cache scaling factor 1.0 for fp8_e4m3")
    if found is not None:
        yield Hit("the engine says that KV scales are 1.0", _at(s.log, *found))


def _dropped(s: Subject) -> Iterator[Hit]:
    if s.log is None:
        return
    found = s.log.having("but not found the expected name in the model")
    if found is not None:
        yield Hit("scales of the checkpoint were dropped: the model has no parameter of that name", _at(s.log, *found))


def _false_alarm(s: Subject) -> Iterator[Hit]:
    checkpoint = s.model.checkpoint if s.model is not None else None
    if s.log is None or checkpoint is None or not checkpoint.scales:
        return
    found = s.log.having("Using FP8 KV cache but no scaling factors provided")
    if found is not None:
        yield Hit("the warning about scales is a false alarm: the checkpoint carries them", _at(s.log, *found))


def _rotation(s: Subject) -> Iterator[Hit]:
    if s.log is None:
        return
    found = s.log.having("attention rotation force disabled")
    if found is not None:
        yield Hit("the log says that rotation was switched off", _at(s.log, *found))


def _rotation_differs(s: Subject) -> Iterator[Hit]:
    """A quantized side whose heads are multiples of 64 is rotated; the log says 0."""
    if s.log is None or s.model is None or not s.model.layers or s.model.is_mla:
        return
    sizes = {"k": {y.k_dim for y in s.model.layers}, "v": {y.v_dim for y in s.model.layers}}
    for word, line in s.log.values("rotation"):
        side = line.facts.get("rotation_side", "")
        asked = s.k_word if side == "k" else s.v_word
        quantized = asked not in (None, "f32", "f16", "bf16") and bool(s.codec(asked))
        dims = sizes.get(side, set())
        if word == "0" and quantized and len(dims) == 1 and all(d % 64 == 0 for d in dims):
            yield Hit(
                f"{side.upper()} in {asked} should be rotated, and the log says it is not",
                _at(s.log, line.number, line.text),
            )


def _flash_off(s: Subject) -> Iterator[Hit]:
    if s.log is None:
        return
    found = s.log.having("not supported, set to disabled")
    if found is not None and "lash" in found[1]:
        yield Hit("flash attention was switched off by a device mismatch", _at(s.log, *found))


def _slow_pair(s: Subject) -> Iterator[Hit]:
    if s.log is None:
        return
    found = s.log.having("no FlashAttention vector kernel compiled for K/V types")
    if found is not None:
        yield Hit(
            "K and V are converted to f16 for each step: no kernel was compiled for this pair", _at(s.log, *found)
        )


def _other_engine(s: Subject) -> Iterator[Hit]:
    if s.log is not None and s.engine in log_patterns.engines() and not s.log.lines:
        yield Hit(f"no line of the log is one of {s.engine}'s", Place(s.log.path))


def _rule(
    name: str,
    engines: frozenset[str],
    severity: Severity,
    title: str,
    why: str,
    fix: str,
    ref: str,
    check: Callable[[Subject], Iterator[Hit]],
    version: str = "",
) -> Rule:
    return Rule(name, engines, severity, title, why, fix, Source("log", ref, version), check, timeless=True)


RULE = (
    _rule(
        "log-dtype-differs",
        _ALL,
        "error",
        "the log shows another KV type than was asked for",
        "a shell's variable does not reach a service, or flash attention is off: a comparison would be of f16 with f16",
        "make the setting visible to the server, and read the log again before measuring",
        "ollama issue 8921; the engines' own lines, enginefacts/log_lines/",
        _dtype,
    ),
    _rule(
        "log-backend-differs",
        _ALL,
        "error",
        "the log shows another attention backend than was asked for",
        "a server that starts is no evidence that the backend asked for runs",
        "name a backend that serves this KV type",
        "the engines' own lines, enginefacts/log_lines/",
        _backend,
    ),
    _rule(
        "log-fa3-fallback",
        frozenset({"sglang"}),
        "error",
        "SGLang changed fa3 to triton",
        "FlashAttention 3 has only fp8_e4m3 there",
        "write fp8_e4m3, or name triton on purpose",
        _FA3_FALLBACK + "; sglang issue 18550",
        _fallback,
    ),
    _rule(
        "log-scales-file-failed",
        frozenset({"sglang"}),
        "error",
        "the log says that the scales file failed",
        "'Loaded KV cache scaling factors' is printed all the same",
        "correct the file, or put the scales into the checkpoint",
        "Defaulting to KV cache scaling factors = 1.0",
        _json_failed,
        "0.5.23",
    ),
    _rule(
        "log-unit-scales",
        frozenset({"vllm"}),
        "warning",
        "the log says that KV scales are 1.0",
        "the line comes from one method only; without it scales may be 1.0 too",
        "calibrate, or check as uncalibrated",
        "Using KV cache scaling factor 1.0 for fp8_e4m3",
        _unit,
        "0.32.0",
    ),
    _rule(
        "log-scales-dropped",
        frozenset({"vllm"}),
        "error",
        "the log says that scales of the checkpoint were dropped",
        "the cache runs at 1.0",
        "rename them to what the model expects",
        "Found ... in the checkpoint, but not found the expected name in the model",
        _dropped,
        "0.32.0",
    ),
    _rule(
        "log-scales-false-alarm",
        frozenset({"sglang"}),
        "info",
        "SGLang warns of missing scales though the checkpoint has them",
        "the warning looks only at --quantization-param-path",
        "ignore it",
        "Using FP8 KV cache but no scaling factors provided",
        _false_alarm,
        "0.5.23",
    ),
    _rule(
        "log-rotation-off",
        frozenset({"llama_cpp"}),
        "warning",
        "the log says that rotation was off",
        "a quantized cache is then much worse",
        "take LLAMA_ATTN_ROT_DISABLE out of the server's environment",
        "attention rotation force disabled (LLAMA_ATTN_ROT_DISABLE)",
        _rotation,
        "b11549",
    ),
    _rule(
        "log-rotation-differs",
        frozenset({"llama_cpp"}),
        "warning",
        "the log shows no rotation where the head size promises one",
        "the variable is set in the server's environment, or the build differs",
        "read the start of the log for the reason, and do not compare with rotated runs",
        "llama_kv_cache: n_rot_k = 0",
        _rotation_differs,
        "b11549",
    ),
    _rule(
        "log-flash-attention-off",
        frozenset({"llama_cpp"}),
        "warning",
        "the log says that flash attention was switched off",
        "auto gives it up where a layer's device differs from its cache's",
        "write -fa on, or put the layers on one device",
        "Flash Attention not supported, set to disabled",
        _flash_off,
        "b11434",
    ),
    _rule(
        "log-pair-not-compiled",
        frozenset({"llama_cpp"}),
        "warning",
        "the log says that no kernel was compiled for this pair of types",
        "both are converted to f16 first, which is slow",
        "use one type for both, or build with GGML_CUDA_FA_QUANTS",
        "no FlashAttention vector kernel compiled for K/V types",
        _slow_pair,
        "b10876",
    ),
    _rule(
        "log-of-another-engine",
        _ALL,
        "warning",
        "the log holds no line of this engine",
        "nothing in it can confirm what runs",
        "give the start log of this server, at the engine's INFO level",
        "enginefacts/log_lines/",
        _other_engine,
    ),
)
