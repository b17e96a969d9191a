"""Makes compressed_tensors_kv.npz: KV scales and FP8 codes as compressed-tensors computes them.

    PYTHON tests/golden/make_compressed_tensors.py tests/golden

needs an interpreter that has compressed-tensors (0.17.0) and torch. Strategies "tensor" and "attn_head", the two that a
checkpoint's `kv_cache_scheme` may state.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.quantization.utils import calculate_qparams

FP8 = torch.float8_e4m3fn


def main(folder: Path) -> None:
    gen = torch.Generator().manual_seed(3)
    # [batch, kv_heads, tokens, head_dim], as the cache keeps it; heads of different sizes, the last one zero.
    x = torch.randn(1, 4, 6, 16, generator=gen) * torch.tensor([0.05, 1.0, 30.0, 0.0]).reshape(1, 4, 1, 1)
    x = x + 0.0  # compressed-tensors adds a zero point, which makes -0 a 0: no negative zeros here
    data: dict[str, np.ndarray] = {"x": x.numpy()}
    for strategy, axes in (("tensor", (0, 1, 2, 3)), ("attn_head", (0, 2, 3))):
        args = QuantizationArgs(num_bits=8, type="float", strategy=strategy, symmetric=True)
        low, high = x.amin(axes, keepdim=True)[0], x.amax(axes, keepdim=True)[0]
        scale, zero = calculate_qparams(low, high, args)
        scale, zero = (scale.reshape(1), zero.reshape(1)) if strategy == "tensor" else (scale, zero)
        codes = quantize(x, scale, zero, args, dtype=FP8)
        back = dequantize(codes, scale, zero, args, dtype=torch.float32)
        data[f"scale_{strategy}"] = scale.numpy()
        data[f"codes_{strategy}"] = codes.view(torch.uint8).numpy()
        data[f"values_{strategy}"] = back.float().numpy()
        data[f"amax_{strategy}"] = torch.maximum(high, -low).numpy()
    path = folder / "compressed_tensors_kv.npz"
    np.savez_compressed(path, **data)
    note = {
        "how_made": "tests/golden/make_compressed_tensors.py",
        "source": "compressed_tensors.quantization: calculate_qparams, quantize, dequantize",
        "compressed_tensors": version("compressed-tensors"),
        "torch": torch.__version__,
    }
    path.with_suffix(".json").write_text(json.dumps(note, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
