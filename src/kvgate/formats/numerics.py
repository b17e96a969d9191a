"""What a block file states about its arithmetic: three functions over an array namespace, and what they take.

A `CodecSpec` carries one of these objects as `numerics`. The functions see plain two-dimensional float32 arrays and
return uint8 arrays (or the reverse); shapes, chunks, scales, refusals and devices are `formats/codec.py`'s. Nothing
here, and nothing in a block file, imports numpy or torch: both come in through `xp`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

#: What one line of the two-dimensional arrays is: a block, a whole row (head_dim of one head of one token), or any
#: number of elements that do not know of each other.
Unit = Literal["block", "row", "element"]
#: What a finite value beyond the largest finite one becomes. "saturate": the largest; "nan"; "inf".
Overflow = Literal["saturate", "nan", "inf"]


class BlockNumerics(ABC):
    """Arithmetic of a codec that finds its own scales.

    Shapes, with n lines: unit "block": x [n, block], bytes [n, block_bytes]; unit "row": x [n, dim], bytes
    [n, row_bytes(dim)]; unit "element": x [n, k], bytes [n, k * block_bytes].
    x is float32; it must not be written to. Bytes are uint8, and contiguous when decoded.

    Attributes:
        unit: see `Unit`.
        columns: whether x shall come as the transpose of a contiguous [block, n] array: operations across a block then
            run along memory, which is several times faster. Arrays made from it keep that order, so `xp.contiguous`
            is needed before a view of another width.
        idempotent: encode(decode(b)) == b for the bytes b of ordinary values: those whose scale is far from where it
            loses places or overflows, and whose spread is not small beside their offset.
        nonfinite: one sentence: what a NaN or an infinity in x becomes.
    """

    unit: ClassVar[Unit] = "block"
    columns: ClassVar[bool] = False
    idempotent: ClassVar[bool] = True
    nonfinite: ClassVar[str] = ""

    @abstractmethod
    def encode_blocks(self, x: Array, xp: Namespace) -> Array:
        """Bytes of each line of `x`."""

    @abstractmethod
    def decode_blocks(self, packed: Array, xp: Namespace) -> Array:
        """float32 values of each line of bytes; any bytes are legal, also those that `encode_blocks` never makes."""

    def decode_into(self, out: Array, packed: Array, xp: Namespace) -> None:
        """`decode_blocks` into a contiguous float32 array; for codecs that can spare the copy."""
        out[...] = self.decode_blocks(packed, xp)

    @abstractmethod
    def error_bound(self, x: Array, xp: Namespace) -> Array:
        """float32, broadcastable to the shape of `x`: |x - decode(encode(x))| is at most this, in exact arithmetic.

        Infinite where a scale or an element overflows. Holds for finite x only; anything where x is not finite.
        """


class ScaledNumerics(ABC):
    """Arithmetic of a codec whose scale comes from outside (per tensor, or per attention head).

    As `BlockNumerics`, with `scale`: float32, [1, 1] or [n, 1], positive and finite. 1.0 where the caller gave none.
    The dequantized value is code * scale.

    Attributes:
        overflows: policies that this codec knows; the caller's choice is one of them.
    """

    unit: ClassVar[Unit] = "element"
    columns: ClassVar[bool] = False
    idempotent: ClassVar[bool] = True
    nonfinite: ClassVar[str] = ""
    overflows: ClassVar[tuple[Overflow, ...]] = ("saturate",)

    @abstractmethod
    def encode_blocks(self, x: Array, xp: Namespace, scale: Array, overflow: Overflow) -> Array:
        """Bytes of each line of `x`."""

    @abstractmethod
    def decode_blocks(self, packed: Array, xp: Namespace, scale: Array) -> Array:
        """float32 values of each line of bytes."""

    @abstractmethod
    def error_bound(self, x: Array, xp: Namespace, scale: Array, overflow: Overflow) -> Array:
        """As `BlockNumerics.error_bound`."""


Numerics = BlockNumerics | ScaledNumerics
