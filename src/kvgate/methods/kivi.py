"""KIVI: keys per channel in groups of tokens, values per token in groups of channels, recent tokens native.

    kivi:bits=2:group=32/residual=128

K (post-RoPE) is cut into groups of g consecutive tokens; each channel of a group has its own scale and zero. V has them
per token and g consecutive channels. Asymmetric: zero = min, scale = (max - min) / (2^b - 1), code = round half to even
of (x - zero) / scale, x' = code * scale + zero.

The residual window R (the recipe's `/residual=`, 128 unless given, a multiple of g): keys wait native until R of them
are there, then all R are quantized at once, so that after n tokens the first n - n mod R are; values are quantized one
by one as they become older than R. Attention of a step sees its own tokens native, also the one that fills the window.

Shapes: (batch, kv_heads, tokens, head_dim). Layout, little end first, the reference's int32 words byte by byte:
K per head and group: codes [head_dim, g * bits / 8] along tokens, then scale and zero [head_dim] as float16.
V per head and token: codes [head_dim * bits / 8] along channels, then scale and zero [head_dim / g] as float16.
Bytes per element: bits / 8 + 4 / g; 2 bits with g = 32 is 3 bits an element.

Departs: the reference divides by a zero range where a group is constant and stores NaN; here scale 0 stores codes 0,
which decodes to the constant. The reference computes in float16; here float32, the stored float16 scale and zero are
what codes are computed against, so that encoding a decoded group changes nothing but rounding.
Source: arXiv 2402.02750, section 4; jy-yuan/KIVI models/llama_kivi.py and quant/new_pack.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.core.source import Source
from kvgate.formats.spec import KVSide
from kvgate.methods._method import GroupCoder, StorageMethod
from kvgate.methods._parameters import Parameter
from kvgate.methods._storage import TokenStorage
from kvgate.methods.lloyd_max import range_db
from kvgate.methods.spec import Flush, Packed, Window

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

RESIDUAL_TOKENS = 128


@dataclass(frozen=True)
class _Bits(TokenStorage):
    bits: int
    group: int


@dataclass(frozen=True)
class KeyStorage(_Bits):
    """Bytes of keys: groups of tokens, each channel with scale and zero."""

    flush: ClassVar[Flush] = "flush"

    @property
    def group_tokens(self) -> int:
        return self.group

    def group_bytes(self, dim: int) -> int:
        return dim * (self.group * self.bits // 8 + 4)

    def windowed(self, window: Window) -> TokenStorage:
        found = super().windowed(window)
        residual = found.window.residual_tokens
        if not residual or residual % self.group:
            raise UserError(
                f"{self.name} flushes whole groups: /residual={residual} is not a positive multiple of {self.group}",
                fix=f"write /residual={max(self.group, (residual or 0) // self.group * self.group)}",
            )
        return found


@dataclass(frozen=True)
class ValueStorage(_Bits):
    """Bytes of values: token by token, groups of channels."""

    def group_bytes(self, dim: int) -> int:
        self.refuse(dim, self.group, f"values are quantized in groups of {self.group} channels")
        return dim * self.bits // 8 + dim // self.group * 4


class _RangeCoder(GroupCoder):
    """Asymmetric codes of the last axis of [..., groups, g], with float16 scale and zero a group."""

    def __init__(self, bits: int, group: int) -> None:
        self.bits, self.group = bits, group

    def to_codes(self, xp: Namespace, x: Array) -> tuple[Array, Array, Array]:
        """Packed codes [..., g * bits / 8], scale and zero as float16 bytes [..., 2]."""
        from kvgate.methods._arrays import pack_codes

        top = float((1 << self.bits) - 1)
        low = xp.round_f16(xp.min(x))
        scale = xp.round_f16(xp.divide(xp.max(x) - low, top))
        # A zero range has scale 0: any code decodes to the zero point.
        safe = xp.where(scale > 0, scale, 1.0)
        codes = xp.clip(xp.round_half_even(xp.divide(x - low, safe)), 0.0, top)
        codes = xp.where(scale > 0, codes, 0.0)
        return pack_codes(xp, xp.cast(codes, "u8"), self.bits), xp.bytes_f16(scale), xp.bytes_f16(low)

    def from_codes(self, xp: Namespace, codes: Array, scale: Array, zero: Array) -> Array:
        from kvgate.methods._arrays import unpack_codes

        q = xp.cast(unpack_codes(xp, codes, self.bits, self.group), "f32")
        return q * xp.f16_bytes(scale) + xp.f16_bytes(zero)


class KeyCoder(_RangeCoder):
    """Groups of tokens, per channel."""

    def __init__(self, bits: int, group: int) -> None:
        super().__init__(bits, group)
        self.group_tokens = group

    def encode(self, x: Array, tables: Packed) -> Packed:
        from kvgate.formats.xp import namespace

        xp = namespace(x)
        batch, heads, tokens, dim = x.shape
        groups = tokens // self.group
        by_channel = xp.contiguous(x.reshape(batch, heads, groups, self.group, dim).swapaxes(-1, -2))
        codes, scale, zero = self.to_codes(xp, by_channel)
        flat = (batch, heads, groups, -1)
        return {"codes": codes.reshape(flat), "scale": scale.reshape(flat), "zero": zero.reshape(flat)}

    def decode(self, packed: Packed, tables: Packed) -> Array:
        from kvgate.formats.xp import namespace

        xp = namespace(packed["codes"])
        batch, heads, groups, _ = packed["codes"].shape
        shape = (batch, heads, groups, packed["scale"].shape[-1] // 2, -1)
        x = self.from_codes(xp, *(packed[n].reshape(shape) for n in ("codes", "scale", "zero")))
        return x.swapaxes(-1, -2).reshape(batch, heads, groups * self.group, -1)


class ValueCoder(_RangeCoder):
    """Groups of channels, per token."""

    def encode(self, x: Array, tables: Packed) -> Packed:
        from kvgate.formats.xp import namespace

        xp = namespace(x)
        codes, scale, zero = self.to_codes(xp, x.reshape(*x.shape[:3], -1, self.group))
        flat = (*x.shape[:3], -1)
        return {"codes": codes.reshape(flat), "scale": scale.reshape(flat), "zero": zero.reshape(flat)}

    def decode(self, packed: Packed, tables: Packed) -> Array:
        from kvgate.formats.xp import namespace

        xp = namespace(packed["codes"])
        lead = tuple(packed["codes"].shape[:3])
        shape = (*lead, packed["scale"].shape[-1] // 2, -1)
        x = self.from_codes(xp, *(packed[n].reshape(shape) for n in ("codes", "scale", "zero")))
        return x.reshape(*lead, -1)


class Kivi(StorageMethod):
    """KIVI."""

    name = "kivi"
    description = "2 or 4 bits asymmetric: keys per channel in groups of tokens, values per token; recent tokens native"
    source = Source("spec", "arXiv 2402.02750; jy-yuan/KIVI models/llama_kivi.py, quant/new_pack.py")
    parameters = (Parameter("bits", 2, allowed=(2, 4)), Parameter("group", 32, allowed=(32, 64, 128)))
    examples: ClassVar[tuple[Mapping[str, str], ...]] = ({}, {"bits": "4"}, {"bits": "2", "group": "64"})
    own_raw = True

    def sized(self, side: KVSide, values: Mapping[str, int]) -> TokenStorage:
        made = KeyStorage if side == "k" else ValueStorage
        return made(self.name, side, Window(RESIDUAL_TOKENS), values["bits"], values["group"])

    def coder(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry, tables: Any) -> _RangeCoder:
        return (KeyCoder if side == "k" else ValueCoder)(values["bits"], values["group"])

    def expected_db(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry) -> float:
        return range_db(values["bits"], values["group"])


METHOD = Kivi()
