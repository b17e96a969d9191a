"""Small model folders for the linter's tests, written byte by byte; and one call that gives ids and severities."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

from kvgate.lint.run import Options, Report, lint

DENSE = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hidden_size": 512,
    "max_position_embeddings": 131072,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}
SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
CT = {"quant_method": "compressed-tensors", "format": "float-quantized"}


def scaled(scheme=SCHEME, **changes):
    """A dense model whose checkpoint asks for an FP8 cache in compressed-tensors' words."""
    return {**DENSE, **changes, "quantization_config": {**CT, "kv_cache_scheme": scheme}}


def modelopt(algorithm, **quantization):
    body = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": algorithm, **quantization}
    return {**DENSE, "quantization_config": body}


def scales(k=0.02, v=0.03, *, layers=2, shape=(1,), name="model.layers.{i}.self_attn.{side}_scale"):
    """Tensors of K and V scales; `k` and `v` are one value, or a list by layer; None leaves the side out."""
    found = {}
    for side, given in (("k", k), ("v", v)):
        for i in range(layers):
            value = given[i] if isinstance(given, list) else given
            if value is not None:
                count = 1
                for d in shape:
                    count *= d
                found[name.format(i=i, side=side)] = ("F32", shape, [value] * count)
    return found


WEIGHT = {"model.embed_tokens.weight": ("F32", (2, 2), [0.0] * 4)}
NAN = float("nan")
MODELS = {
    "dense": (DENSE, {}),
    "dense_file": (DENSE, WEIGHT),
    "qwen2": ({**DENSE, "model_type": "qwen2"}, {}),
    "gemma4": ({**DENSE, "model_type": "mystery"}, {}),
    "uneven": ({**DENSE, "model_type": "mimo_v2_flash"}, {}),
    "head80": ({**DENSE, "head_dim": 80, "hidden_size": 320}, {}),
    "head64": ({**DENSE, "head_dim": 64, "hidden_size": 256}, {}),
    "fp8": ({**DENSE, "quantization_config": {"quant_method": "fp8"}}, {}),
    "gptq": ({**DENSE, "quantization_config": {"quant_method": "gptq", "bits": 8}}, {}),
    "ct_plain": ({**DENSE, "quantization_config": CT}, WEIGHT),
    "scheme": (scaled(), scales()),
    "scheme_int": (scaled({k: v for k, v in SCHEME.items() if k != "type"}), scales()),
    "scheme_group": (scaled({**SCHEME, "strategy": "group"}), scales()),
    "per_head": (scaled({**SCHEME, "strategy": "attn_head"}), scales(shape=(2, 1, 1))),
    "per_head_wrong": (scaled({**SCHEME, "strategy": "attn_head"}), scales(shape=(3, 1, 1))),
    "tensor_many": (scaled(), scales(shape=(2, 1, 1))),
    "zero": (scaled(), scales(k=[0.02, 0.0])),
    "negative": (scaled(), scales(v=[-1.0, 0.03])),
    "nan": (scaled(), scales(v=[0.02, NAN])),
    "inf": (scaled(), scales(v=[0.02, float("inf")])),
    "unit": (scaled(), scales(1.0, 1.0)),
    "unit_one": (scaled(), scales([1.0, 0.5], 1.0)),
    "large": (scaled(), scales([0.02, 0.6])),
    "half": (scaled(), scales([0.02, 0.5])),
    "tiny": (scaled(), scales([0.02, 1e-9])),
    "missing": (scaled(), scales(v=[0.02, None])),
    "promised": (scaled(), WEIGHT),
    "dynamic": (scaled({**SCHEME, "dynamic": True}), WEIGHT),
    "one_side": (scaled(), scales(v=None)),
    "wrong_name": (scaled(), scales(name="model.layers.{i}.self_attn.{side}_cache.{side}_scale")),
    "modelopt_name": (scaled(), scales(name="model.layers.{i}.self_attn.{side}_proj.{side}_scale")),
    "hyv3_name": (scaled(), scales(name="model.layers.{i}.self_attn.{side}_cache.scale")),
    "fused": (scaled(), {f"model.layers.{i}.self_attn.kv_scale": ("F32", (1,), [0.02]) for i in range(2)}),
    "zero_point": (scaled(), {**scales(), "model.layers.0.self_attn.k_zero_point": ("F32", (1,), [3.0])}),
    "zero_point_0": (scaled(), {**scales(), "model.layers.0.self_attn.k_zero_point": ("F32", (1,), [0.0])}),
    "dsa_sinks": ({**DENSE, "model_type": "deepseek_v32", "learnable_sink": True}, {}),
    "affine": (modelopt("NVFP4_AFFINE"), scales()),
    "modelopt_fp8": (modelopt("FP8"), scales()),
    "modelopt_nvfp4": (modelopt("NVFP4"), scales()),
    "modelopt_kv_only": (modelopt("FP8", quant_algo=None), scales()),
}
MODELS["uneven"] = (
    {**DENSE, "model_type": "mimo_v2_flash", "v_head_dim": 64, "hybrid_layer_pattern": [0, 0], "sliding_window": 128},
    {},
)
_NAME = re.compile(r"\{(\w+)\}")
_CODES = {"F32": ("f", 4), "BF16": ("H", 2)}


def pack(tensors):
    """A safetensors file of name -> (dtype, shape, values)."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        code, _ = _CODES[dtype]
        raw = struct.pack(f"<{len(values)}{code}", *values)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def folder(root: Path, name: str) -> Path:
    """The folder of a named model, made on first use."""
    path = root / name
    if not path.exists():
        config, tensors = MODELS[name]
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(config))
        if tensors:
            (path / "model.safetensors").write_bytes(pack(tensors))
    return path


def put(root: Path, text: str) -> str:
    """The text with `{name}` replaced by a model folder, or by the path of an extra file."""
    return _NAME.sub(lambda m: str(folder(root, m[1])) if m[1] in MODELS else str(root / m[1]), text)


def run(root: Path, text: str, **options) -> Report:
    """Lint a text with model folders in place; `log` is text that becomes a file."""
    log = options.pop("log", None)
    if log is not None:
        path = root / "server.log"
        path.write_text(log)
        options["log"] = path
    if "model" in options:
        options["model"] = put(root, options["model"])
    return lint(put(root, text), Options(**options))


def ids(report: Report) -> set[str]:
    return {f.id for f in report.findings}


def severity(report: Report, name: str) -> str:
    return next(f.severity for f in report.findings if f.id == name)
