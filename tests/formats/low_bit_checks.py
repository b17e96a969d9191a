"""What the tests of FP8, FP4 and per-token-head codecs ask again and again; errors are in float64."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

import kvgate

GOLDEN = Path(__file__).parent.parent / "golden"


def golden(name: str) -> dict[str, np.ndarray]:
    """Arrays of a golden file; its note must say how it was made."""
    assert json.loads((GOLDEN / f"{name}.json").read_text())["how_made"]
    with np.load(GOLDEN / f"{name}.npz") as data:
        return dict(data)


def bf16(bits: np.ndarray) -> np.ndarray:
    """uint16 patterns of bfloat16 -> float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bf16(x: np.ndarray) -> np.ndarray:
    """float32 rounded to bfloat16 by torch."""
    return torch.from_numpy(np.ascontiguousarray(x)).to(torch.bfloat16).float().numpy()


def rows(rng: np.random.Generator, shape: tuple[int, ...], spread: float = 3.0) -> np.ndarray:
    """float32 rows whose sizes differ by powers of e**spread, a channel of them loud."""
    x = rng.standard_normal(shape) * np.exp(spread * rng.standard_normal((*shape[:-1], 1)))
    x[..., 1] *= 12
    return x.astype(np.float32)


def over_bound(name: str, x: np.ndarray, **how: object) -> np.ndarray:
    """|x - decode(encode(x))| over the stated bound, in float64; 0 where both are 0, above 1 where the bound breaks."""
    codec = kvgate.codecs[name]
    back = codec.decode(codec.encode(x, **how), **{k: v for k, v in how.items() if k == "scale"})
    error = np.abs(x.astype(np.float64) - back.astype(np.float64))
    bound = codec.error_bound(x, **how).astype(np.float64)
    with np.errstate(all="ignore"):
        return np.where(error == 0, 0.0, np.where(np.isinf(bound), 0.0, error / bound))


def torch_bytes(name: str, x: np.ndarray, **how: object) -> np.ndarray:
    """The bytes that torch makes of the same values."""
    moved = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in how.items()}
    return kvgate.codecs[name].encode(torch.from_numpy(x), **moved).numpy()


def assert_same_on_torch(name: str, x: np.ndarray, **how: object) -> None:
    """Bytes, and values read back, are the same from numpy and torch."""
    codec = kvgate.codecs[name]
    packed = codec.encode(x, **how)
    scale = how.get("scale")
    np.testing.assert_array_equal(torch_bytes(name, x, **how), packed)
    moved = torch.from_numpy(scale) if isinstance(scale, np.ndarray) else scale
    np.testing.assert_array_equal(
        codec.decode(torch.from_numpy(packed), scale=moved).numpy(), codec.decode(packed, scale=scale)
    )
