"""Codes of fewer than eight bits in bytes, and back. Everything is uint8 [n, ...], little end first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

#: The low half of each of eight bytes.
_LOW_HALVES = 0x0F0F0F0F0F0F0F0F


def pack_halves(q: Array) -> Array:
    """[n, 2k] codes of 4 bits -> [n, k]: byte j holds code j low and code j+k high (ggml)."""
    k = q.shape[-1] // 2
    # A product, because numpy has no fast shift of bytes.
    return q[..., :k] | q[..., k:] * 16


def unpack_halves(packed: Array, xp: Namespace) -> Array:
    """[n, k] -> [n, 2k] codes of 4 bits; the reverse of `pack_halves`. k is a multiple of 8."""
    eight = xp.view(xp.contiguous(packed), "i64")
    return xp.view(xp.concat([eight & _LOW_HALVES, (eight >> 4) & _LOW_HALVES]), "u8")


def pack_pairs(q: Array) -> Array:
    """[n, 2k] codes of 4 bits -> [n, k]: byte j holds code 2j low and code 2j+1 high (OCP, vLLM)."""
    return q[..., 0::2] | q[..., 1::2] * 16


def unpack_pairs(packed: Array, xp: Namespace) -> Array:
    """[n, k] -> [n, 2k] codes of 4 bits; the reverse of `pack_pairs`."""
    out = xp.empty((*packed.shape[:-1], 2 * packed.shape[-1]), "u8")
    out[..., 0::2] = packed & 15
    out[..., 1::2] = packed >> 4
    return out


def pack_bits(q: Array, xp: Namespace) -> Array:
    """[..., 8k] of 0 or 1 -> [..., k]: code 8j+i is bit i of byte j."""
    return xp.pack_bits(q.reshape(-1, q.shape[-1])).reshape(*q.shape[:-1], -1)


def unpack_bits(packed: Array, xp: Namespace) -> Array:
    """[..., k] -> [..., 8k] of 0 or 1; the reverse of `pack_bits`."""
    return xp.unpack_bits(packed.reshape(-1, packed.shape[-1])).reshape(*packed.shape[:-1], -1)
