"""vLLM's NVFP4 pages: where the bytes of rows of `nvfp4` and `nvfp4_4over6` lie in the cache.

A page holds one block of tokens of one layer: [K data | K scales | V data | V scales]. In each side all rows' data
(D/2 bytes a head and token) come before all rows' scales (D/16), in the order of heads and tokens ("HND") or tokens
and heads ("NHD"). K's scales lie in order. V's do for the kernels of compute capability 8, 9 and 12; the kernel of 10
(trtllm-gen) wants them shuffled within four tokens: the scale of token t and group s of S lies at token 4 (t div 4) +
s div (S/4), group 4 (s mod (S/4)) + t mod 4.
Source: vLLM 0.32.0, utils/torch_utils.py (`nvfp4_split_data_scale`), csrc/libtorch_stable/nvfp4_kv_cache_kernels.cu
(`swizzle_scale_offset`), v1/attention/backends/flashinfer.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from kvgate.core.errors import UserError
from kvgate.formats.xp import dtype_name, namespace

if TYPE_CHECKING:
    from kvgate.formats.xp import Array

Order = Literal["HND", "NHD"]


def to_side(rows: Array, order: Order = "HND", *, shuffled: bool = False) -> Array:
    """Rows [kv_heads, tokens, D/2 + D/16] of one page -> its bytes of one side [kv_heads * tokens * (D/2 + D/16)].

    Args:
        shuffled: V on compute capability 10.

    Raises:
        UserError: the bytes are no rows of NVFP4, or the page does not allow the shuffle.
    """
    xp = namespace(rows)
    _check_order(order)
    data_bytes = _check_rows(rows, shuffled)
    data, scales = rows[..., :data_bytes], rows[..., data_bytes:]
    if shuffled:
        scales = _shuffle(scales)
    parts = [(part if order == "HND" else part.swapaxes(0, 1)) for part in (data, scales)]
    return xp.concat([xp.contiguous(part).reshape(-1) for part in parts])


def from_side(side: Array, kv_heads: int, tokens: int, order: Order = "HND", *, shuffled: bool = False) -> Array:
    """Bytes of one side of one page -> rows [kv_heads, tokens, D/2 + D/16]; the reverse of `to_side`.

    Raises:
        UserError: the bytes do not divide among so many heads and tokens.
    """
    xp = namespace(side)
    _check_order(order)
    _check_bytes(side)
    if side.ndim != 1:
        raise UserError(f"a side of a page is one run of bytes, not {tuple(side.shape)}", fix="flatten it first")
    count, size = kv_heads * tokens, side.shape[0]
    if kv_heads < 1 or tokens < 1 or size % (9 * count):
        raise UserError(f"{size} bytes do not hold {kv_heads} heads of {tokens} tokens in NVFP4")
    data_bytes = size * 8 // 9
    shape = (kv_heads, tokens) if order == "HND" else (tokens, kv_heads)
    data, scales = side[:data_bytes].reshape(*shape, -1), side[data_bytes:].reshape(*shape, -1)
    if order == "NHD":
        data, scales = data.swapaxes(0, 1), scales.swapaxes(0, 1)
    if shuffled:
        _check_shuffle(tokens, scales.shape[-1])
        scales = _unshuffle(scales)
    return xp.concat([data, scales])


def _check_rows(rows: Array, shuffled: bool) -> int:
    """Bytes of data in a row."""
    _check_bytes(rows)
    if rows.ndim != 3 or rows.shape[-1] % 9:
        raise UserError(
            f"a page takes rows [kv_heads, tokens, 9/16 of head_dim] of bytes, not {tuple(rows.shape)}",
            fix="encode one page's tokens with nvfp4 first",
        )
    if shuffled:
        _check_shuffle(rows.shape[1], rows.shape[-1] // 9)
    return int(rows.shape[-1]) * 8 // 9


def _check_order(order: str) -> None:
    if order not in get_args(Order):
        raise UserError(f"a page has no order {order!r}", allowed=get_args(Order))


def _check_bytes(a: Array) -> None:
    if dtype_name(a) != "uint8":
        raise UserError(f"a page of the cache is uint8 bytes, not {dtype_name(a)}")


def _check_shuffle(tokens: int, groups: int) -> None:
    if tokens % 4 or groups % 4:
        raise UserError(
            f"V's scales are shuffled by fours: a page of {tokens} tokens and {groups} scales a row is not cut by four",
            fix="vLLM's kernel takes pages of a multiple of 4 tokens and heads of a multiple of 64",
        )


def _shuffle(scales: Array) -> Array:
    """[heads, T/4, 4 t, 4 s, S/4] -> [heads, T/4, 4 s, S/4, 4 t]."""
    heads, tokens, groups = scales.shape
    cut = scales.reshape(heads, tokens // 4, 4, 4, groups // 4)
    return cut.swapaxes(2, 3).swapaxes(3, 4).reshape(heads, tokens, groups)


def _unshuffle(scales: Array) -> Array:
    heads, tokens, groups = scales.shape
    cut = scales.reshape(heads, tokens // 4, 4, groups // 4, 4)
    return cut.swapaxes(3, 4).swapaxes(2, 3).reshape(heads, tokens, groups)
