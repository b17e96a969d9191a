"""Bytes straight from a geometry, without the planner: what the handed vectors are held against."""

import json
from fractions import Fraction
from pathlib import Path

from kvgate.core.source import Source
from kvgate.models.geometry_from_config import geometry_from_config

VECTORS = json.loads((Path(__file__).parent / "data" / "hybrid_vectors.json").read_text())
#: Packed FP8 rows by (elements, rotated elements): 512 + four float32 scales + 64 in 16 bits, and DeepSeek V4's
#: 448 + seven one-byte scales padded to eight + 64 in 16 bits.
PACKED_BYTES = {(576, 64): 656, (512, 64): 584}
STATE_BYTES = {"native": 2, "bf16": 2, "f16": 2, "f32": 4}


def geometry_of(config, **changes):
    """Geometry of a configuration, with keys of its text part replaced; None takes a key out."""
    config = json.loads(json.dumps(config))
    part = config.get("text_config", config)
    for key, value in changes.items():
        part.pop(key, None)
        if value is not None:
            part[key] = value
    return geometry_from_config(config, "m", Source("file", "config.json"))


def row_bytes(layer, dtype, *, tp=1):
    """One stored row over the heads of one rank, index key included."""
    if not layer.kv_heads:
        return 0
    heads = max(1, layer.kv_heads // tp)
    elements = heads * (layer.k_dim + layer.v_dim)
    if dtype == "bf16":
        return elements * 2 + layer.index_bytes_per_token
    if layer.rope_dim and layer.kind != "mla":
        return PACKED_BYTES[layer.k_dim, layer.rope_dim] + layer.index_bytes_per_token
    return elements + layer.index_bytes_per_token


def token_bytes(layers, dtype, *, tp=1):
    """One token inside all windows; caches that do not grow at all cost nothing a token."""
    return sum(
        (Fraction(row_bytes(x, dtype, tp=tp), x.tokens_per_row) for x in layers if x.fixed_tokens is None), Fraction(0)
    )


def growth_bytes(layers, dtype):
    return token_bytes([x for x in layers if x.grows], dtype)


def state_bytes(layers):
    return sum(part.elements * STATE_BYTES[part.dtype] for x in layers for part in x.state)


def ring_bytes(layers, dtype):
    """Caches of fixed size beside the states."""
    return sum(x.fixed_tokens * row_bytes(x, dtype) for x in layers if x.fixed_tokens is not None)


def sequence_bytes(layers, dtype, tokens):
    total = state_bytes(layers) + ring_bytes(layers, dtype)
    for x in layers:
        if x.fixed_tokens is None:
            held = tokens if x.window_tokens is None else min(tokens, x.window_tokens)
            total += -(-held // x.tokens_per_row) * row_bytes(x, dtype)
    return total


def groups_of(layers):
    """{(kv heads, K, V, window): layers} of layers with rows."""
    found = {}
    for x in layers:
        if x.kv_heads:
            key = (x.kv_heads, x.k_dim, x.v_dim, x.window_tokens)
            found[key] = found.get(key, 0) + 1
    return found
