"""What methods need of arrays beyond `formats/xp.py`: joins along tokens, sums in a fixed order, stable order, sqrt.

Everything here gives the same bits from numpy and torch: sums are trees of element-wise additions, because the two
libraries' own reductions add in different orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvgate.formats.xp import Namespace

if TYPE_CHECKING:
    from kvgate.formats.xp import Array


def join(xp: Namespace, parts: Sequence[Array], axis: int) -> Array:
    """Arrays one behind the other along `axis`."""
    library: Any = xp
    if len(parts) == 1:
        return parts[0]
    return library.np.concatenate(parts, axis) if xp.name == "numpy" else library.torch.cat(tuple(parts), axis)


def copied(xp: Namespace, x: Array) -> Array:
    """Memory of its own."""
    return x.copy() if xp.name == "numpy" else x.clone()


def stack_last(xp: Namespace, parts: Sequence[Array]) -> Array:
    """[..., k] arrays to [..., k, len(parts)]."""
    return join(xp, [p[..., None] for p in parts], -1)


def sqrt(xp: Namespace, x: Array) -> Array:
    """Square root of float32, rounded correctly: by way of float64, since torch's float32 root is off by one bit."""
    library: Any = xp
    wide = xp.cast(x, "f64")
    return xp.cast(library.np.sqrt(wide) if xp.name == "numpy" else wide.sqrt(), "f32")


def log2(xp: Namespace, x: Array) -> Array:
    """Logarithm to base 2 of float32, by way of float64."""
    library: Any = xp
    wide = xp.cast(x, "f64")
    return xp.cast(library.np.log2(wide) if xp.name == "numpy" else wide.log2(), "f32")


def product(xp: Namespace, x: Array, matrix: Any) -> Array:
    """x [..., n] times a fixed float64 matrix [n, m], summed in float64 and rounded to float32.

    Libraries add in an order that depends on the number of rows. In float64 that changes bits which the rounding to
    float32 drops, so one row gives what it gives among many, from numpy and torch.
    """
    rows = xp.cast(x.reshape(-1, x.shape[-1]), "f64")
    return xp.cast(xp.matmul(rows, as_array(xp, matrix, "f64")), "f32").reshape(*x.shape[:-1], -1)


def tree_sum(x: Array) -> Array:
    """Sum over the last axis, kept: halves are added to each other until one column is left."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        folded = x[..., :half] + x[..., half : 2 * half]
        if x.shape[-1] % 2:
            folded[..., 0] += x[..., -1]
        x = folded
    return x


def tree_mean(xp: Namespace, x: Array) -> Array:
    """Mean over the last axis, kept."""
    return xp.divide(tree_sum(x), float(x.shape[-1]))


def stable_order(xp: Namespace, x: Array) -> Array:
    """i64 indices that sort the last axis, smallest first; equals keep their order."""
    library: Any = xp
    if xp.name == "numpy":
        return library.np.argsort(x, axis=-1, kind="stable")
    return library.torch.sort(x, dim=-1, stable=True).indices


def scatter(xp: Namespace, rows: Array, index: Array, values: Array, *, unused: int) -> Array:
    """rows [..., n] with rows[index] = values along the last axis; an index of `unused` writes nothing."""
    library: Any = xp
    n = rows.shape[-1]
    # One column more takes what is unused.
    wide = xp.concat([rows, xp.full((*rows.shape[:-1], 1), 0.0, "f32")])
    place = xp.where(index == unused, n, index)
    if xp.name == "numpy":
        library.np.put_along_axis(wide, place, values, -1)
    else:
        wide.scatter_(-1, place, values)
    return wide[..., :n]


def as_array(xp: Namespace, values: Any, kind: str = "f32") -> Array:
    """Numbers, a numpy array or a tensor, as an array of this namespace."""
    import numpy as np

    library: Any = xp
    dtype = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "u8": np.uint8}[kind]
    if xp.name == "numpy":
        return np.ascontiguousarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values, dtype=dtype)
    torch = library.torch
    if not isinstance(values, torch.Tensor):
        values = torch.from_numpy(np.ascontiguousarray(values, dtype=dtype))
    return values.to(device=library.device, dtype=getattr(torch, np.dtype(dtype).name))


def pack_codes(xp: Namespace, codes: Array, bits: int) -> Array:
    """u8 codes [..., k] of 1 to 8 bits to bytes [..., ceil(k * bits / 8)], little end first, the last byte padded."""
    if bits == 8:
        return xp.contiguous(codes)
    per = 8 // _common(bits)  # codes that fill whole bytes together
    pad = -codes.shape[-1] % per
    if pad:
        codes = xp.concat([codes, xp.full((*codes.shape[:-1], pad), 0, "u8")])
    lanes = xp.cast(codes.reshape(*codes.shape[:-1], -1, per), "i64")
    word = lanes[..., 0]
    for i in range(1, per):
        word = word | (lanes[..., i] << (bits * i))
    bytes_each = per * bits // 8
    out = stack_last(xp, [xp.cast((word >> (8 * j)) & 255, "u8") for j in range(bytes_each)])
    flat = out.reshape(*out.shape[:-2], -1)
    return flat[..., : -(-(codes.shape[-1] - pad) * bits // 8)]


def unpack_codes(xp: Namespace, packed: Array, bits: int, count: int) -> Array:
    """The reverse of `pack_codes`: u8 [..., count]."""
    if bits == 8:
        return packed
    per = 8 // _common(bits)
    bytes_each = per * bits // 8
    pad = -packed.shape[-1] % bytes_each
    if pad:
        packed = xp.concat([packed, xp.full((*packed.shape[:-1], pad), 0, "u8")])
    lanes = xp.cast(packed.reshape(*packed.shape[:-1], -1, bytes_each), "i64")
    word = lanes[..., 0]
    for j in range(1, bytes_each):
        word = word | (lanes[..., j] << (8 * j))
    mask = (1 << bits) - 1
    out = stack_last(xp, [xp.cast((word >> (bits * i)) & mask, "u8") for i in range(per)])
    return out.reshape(*out.shape[:-2], -1)[..., :count]


def _common(bits: int) -> int:
    """Greatest power of two that divides both 8 and `bits`."""
    return min(8, bits & -bits)
