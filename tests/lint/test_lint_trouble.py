"""Rows of known trouble: each fires when all its conditions hold, and is silent when any one of them does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.core.source import Source
from kvgate.enginefacts.facts import TroubleRow, load
from kvgate.enginefacts.versions import version_of
from kvgate.hardware.device import Device, devices
from kvgate.lint.command import Command, Place, Setting
from kvgate.lint.model_view import ModelView
from kvgate.lint.run import rules
from kvgate.lint.subject import Subject

ENGINES = ("vllm", "sglang", "trtllm", "llama_cpp")
ROWS = [(engine, at, row) for engine in ENGINES for at, row in enumerate(load(engine).trouble)]
RULES = {r.name: r for r in rules()}
SOURCE = Source("assumed", "test")
CT = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}


def word(pattern: str) -> str:
    """Something that a pattern fits."""
    if pattern == "[!f]*":
        return "true"
    if pattern == "[!t]*":
        return "auto"
    return pattern.replace("int?", "int8").replace("*", "x" if pattern == "*" else "")


def dtype(engine: str, pattern: str) -> str:
    facts = load(engine)
    words = [w for d in facts.dtype for w in (d.spelling, *d.aliases)] + [w.spelling for w in facts.word]
    from fnmatch import fnmatchcase

    return next(w for w in words if fnmatchcase(w, pattern))


def device_for(row: TroubleRow) -> Device | None:
    if row.architectures:
        arch = row.architectures[0].replace("*", "2" if row.architectures[0].startswith("gfx94") else "01")
        vendor = row.vendor or ("cpu" if arch.startswith("arm") else "amd")
        return Device(id="test", name="test", vendor=vendor, compute_capability=arch)
    if row.capabilities:
        own = row.capabilities[0]
        return Device(id="test", name="test", vendor="nvidia", compute_capability=own if "." in own else f"{own}.0")
    return Device(id="test", name="test", vendor=row.vendor, compute_capability="9.0") if row.vendor else None


def model_for(row: TroubleRow) -> ModelView | None:
    if not (row.models or row.traits or row.heads):
        return None
    traits = set(row.traits)
    kind = "mla" if "mla" in traits else "full_attention"
    dim = row.heads[0] if row.heads else 128
    layers = [LayerGeometry(0, kind, 2, dim, dim)]
    if "windows" in traits:
        layers.append(LayerGeometry(1, "sliding_window", 2, dim, dim, window_tokens=128))
    if "hybrid" in traits:
        from kvgate.core.geometry import StatePart

        layers.append(LayerGeometry(1, "linear_attention", 0, 0, 0, state=(StatePart("ssm", 4),)))
    config: dict = {"model_type": "mystery"}
    if "kv_scheme" in traits:
        config["quantization_config"] = CT
    if "nvfp4_scheme" in traits:
        config["quantization_config"] = {"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"}
    if "encoder_decoder" in traits:
        config["is_encoder_decoder"] = True
    name = row.models[0].replace("*", "") if row.models else "a/b"
    geometry = ModelGeometry("m", "mystery", tuple(layers), 4096, 1000, SOURCE, layer_count=len(layers))
    return ModelView(name, geometry, config)


def settings_for(engine: str, row: TroubleRow) -> tuple[Setting, ...]:
    found = [Setting(k, f"--{k}", word(p), Place(), k) for k, p in row.flags.items() if p]
    k, v = (row.k_dtypes or row.dtypes), (row.v_dtypes or row.dtypes)
    keys = (("k_dtype", k), ("v_dtype", v)) if engine == "llama_cpp" else (("kv_dtype", row.dtypes),)
    found += [Setting(key, f"--{key}", dtype(engine, p[0]), Place(), key) for key, p in keys if p]
    if row.backends:
        found.append(Setting("backend", "--attention-backend", row.backends[0], Place(), "backend"))
    if row.context_from_tokens:
        found.append(Setting("context_tokens", "-c", str(row.context_from_tokens), Place(), "-c"))
    return tuple(found)


def subject_for(engine: str, row: TroubleRow) -> Subject:
    """A subject for which every condition of the row holds."""
    text = row.since or (f"{version_before(engine, row.until)}" if row.until else load(engine).newest)
    command = Command(engine, "", settings_for(engine, row), {k: word(p) for k, p in row.env.items()})
    version = version_of(text, engine)
    return Subject(command, load(engine), text, version, "known", device_for(row), model_for(row))


def version_before(engine: str, until: str) -> str:
    key = version_of(until, engine)
    return f"b{key[0] - 1}" if engine == "llama_cpp" else f"{key[0]}.{max(key[1] - 1, 0)}.0"


def fires(row: TroubleRow, subject: Subject) -> bool:
    """Whether this row's own words are found; another row of the same id has others."""
    rule = RULES[row.id]
    from kvgate.enginefacts.versions import Holds

    if subject.holds(rule.since, rule.until) is Holds.NO:
        return False
    return any(h.message == row.message for h in rule.check(subject))


@pytest.mark.parametrize(("engine", "at", "row"), ROWS, ids=[f"{r.id}-{at}" for _, at, r in ROWS])
def test_a_row_needs_each_of_its_conditions(engine: str, at: int, row: TroubleRow) -> None:
    """All conditions: found. Any one broken: not found, unless another row of the same id holds then."""
    subject = subject_for(engine, row)
    assert fires(row, subject)

    for broken in broken_subjects(engine, row, subject):
        siblings = [r for _, _, r in ROWS if r.id == row.id and r is not row]
        assert not fires(row, broken) or siblings


def broken_subjects(engine: str, row: TroubleRow, s: Subject) -> list[Subject]:
    """The subject with one condition broken at a time."""
    found = []

    def without(*keys: str) -> Subject:
        kept = tuple(x for x in s.command.settings if x.key not in keys)
        return replace(s, command=replace(s.command, settings=kept))

    def plain(*keys: str) -> Subject:
        native = {"llama_cpp": "f16", "vllm": "float16", "sglang": "bf16", "trtllm": "auto"}[engine]
        if "auto" in row.dtypes or native in row.dtypes:
            native = "turboquant_k8v4" if engine == "vllm" else "mxfp8"
        kept = tuple(replace(x, value=native) if x.key in keys else x for x in s.command.settings)
        return replace(s, command=replace(s.command, settings=kept), model=None if row.traits else s.model)

    if row.dtypes or row.k_dtypes or row.v_dtypes:
        found.append(plain("kv_dtype", "k_dtype", "v_dtype"))
    if row.models or row.traits or row.heads:
        found.append(replace(s, model=None))
        found.append(
            replace(s, model=ModelView("other/model", s.model.geometry if row.traits == () and not row.heads else None))
        )
    if row.capabilities or row.vendor or row.architectures:
        found.append(replace(s, device=None))
        found.append(replace(s, device=devices()["gaudi2"]))
    for key, pattern in row.flags.items():
        if pattern:
            found.append(without(key))
        else:
            extra = Setting(key, f"--{key}", "on", Place(), key)
            found.append(replace(s, command=replace(s.command, settings=(*s.command.settings, extra))))
    if row.backends:
        found.append(without("backend"))
    if row.context_from_tokens:
        found.append(without("context_tokens"))
    if row.until:
        found.append(replace(s, version=version_of(row.until, engine)))
    if row.since:
        key = version_of(row.since, engine)
        found.append(replace(s, version=(key[0] - 1,) if engine == "llama_cpp" else (0, 0, 1)))
    return found
