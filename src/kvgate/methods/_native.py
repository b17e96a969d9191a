"""Tokens held native: f32, f16 or bf16 values as bytes, and back to float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.core.errors import UserError

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

NATIVE = ("f32", "f16", "bf16")
_OF_DTYPE = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def native_of(x: Array, owner: str) -> str:
    """The codec of an array's own dtype.

    Raises:
        UserError: a dtype that no cache has.
    """
    word = str(x.dtype).removeprefix("torch.")
    if word not in _OF_DTYPE:
        raise UserError(
            f"{owner} stores {', '.join(_OF_DTYPE)}, not {word}",
            fix="convert the array first: nothing is cast silently",
        )
    return _OF_DTYPE[word]


def to_bytes(xp: Namespace, x: Array, codec: str) -> Array:
    """[..., dim] of any of the three to uint8 [..., 4 dim] or [..., 2 dim]; half to even where `codec` is narrower.

    A copy, always.
    """
    wide = xp.contiguous(xp.widen(xp.plain(x)))
    if codec == "f32":
        from kvgate.methods._arrays import copied

        # Bytes of float32 are a view, and callers use their arrays again.
        return copied(xp, xp.bytes_f32(wide))
    return xp.bytes_f16(wide) if codec == "f16" else xp.view(xp.to_bf16(wide), "u8")


def from_bytes(xp: Namespace, held: Array, codec: str) -> Array:
    """The reverse, float32."""
    held = xp.contiguous(held)
    if codec == "f32":
        return xp.f32_bytes(held)
    return xp.f16_bytes(held) if codec == "f16" else xp.from_bf16(xp.view(held, "i16"))
