"""Rows of packed latents (MLA): one width, one size, no other. Sizes only; the arithmetic is in the block files.

A row is the latent of one token, [compressed K and V | rotary part]; there is one for all heads and no V beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.formats.spec import CodecSpec, KVSide

#: Rotary elements at the end of every packed row that there is.
ROPE_DIM = 64


@dataclass(frozen=True, slots=True)
class MlaRowSpec(CodecSpec):
    """A packed latent.

    Attributes:
        rows: width in elements, rotary part included -> bytes.
        unrotated: width of a latent without a rotary part -> bytes, where the engine fills one in with zeros.
    """

    rows: Mapping[int, int] = field(default_factory=dict)
    unrotated: Mapping[int, int] = field(default_factory=dict)

    def row_bytes(self, dim: int) -> int:
        """Bytes of one latent of `dim` elements; 0 for no elements.

        Raises:
            UserError: this layout has no such width.
        """
        if dim == 0 or dim in self.rows:
            return self.rows.get(dim, 0)
        raise UserError(
            f"{self.name} stores {self._widths()}, and a row of {dim} is none of these",
            fix="bf16 and fp8_e4m3 store latents of any width",
        )

    def row_dim(self, row_bytes: int) -> int:
        """Elements of a row of so many bytes.

        Raises:
            UserError: no row has so many.
        """
        widths = {size: dim for dim, size in self.rows.items()} | {0: 0}
        if row_bytes in widths:
            return widths[row_bytes]
        sizes = " or ".join(str(size) for size in self.rows.values())
        raise UserError(
            f"a row of {self.name} takes {sizes} bytes, not {row_bytes}", fix="give whole rows along the last dimension"
        )

    def slot_bytes(self, layer: LayerGeometry, side: KVSide) -> int:
        """Bytes of one token's latent in one layer; nothing for V, which lies in it.

        Raises:
            UserError: the layer keeps no single latent with 64 rotary elements, or one of another width.
        """
        if layer.kv_heads == 0:
            return 0
        if layer.kv_heads == 1 and (layer.v_dim, layer.rope_dim) == (0, 0) and layer.k_dim in self.unrotated:
            return 0 if side == "v" else self.unrotated[layer.k_dim]
        if layer.kv_heads != 1 or layer.v_dim != 0 or layer.rope_dim != ROPE_DIM:
            raise UserError(
                f"{self.name} stores one latent a token, its last {ROPE_DIM} elements rotary; layer {layer.index} "
                f"({layer.kind}) keeps {layer.kv_heads} heads of {layer.k_dim} and {layer.v_dim}, "
                f"{layer.rope_dim} elements rotary",
                fix="choose fp8_e4m3, or a model with multi-head latent attention",
            )
        return 0 if side == "v" else self.row_bytes(layer.k_dim)

    def _widths(self) -> str:
        return " or ".join(f"rows of {dim} ({dim - ROPE_DIM} and {ROPE_DIM} rotary)" for dim in self.rows)
