"""numpy's side of the array namespace."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from kvgate.formats.xp import F16_NAN, Namespace

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Kind


class NumpyNamespace(Namespace):
    """Operations on numpy arrays."""

    name = "numpy"
    on_processor = True
    where_it_is = "a numpy array"

    def __init__(self) -> None:
        import numpy

        self.np = numpy
        self._dtypes: dict[str, Any] = {
            "u8": numpy.dtype("u1"),
            "i8": numpy.dtype("i1"),
            "i16": numpy.dtype("<i2"),
            "i32": numpy.dtype("<i4"),
            "i64": numpy.dtype("<i8"),
            "f32": numpy.dtype("<f4"),
            "f64": numpy.dtype("<f8"),
            "bool": numpy.dtype("?"),
        }
        self._constants: dict[Any, Any] = {}

    def owns(self, a: object) -> bool:
        return isinstance(a, self.np.ndarray)

    def plain(self, a: Array) -> Array:
        return self.np.ascontiguousarray(a).reshape(a.shape)

    def widen(self, a: Array) -> Array:
        if a.dtype.name == "bfloat16":
            return self.from_bf16(a.view(self._dtypes["i16"]))
        return a.astype(self._dtypes["f32"], copy=False)

    def empty_of(self, shape: Sequence[int], dtype: Any) -> Array:
        return self.np.empty(shape, dtype)

    def empty(self, shape: Sequence[int], kind: Kind) -> Array:
        return self.np.empty(shape, self._dtypes[kind])

    def full(self, shape: Sequence[int], value: float, kind: Kind) -> Array:
        return self.np.full(shape, value, self._dtypes[kind])

    def constant(self, values: tuple[float, ...], kind: Kind) -> Array:
        key = (values, kind)
        if key not in self._constants:
            self._constants[key] = self.np.array(values, self._dtypes[kind])
        return self._constants[key]

    def cast(self, a: Array, kind: Kind) -> Array:
        return a.astype(self._dtypes[kind], copy=False)

    def view(self, a: Array, kind: Kind) -> Array:
        return a.view(self._dtypes[kind])

    def contiguous(self, a: Array) -> Array:
        return self.np.ascontiguousarray(a)

    def lines(self, a: Array) -> Array:
        # numpy views a strided array if only its last axis is contiguous: a slice of columns needs no copy.
        return a if a.ndim and a.strides[-1] == a.itemsize else self.contiguous(a)

    def concat(self, parts: Sequence[Array]) -> Array:
        return self.np.concatenate(parts, axis=-1)

    def broadcast(self, a: Array, shape: Sequence[int]) -> Array:
        return self.np.broadcast_to(a, shape)

    def repeat(self, a: Array, times: int) -> Array:
        return self.np.repeat(a, times, axis=0)

    def divide(self, a: Array, b: Array | float) -> Array:
        return a / (b if hasattr(b, "dtype") else a.dtype.type(b))

    def where(self, mask: Array, a: Any, b: Any) -> Array:
        if not hasattr(a, "dtype"):
            a = b.dtype.type(a)
        elif not hasattr(b, "dtype"):
            b = a.dtype.type(b)
        return self.np.where(mask, a, b)

    def clip(self, a: Array, low: float, high: float) -> Array:
        return self.np.clip(a, a.dtype.type(low), a.dtype.type(high))

    def reciprocal_or_zero(self, d: Array) -> Array:
        return self.np.divide(self.np.float32(1), d, out=self.np.zeros_like(d), where=d != 0)

    def sum_in_order(self, a: Array) -> Array:
        total = a[:, :1].copy()
        for j in range(1, a.shape[-1]):
            total += a[:, j : j + 1]
        return total

    def pack_bits(self, q: Array) -> Array:
        if q.flags.c_contiguous:
            return self.np.packbits(q, axis=-1, bitorder="little")
        return super().pack_bits(q)

    def unpack_bits(self, packed: Array) -> Array:
        return self.np.unpackbits(packed, axis=-1, bitorder="little")

    def minimum(self, a: Array, b: Array | float) -> Array:
        return self.np.minimum(a, b if hasattr(b, "dtype") else a.dtype.type(b))

    def maximum(self, a: Array, b: Array | float) -> Array:
        return self.np.maximum(a, b if hasattr(b, "dtype") else a.dtype.type(b))

    def abs(self, a: Array) -> Array:
        return self.np.abs(a)

    def floor(self, a: Array) -> Array:
        return self.np.floor(a)

    def ceil(self, a: Array) -> Array:
        return self.np.ceil(a)

    def trunc(self, a: Array) -> Array:
        return self.np.trunc(a)

    def round_half_even(self, a: Array) -> Array:
        return self.np.rint(a)

    def copysign(self, a: Array | float, sign: Array) -> Array:
        # numpy's own copysign takes three times as long.
        bits = sign.view(self._dtypes["i32"]) & self.np.int32(-(2**31))
        bits |= self.np.asarray(a, self._dtypes["f32"]).view(self._dtypes["i32"])
        return bits.view(self._dtypes["f32"])

    def isnan(self, a: Array) -> Array:
        return self.np.isnan(a)

    def isfinite(self, a: Array) -> Array:
        return self.np.isfinite(a)

    def any(self, mask: Array) -> bool:
        return bool(self.np.count_nonzero(mask))

    def max(self, a: Array) -> Array:
        return a.max(axis=-1, keepdims=True)

    def min(self, a: Array) -> Array:
        return a.min(axis=-1, keepdims=True)

    def argmax(self, a: Array) -> Array:
        return self.np.argmax(a, axis=-1, keepdims=True)

    def take(self, table: Array, index: Array) -> Array:
        # "wrap" is the mode without a check of each index; the transpose keeps the order of memory.
        if index.flags.c_contiguous:
            return self.np.take(table, index, mode="wrap")
        return self.np.take(table, index.T, mode="wrap").T

    def take_along(self, a: Array, index: Array) -> Array:
        return self.np.take_along_axis(a, index, axis=-1)

    def bucketize(self, a: Array, edges: tuple[float, ...], *, up: bool) -> Array:
        count = self.np.zeros_like(a, "u1")
        for edge in edges:
            count += (a >= a.dtype.type(edge)) if up else (a > a.dtype.type(edge))
        return count

    def matmul(self, a: Array, b: Array) -> Array:
        return a @ b

    def quiet(self) -> AbstractContextManager[Any]:
        return self.np.errstate(all="ignore")

    def to_f16(self, x: Array) -> Array:
        bits = x.astype("<f2").view(self._dtypes["i16"])
        if self.has_nan(x):
            bits[self.np.isnan(x)] = F16_NAN
        return bits

    def from_f16(self, bits: Array) -> Array:
        return bits.view("<f2").astype(self._dtypes["f32"])
