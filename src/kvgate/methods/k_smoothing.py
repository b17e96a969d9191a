"""K smoothing: `+smooth_k` takes each channel's mean out of keys before they are quantized.

k' = k - m with one mean per head and channel. For a query q the scores change by q . m, the same for every key, so that
softmax is unchanged; attention may run on k' as it is stored, and only a log-sum-exp handed on needs q . m added back.
What a stream reads back has the mean added, to be the model's keys again.

The mean is that of the first 128 tokens behind the sinks, frozen as float16 and kept with the sequence; until they are
there all tokens stay native. Values are not touched, nor keys that are not quantized.

Shapes: any [..., head_dim]; the mean is (batch, kv_heads, 1, head_dim). Bytes: 2 per head and channel and sequence, and
the native tokens of the warm-up.

Departs: SageAttention takes the mean over all keys of a call, which a growing cache cannot (it would change what is
stored); the frozen mean is ours. A mean per block, or one from a calibration, would do as well.
Source: SageAttention, arXiv 2410.02367, section 4.2; thu-ml/SageAttention sageattention/core.py (km = k.mean over
tokens).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvgate.core.source import Source
from kvgate.formats.spec import KVSide
from kvgate.methods.hadamard import PLAIN, TransformMethod
from kvgate.methods.spec import BoundTransform, Packed

if TYPE_CHECKING:
    from kvgate.formats.xp import Array

WARMUP_TOKENS = 128
MEAN_BYTES = 2

_SAGE = Source("spec", "SageAttention, arXiv 2410.02367, section 4.2; mean frozen over the first 128 tokens")


@dataclass(frozen=True)
class Smoothing:
    """A mean to take out; not fitted to a sequence yet where it is None."""

    mean: Any = None
    why_not: str = ""

    def fit(self, x: Array) -> tuple[BoundTransform, Packed]:
        from kvgate.formats.xp import namespace
        from kvgate.methods._arrays import tree_mean

        xp = namespace(x)
        mean = tree_mean(xp, xp.contiguous(x.swapaxes(-1, -2))).swapaxes(-1, -2)
        held = xp.bytes_f16(xp.contiguous(mean))
        return Smoothing(xp.f16_bytes(held)), {"mean": held}

    def forward(self, x: Array) -> Array:
        return x if self.mean is None else x - self.mean

    def inverse(self, x: Array) -> Array:
        return x if self.mean is None else x + self.mean

    def query(self, q: Array) -> Array:
        return q


@dataclass(frozen=True)
class SmoothKeys(TransformMethod):
    """`+smooth_k`."""

    name: str = "smooth_k"
    description: str = "takes each key channel's mean, frozen over the first 128 tokens, out before quantization"
    source: Source = _SAGE

    def bind(self, kv: KVSide, dim: int, codec: str) -> BoundTransform:
        if kv == "v":
            return Smoothing(why_not="values keep their mean")
        return Smoothing(why_not=f"{codec} is not quantized" if codec in PLAIN else "")

    def warmup(self, kv: KVSide, codec: str) -> tuple[int, int]:
        return (WARMUP_TOKENS, MEAN_BYTES) if kv == "k" and codec not in PLAIN else (0, 0)


METHOD = SmoothKeys()
