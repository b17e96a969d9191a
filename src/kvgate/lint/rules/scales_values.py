"""Values of a checkpoint's KV scales: zero, negative, NaN, infinite, absent, placeholder, large; names and shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from kvgate.core.source import Source
from kvgate.core.text import one_line
from kvgate.lint.checkpoint import NAMES, Checkpoint, Scale
from kvgate.lint.command import Place
from kvgate.lint.rule import Hit, Rule, Severity
from kvgate.lint.subject import Subject

_ENGINES = frozenset({"vllm", "sglang"})
#: ModelOpt warns above it: amax / 448 > 0.5 is a largest value above 224, half of what E4M3 holds.
_LARGE_SCALE = 0.5
#: A scale is amax / 448; half precision's least normal number is already far below any real K or V.
_SMALL_SCALE = 2.0**-24
_NAMED = 6


def _checkpoint(s: Subject) -> Checkpoint | None:
    return s.model.checkpoint if s.model is not None else None


def _read_by(s: Subject) -> Literal["cache", "later", "nothing"]:
    """What reads the checkpoint's scales: this cache, one that is not asked for yet, or none.

    A word of 16 bits (a baseline, a rollback) and the types that scale each token by themselves read none. `auto` that
    the checkpoint does not turn into FP8 is 16 bits too, but nobody wrote that down: it may be a folder alone.
    """
    word = s.effective_words[0]
    if word is None or (word.startswith(("fp8", "nvfp4", "mxfp8", "fp4")) and "per_token" not in word):
        return "cache"
    return "later" if word == "auto" else "nothing"


def _where_read(check: Callable[[Subject], Iterator[Hit]]) -> Callable[[Subject], Iterator[Hit]]:
    """The check where a cache reads scales; a warning at most where `auto` is 16 bits as it stands."""

    def run(s: Subject) -> Iterator[Hit]:
        read = _read_by(s)
        if read == "nothing":
            return
        for hit in check(s):
            if read == "later" and s.command.program:
                why = "auto is 16 bits here and reads no scales; a quantized word would read these"
                yield replace(hit, severity="info" if hit.severity == "info" else "warning", why=why)
            else:
                yield hit

    return run


def _scales(s: Subject) -> tuple[Scale, ...]:
    found = _checkpoint(s)
    return tuple(x for x in found.scales if x.what == "scale") if found is not None else ()


def _bad_values(wrong: Callable[[float], bool], word: str) -> Callable[[Subject], Iterator[Hit]]:
    def check(s: Subject) -> Iterator[Hit]:
        scales = _scales(s)
        bad = [x for x in scales if any(wrong(v) for v in x.values)]
        if bad:
            yield Hit(f"{len(bad)} of {len(scales)} KV scales {word}: {_layers(bad)}", _place(bad[0]))

    return check


def _layers(bad: Sequence[Scale]) -> str:
    """Layers and sides, the first few by name."""
    words = [f"layer {x.layer} {x.side}" for x in bad[:_NAMED]]
    return ", ".join(words) + (f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else "")


def _place(scale: Scale) -> Place:
    return Place(str(scale.file), 0, one_line(scale.name, 120))


def _expected_layers(s: Subject) -> set[int]:
    return {y.index for y in s.model.layers} if s.model is not None else set()


def _wants_scales(s: Subject) -> bool:
    """Whether the checkpoint says that it carries KV scales."""
    return s.model is not None and (s.model.kv_scheme is not None or s.model.kv_algorithm.startswith("FP8"))


def _missing(s: Subject) -> Iterator[Hit]:
    found = _checkpoint(s)
    scheme = s.model.kv_scheme if s.model is not None else None
    if found is None or s.model is None or found.unread or (scheme is not None and scheme.get("dynamic") is True):
        return
    scales, expected = _scales(s), _expected_layers(s)
    if not scales:
        if _wants_scales(s):
            yield Hit("the configuration promises KV scales, and the files hold none", s.place("model"), "error")
        return
    sides = {side: {x.layer for x in scales if x.side in (side, "kv")} for side in ("k", "v")}
    # A side without any scale has a rule of its own.
    wanted = [side for side in (("k",) if s.model.is_mla else ("k", "v")) if sides[side]]
    lost = sorted((layer, side) for side in wanted for layer in expected - sides[side])
    if lost:
        words = ", ".join(f"layer {layer} {side}" for layer, side in lost[:_NAMED])
        more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
        yield Hit(
            f"{len(lost)} of {len(expected) * len(wanted)} KV scales are not there: {words}{more}", s.place("model")
        )


def _unit(s: Subject) -> Iterator[Hit]:
    scales = [x for x in _scales(s) if x.side in ("k", "v", "kv")]
    if scales and all(v == 1.0 for x in scales for v in x.values):
        yield Hit(f"all {len(scales)} KV scales are exactly 1.0", _place(scales[0]))


def _none(s: Subject) -> Iterator[Hit]:
    """FP8 without any scale: 1.0, and no engine says so."""
    found = _checkpoint(s)
    if s.is_fp8 and found is not None and not found.scales and not found.unread and not _wants_scales(s):
        words = [w for w in s.effective_words if w in ("fp8", "fp8_e4m3")]
        if words and not s.given("scales_json"):
            yield Hit("the checkpoint has no KV scales: the cache runs at scale 1.0, silently", s.dtype_place)


def _shape(s: Subject) -> Iterator[Hit]:
    model = s.model
    if model is None or not model.layers:
        return
    heads = {y.index: y.kv_heads for y in model.layers}
    per_head = (model.kv_scheme or {}).get("strategy") == "attn_head"
    bad = []
    for x in _scales(s):
        own = heads.get(x.layer, 0)
        count = len(x.values)
        if x.side == "q":
            fits = count == 1 or (per_head and own and count % own == 0)
        else:
            fits = count == 1 if not per_head else count in (1, own)
        if not fits:
            bad.append(x)
    if bad:
        want = f"{heads.get(bad[0].layer, '?')} (one a KV head)" if per_head else "1"
        yield Hit(
            f"{bad[0].name} has shape {list(bad[0].shape)}, and {want} is what loads; {len(bad)} are so", _place(bad[0])
        )


def _sglang_per_head(s: Subject) -> Iterator[Hit]:
    many = [x for x in _scales(s) if len(x.values) > 1]
    if many:
        yield Hit(f"{many[0].name} has one scale a head: SGLang takes one number only", _place(many[0]))


def _name(s: Subject) -> Iterator[Hit]:
    pattern = NAMES.get(s.engine)
    if pattern is None:
        return
    lost = [x for x in _scales(s) if not pattern.search(x.name)]
    if lost:
        yield Hit(
            f"{len(lost)} KV scales have names that {s.engine} does not load, such as {lost[0].name}", _place(lost[0])
        )


def _zero_point(s: Subject) -> Iterator[Hit]:
    found = _checkpoint(s)
    points = [x for x in found.scales if x.what != "scale" and any(v != 0 for v in x.values)] if found else []
    if points:
        yield Hit(f"{points[0].name} is not zero: the scales are asymmetric", _place(points[0]))


def _fused(s: Subject) -> Iterator[Hit]:
    fused = [x for x in _scales(s) if x.side == "kv"]
    if fused:
        yield Hit(f"{fused[0].name} is one scale for K and V", _place(fused[0]))


def _uneven_sides(s: Subject) -> Iterator[Hit]:
    """One of K and V has scales all through, the other none."""
    sides = {x.side for x in _scales(s)}
    if s.model is not None and not s.model.is_mla and "kv" not in sides and len(sides & {"k", "v"}) == 1:
        have = next(iter(sides & {"k", "v"}))
        yield Hit(f"only {have.upper()} has scales: the other side gets a copy of them", s.place("model"))


def _unread(s: Subject) -> Iterator[Hit]:
    found = _checkpoint(s)
    for text in (found.unread if found is not None else ())[:4]:
        yield Hit(text, s.place("model"))


def _large(s: Subject) -> Iterator[Hit]:
    large = [x for x in _scales(s) if x.side in ("k", "v", "kv") and any(_LARGE_SCALE < v < math.inf for v in x.values)]
    if large and not all(v == 1.0 for x in large for v in x.values):
        yield Hit(f"{len(large)} KV scales are above {_LARGE_SCALE}: {_layers(large)}", _place(large[0]))


def _tiny(s: Subject) -> Iterator[Hit]:
    tiny = [x for x in _scales(s) if any(0 < v < _SMALL_SCALE for v in x.values)]
    if tiny:
        yield Hit(f"{len(tiny)} KV scales are below 2^-24: {_layers(tiny)}", _place(tiny[0]))


def _affine(s: Subject) -> Iterator[Hit]:
    found = _checkpoint(s)
    biases = [x for x in found.scales if x.what == "bias"] if found is not None else []
    algorithm = s.model.kv_algorithm if s.model is not None else ""
    if algorithm.endswith("_AFFINE") or (biases and algorithm):
        yield Hit(
            f"ModelOpt's affine cache ({algorithm or 'biases'}) is not read by the engines' FP8 path", s.place("model")
        )


_RANGE = Source("arithmetic", "scale = amax / 448, stored = x / scale")
_CT = Source("spec", "llm-compressor issue 2853", "2026-06-23")


def _rule(
    name: str,
    severity: Severity,
    title: str,
    why: str,
    fix: str,
    source: Source,
    check: Callable[[Subject], Iterator[Hit]],
) -> Rule:
    return Rule(name, _ENGINES, severity, title, why, fix, source, _where_read(check), timeless=True)


_AGAIN = "calibrate again, and look at every layer: the first one may be fine"
RULE = (
    _rule(
        "scales-zero",
        "error",
        "KV scales are zero",
        "a layer that reads the cache without update() is not seen by a calibrator; engines treat 0 differently",
        _AGAIN,
        _CT,
        _bad_values(lambda v: v == 0, "are zero"),
    ),
    _rule(
        "scales-negative",
        "error",
        "KV scales are negative",
        "vLLM takes two negative values for absent ones and runs at 1.0",
        _AGAIN,
        Source("spec", "layers/quantization/kv_cache.py", "0.32.0"),
        _bad_values(lambda v: v < 0, "are negative"),
    ),
    _rule(
        "scales-not-finite",
        "error",
        "KV scales are NaN or infinite",
        "every value of the layer becomes NaN or zero",
        _AGAIN,
        _RANGE,
        _bad_values(lambda v: not math.isfinite(v), "are NaN or infinite"),
    ),
    _rule(
        "scales-missing",
        "error",
        "KV scales of some layers are not there",
        "a missing scale becomes 1.0 without a message",
        _AGAIN,
        Source("spec", "layers/quantization/kv_cache.py; compressed-tensors placeholders start at 1.0", "0.32.0"),
        _missing,
    ),
    _rule(
        "scales-one-side",
        "warning",
        "only one of K and V has scales",
        "vLLM copies the one to the other",
        "calibrate both",
        Source("spec", "layers/quantization/kv_cache.py", "0.32.0"),
        _uneven_sides,
    ),
    _rule(
        "scales-unit",
        "warning",
        "all KV scales are exactly 1.0",
        "that is a placeholder, or ModelOpt's fp8_cast, which calibrates nothing",
        "calibrate, or count this checkpoint as uncalibrated",
        Source("spec", "ModelOpt examples/hf_ptq: *_cast pins amax to 448", "0.47.0dev"),
        _unit,
    ),
    _rule(
        "scales-silently-unit",
        "warning",
        "an FP8 cache on a checkpoint without KV scales runs at scale 1.0",
        "the warning about scales comes from one method only, so its absence proves nothing",
        "calibrate, or check as uncalibrated",
        Source("spec", "model_executor/layers/attention/attention.py; layers/quantization/kv_cache.py", "0.32.0"),
        _none,
    ),
    _rule(
        "scales-shape",
        "error",
        "KV scales have a shape that does not load",
        "one number, or one for each KV head where the checkpoint says attn_head",
        "calibrate with the strategy that the engine takes",
        Source("spec", "layers/quantization/kv_cache.py KVCacheScaleParameter; compressed-tensors attn_head", "0.32.0"),
        _shape,
    ),
    Rule(
        "sglang-per-head-scales",
        frozenset({"sglang"}),
        "error",
        "SGLang takes one scale a tensor",
        "a scale for each head has no kernel there",
        "calibrate with strategy tensor",
        Source("spec", "layers/quantization/kv_cache.py", "0.5.23"),
        _where_read(_sglang_per_head),
        timeless=True,
    ),
    _rule(
        "scales-name",
        "error",
        "KV scales have names that this engine does not load",
        "they are dropped, and the cache runs at 1.0",
        "rename them to self_attn.k_scale and self_attn.v_scale",
        Source("spec", "vLLM weight_utils.maybe_remap_kv_scale_name 0.32.0; SGLang kv_cache.py 0.5.23"),
        _name,
    ),
    _rule(
        "scales-zero-point",
        "error",
        "KV zero points or biases are not zero",
        "the engines' FP8 path is symmetric and drops them",
        "calibrate with symmetric true",
        Source("spec", "compressed_tensors scheme checks", "0.32.0"),
        _zero_point,
    ),
    _rule(
        "scales-fused",
        "warning",
        "K and V share one scale (kv_scale)",
        "the name is deprecated, and V gets K's range",
        "calibrate k_scale and v_scale",
        Source("spec", "weight_utils.maybe_remap_kv_scale_name: DEPRECATED", "0.32.0"),
        _fused,
    ),
    _rule(
        "scales-large",
        "warning",
        "KV scales are large",
        "values above 224 are in the cache: the steps between codes are coarse, and outliers may be clipped",
        "look at these layers; keep them, or smooth K",
        Source("spec", "ModelOpt export: 'Large KV activation(s) detected' above 0.5", "0.47.0dev"),
        _large,
    ),
    _rule(
        "scales-tiny",
        "warning",
        "KV scales are tiny",
        "they imply a largest value below 0.00003, which no cached layer has",
        _AGAIN,
        _RANGE,
        _tiny,
    ),
    _rule(
        "scales-affine",
        "error",
        "the checkpoint's cache is affine",
        "k_bias and v_bias are dropped",
        "export with fp8 instead of fp8_affine",
        Source("spec", "ModelOpt export: k_proj.k_bias", "0.47.0dev"),
        _affine,
    ),
    Rule(
        "checkpoint-unread",
        _ENGINES,
        "error",
        "a file of the checkpoint could not be read",
        "its scales are unknown",
        "get the file again",
        Source("file", "the checkpoint itself"),
        _unread,
        timeless=True,
    ),
)
