"""The JSON file of --quantization-param-path: its shape, its values, and whether anything reads it.

Shape: SGLang 0.5.23 model_loader/weight_utils.py QuantParamSchema, KVCacheQuantSchema, kv_cache_scales_loader. An error
while it is read is caught, the scales become 1.0, and the log still says that they were loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvgate.core.errors import UserError
from kvgate.core.source import Source
from kvgate.core.text import one_line
from kvgate.lint.command import Place
from kvgate.lint.read.argv import UNREAD
from kvgate.lint.rule import Hit, Rule, Severity
from kvgate.lint.subject import Subject
from kvgate.models.read_json import read_json_object

_SGLANG = frozenset({"sglang"})
_SHAPE = Source("spec", "model_loader/weight_utils.py QuantParamSchema, KVCacheQuantSchema", "0.5.23")
_DTYPE = "float8_e4m3fn"
_MAX_BYTES = 16 << 20
#: Families whose models read the file; any other raises an error.
_FAMILIES = (
    "opt",
    "llama",
    "qwen2",
    "qwen3",
    "mimo",
    "mimo_v2",
    "glm4",
    "glm5_next",
    "hunyuan",
    "exaone4",
    "arcee",
    "solar",
    "apertus",
)


@dataclass(frozen=True)
class _File:
    path: Path
    body: Mapping[str, object]

    @property
    def cache(self) -> Mapping[str, object]:
        found = self.body.get("kv_cache")
        return found if isinstance(found, Mapping) else {}

    @property
    def ranks(self) -> Mapping[str, object]:
        found = self.cache.get("scaling_factor")
        return found if isinstance(found, Mapping) else {}

    def place(self, field: str = "") -> Place:
        return Place(str(self.path), 0, field)


def _path(s: Subject) -> Path | None:
    given = s.get("scales_json")
    if given is None:
        return None
    beside = Path(s.command.place.file).parent / given if s.command.place.file else Path(given)
    return next((p for p in (Path(given), beside) if p.is_file()), None)


def _file(s: Subject) -> _File | None:
    path = _path(s)
    if path is None:
        return None
    try:
        return _File(path, read_json_object(path, max_bytes=_MAX_BYTES))
    except UserError:
        return None


def _unreadable(s: Subject) -> Iterator[Hit]:
    given = s.get("scales_json")
    if given is None:
        return
    path = _path(s)
    if path is None:
        yield Hit(
            f"the scales file {one_line(given, 120)} is not here, so it was not read", s.place("scales_json"), "warning"
        )
        return
    try:
        read_json_object(path, max_bytes=_MAX_BYTES)
    except UserError as e:
        yield Hit(str(e), s.place("scales_json"))


def _with_file(check: Callable[[Subject, _File], Iterator[Hit]]) -> Callable[[Subject], Iterator[Hit]]:
    def run(s: Subject) -> Iterator[Hit]:
        file = _file(s)
        if file is not None:
            yield from check(s, file)

    return run


def _model_type(s: Subject, f: _File) -> Iterator[Hit]:
    own = f.body.get("model_type")
    if not isinstance(own, str):
        yield Hit("model_type is not there", f.place("model_type"))
    elif s.model is not None and s.model.config and own.lower() != s.model.model_type:
        yield Hit(
            f"model_type is {one_line(own, 40)!r}, and the model's is {s.model.model_type!r}", f.place("model_type")
        )


def _dtype(s: Subject, f: _File) -> Iterator[Hit]:
    own = f.cache.get("dtype")
    if own != _DTYPE:
        yield Hit(
            f"kv_cache.dtype is {one_line(str(own), 40)!r}, and only {_DTYPE!r} is taken", f.place("kv_cache.dtype")
        )


def _rank_keys(s: Subject, f: _File) -> Iterator[Hit]:
    where = f.place("kv_cache.scaling_factor")
    if not f.ranks:
        yield Hit("kv_cache.scaling_factor is not there, or empty", where)
        return
    odd = [k for k in f.ranks if not k.isascii() or not k.isdigit()]
    if odd:
        plain = one_line(odd[0], 40)
        fix = "write '0'" if odd[0] == "rank0" else "write the rank's number"
        yield Hit(f"the key {plain!r} is no rank number: the file does not load", where, None, "", fix)
        return
    tp = int(s.number("tp") or 1)
    if not s.given("tp") and len(f.ranks) > 1 and (not s.command.program or s.given(UNREAD)):
        # A file alone, or options that nobody here can see.
        return
    have = {int(k[:9]) for k in f.ranks}
    if have != set(range(tp)):
        lost = ", ".join(str(r) for r in sorted(set(range(tp)) - have)[:8])
        said = f"ranks {lost} are missing" if lost else f"there are {len(have)} ranks"
        yield Hit(f"{said}, and the server runs with {tp}", where)


def _layer_keys(s: Subject, f: _File) -> Iterator[Hit]:
    count = s.model.layer_count if s.model is not None else 0
    for rank, layers in list(f.ranks.items())[:64]:
        where = f.place(f"kv_cache.scaling_factor.{one_line(rank, 20)}")
        if not isinstance(layers, Mapping) or not layers:
            yield Hit("a rank holds no layers", where)
            continue
        odd = [k for k in layers if not k.isascii() or not k.isdigit()]
        if odd:
            yield Hit(f"the key {one_line(odd[0], 40)!r} is no layer number", where)
            continue
        numbers = {int(k[:9]) for k in layers}
        wanted = count or max(numbers) + 1
        if numbers != set(range(wanted)):
            said = f"{len(numbers)} layers are given, and the model has {wanted}" if count else "layers are left out"
            if len(numbers) == wanted:
                said = f"layers {min(numbers)} to {max(numbers)} are given, and the model's are 0 to {wanted - 1}"
            yield Hit(said, where)


def _values(s: Subject, f: _File) -> Iterator[Hit]:
    for rank, layers in list(f.ranks.items())[:64]:
        if not isinstance(layers, Mapping):
            continue
        bad = [k for k, v in layers.items() if not _is_scale(v)]
        if bad:
            named = ", ".join(one_line(k, 12) for k in bad[:6])
            where = f.place(f"kv_cache.scaling_factor.{one_line(rank, 20)}")
            yield Hit(f"{len(bad)} of {len(layers)} scales are no positive finite numbers: layers {named}", where)


def _is_scale(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _not_e4m3(s: Subject) -> Iterator[Hit]:
    if s.given("scales_json") and s.k_word not in (None, "fp8_e4m3") and s.effective_words[0] != "fp8_e4m3":
        yield Hit(f"scales are read for fp8_e4m3 only, and the cache is {s.k_word}", s.place("scales_json"))


def _family(s: Subject) -> Iterator[Hit]:
    if s.given("scales_json") and s.model is not None and s.model.config and s.model.model_type not in _FAMILIES:
        yield Hit(
            f"models of type {s.model.model_type} do not read such a file: the start stops", s.place("scales_json")
        )


def _used(s: Subject) -> Iterator[Hit]:
    if not s.given("scales_json") or not s.command.settings or s.get("kv_dtype") is None:
        return
    if s.command.place.file and s.command.place.file == s.get("scales_json"):
        # The file alone is linted; there is no server whose backend could be told.
        return
    backend = s.backend or s.get("decode_backend")
    if backend == "fa3":
        said = "fa3 crashes on scales from a file"
    elif backend == "flashinfer":
        said = "flashinfer divides K and V by them and reads without multiplying"
    elif backend == "triton":
        said = "triton ignores scales from a file"
    else:
        said = "scales from a file reach no kernel whole: fa3 crashes, flashinfer and triton do not apply them"
    yield Hit(said, s.place("scales_json"))


def _double(s: Subject) -> Iterator[Hit]:
    found = s.model.checkpoint if s.model is not None else None
    named = s.model is not None and ("fp8-kv" in s.model.name.lower() or bool(s.model.asks_for_kv))
    if s.given("scales_json") and ((found is not None and found.scales) or named):
        yield Hit("the checkpoint has KV scales of its own, and a file gives others", s.place("scales_json"))


def _rule(
    name: str,
    severity: Severity,
    title: str,
    why: str,
    fix: str,
    check: Callable[[Subject], Iterator[Hit]],
    source: Source = _SHAPE,
    timeless: bool = True,
) -> Rule:
    return Rule(name, _SGLANG, severity, title, why, fix, source, check, timeless=timeless)


_CAUGHT = "the error is caught: scales become 1.0, and the log still says 'Loaded KV cache scaling factors'"
RULE = (
    _rule(
        "sglang-scales-unreadable", "error", "the scales file cannot be read", _CAUGHT, "give a JSON file", _unreadable
    ),
    _rule(
        "sglang-scales-model-type",
        "error",
        "the scales file has no model_type, or another model's",
        "the key is required though the documented example leaves it out; " + _CAUGHT,
        'add "model_type" as in config.json',
        _with_file(_model_type),
    ),
    _rule(
        "sglang-scales-dtype",
        "error",
        "the scales file is for another dtype",
        _CAUGHT,
        f'write "dtype": "{_DTYPE}"',
        _with_file(_dtype),
    ),
    _rule(
        "sglang-scales-ranks",
        "error",
        "the scales file does not have exactly the ranks 0 to TP - 1",
        _CAUGHT,
        "give every rank its own entry, numbered from 0",
        _with_file(_rank_keys),
    ),
    _rule(
        "sglang-scales-layers",
        "error",
        "the scales file does not have exactly the layers of the model",
        _CAUGHT,
        "give every layer a scale, numbered from 0",
        _with_file(_layer_keys),
    ),
    _rule(
        "sglang-scales-values",
        "error",
        "the scales file holds zero, negative or non-finite scales",
        "the layer's cache is then useless, or runs at another scale",
        "calibrate again",
        _with_file(_values),
    ),
    _rule(
        "sglang-scales-not-e4m3",
        "error",
        "a scales file is given for a cache that is not fp8_e4m3",
        "it is applied to fp8_e4m3 alone",
        "write --kv-cache-dtype fp8_e4m3, or leave the file out",
        _not_e4m3,
        Source("spec", "model_loader/weight_utils.py", "0.5.23"),
        False,
    ),
    _rule(
        "sglang-scales-family",
        "error",
        "a scales file is given for a model that does not read it",
        "only the older dense families have the loader; the others raise RuntimeError",
        "put the scales into the checkpoint",
        _family,
        Source("spec", "models/*.py load_kv_cache_scales", "0.5.23"),
        False,
    ),
    _rule(
        "sglang-scales-not-applied",
        "error",
        "no backend applies scales from a file rightly",
        "the loader sets plain floats and never the values that the kernels read (read, not run)",
        "put the scales into the checkpoint as k_scale and v_scale",
        _used,
        Source("spec", "sglang pull 20705 (closed, not merged), issue 18818; the same code in 0.5.23", "0.5.23"),
        False,
    ),
    _rule(
        "sglang-scales-double",
        "warning",
        "the checkpoint and a file both give scales",
        "which one counts depends on the order of loading",
        "leave the file out",
        _double,
        Source("spec", "sglang issue 18818"),
        False,
    ),
)
