"""Which caches llama.cpp rotates (Hadamard) before quantizing, predicted from the head sizes.

K: the type is quantized, all layers of the cache have one head size, and 64 divides it; the matrix has the largest
power of two that divides it. V: the same test on V's head size; the matrix is always 64. LLAMA_ATTN_ROT_DISABLE leaves
both out.
Since pull request 21513 each cache (full, sliding) is decided by itself.
Source: llama.cpp src/llama-kv-cache.cpp at b11434; sizes seen in the load log of b11549.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.enginefacts.facts import EngineFacts

#: The variable that leaves both rotations out, read when a context is created.
DISABLE = "LLAMA_ATTN_ROT_DISABLE"
SMALLEST = 64
#: Types that hold values as they are; anything else is quantized.
PLAIN_CODECS = ("f32", "f16", "bf16")


class Rotation(NamedTuple):
    """Size of the Hadamard matrix for K and for V; 0 is none."""

    k: int
    v: int


def rotation_of_part(
    layers: Sequence[LayerGeometry], k_codec: str, v_codec: str, *, disabled: bool = False
) -> Rotation:
    """Rotation of one cache made of `layers`."""
    if disabled:
        return Rotation(0, 0)
    return Rotation(
        0 if k_codec in PLAIN_CODECS else _matrix([layer.k_dim for layer in layers]),
        # V's matrix stays at the smallest size, whatever the head.
        0 if v_codec in PLAIN_CODECS else min(SMALLEST, _matrix([layer.v_dim for layer in layers])),
    )


def rotations(
    geometry: ModelGeometry, k_codec: str, v_codec: str, *, disabled: bool = False
) -> tuple[tuple[str, int, int], ...]:
    """(kind, k, v) of each cache that the engine will create, in its order."""
    cached = [layer for layer in geometry.layers if layer.kv_heads > 0]  # a recurrent layer keeps no rows to rotate
    full = [layer for layer in cached if layer.window_tokens is None]
    sliding = [layer for layer in cached if layer.window_tokens is not None]
    return tuple(
        (kind, *rotation_of_part(layers, k_codec, v_codec, disabled=disabled))
        for kind, layers in (("full_attention", full), ("sliding_window", sliding))
        if layers
    )


def is_forced(geometry: ModelGeometry, facts: EngineFacts) -> bool:
    """Whether this architecture rotates by a rule of its own, so that nothing is predicted."""
    return any(geometry.architecture.startswith(a) for row in facts.forced_rotation for a in row.architectures)


def _matrix(dims: Sequence[int]) -> int:
    dim = dims[0]
    if len(set(dims)) != 1 or dim == 0 or dim % SMALLEST:
        return 0
    return dim & -dim  # the largest power of two that divides it
