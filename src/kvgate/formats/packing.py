"""Codes of fewer than eight bits in bytes, and back. Everything is uint8 [n, ...], little end first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace


def pack_halves(q: Array) -> Array:
    """[n, 2k] codes of 4 bits -> [n, k]: byte j holds code j low and code j+k high (ggml)."""
    k = q.shape[-1] // 2
    return q[..., :k] | (q[..., k:] << 4)


def unpack_halves(packed: Array, xp: Namespace) -> Array:
    """[n, k] -> [n, 2k] codes of 4 bits; the reverse of `pack_halves`."""
    return xp.concat([packed & 15, packed >> 4])


def pack_pairs(q: Array) -> Array:
    """[n, 2k] codes of 4 bits -> [n, k]: byte j holds code 2j low and code 2j+1 high (OCP, vLLM)."""
    return q[..., 0::2] | (q[..., 1::2] << 4)


def unpack_pairs(packed: Array, xp: Namespace) -> Array:
    """[n, k] -> [n, 2k] codes of 4 bits; the reverse of `pack_pairs`."""
    out = xp.empty((*packed.shape[:-1], 2 * packed.shape[-1]), "u8")
    out[..., 0::2] = packed & 15
    out[..., 1::2] = packed >> 4
    return out


def pack_bits(q: Array, xp: Namespace) -> Array:
    """[n, 8k] of 0 or 1 -> [n, k]: code 8j+i is bit i of byte j."""
    groups = q.reshape(*q.shape[:-1], -1, 8) << xp.constant(tuple(range(8)), "u8")
    packed = groups[..., 0]
    for i in range(1, 8):
        packed = packed | groups[..., i]
    return packed


def unpack_bits(packed: Array, xp: Namespace) -> Array:
    """[n, k] -> [n, 8k] of 0 or 1; the reverse of `pack_bits`."""
    spread = (packed[..., None] >> xp.constant(tuple(range(8)), "u8")) & 1
    return spread.reshape(*packed.shape[:-1], -1)
