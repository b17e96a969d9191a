"""torch's side of the array namespace, for one device. Only used where the caller has imported torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from kvgate.formats.xp import BF16_NAN, F16_NAN, Namespace

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Kind


class TorchNamespace(Namespace):
    """Operations on torch tensors of one device."""

    name = "torch"

    def __init__(self, device: Any) -> None:
        self.torch = torch = sys.modules["torch"]
        self.device = device
        self.on_processor = device.type == "cpu"
        self.where_it_is = f"a torch tensor on {device}"
        self._dtypes: dict[str, Any] = {
            "u8": torch.uint8,
            "i8": torch.int8,
            "i16": torch.int16,
            "i32": torch.int32,
            "i64": torch.int64,
            "f32": torch.float32,
            "f64": torch.float64,
            "bool": torch.bool,
        }
        self._constants: dict[Any, Any] = {}

    def owns(self, a: object) -> bool:
        return isinstance(a, self.torch.Tensor) and a.device == self.device

    def plain(self, a: Array) -> Array:
        return a.detach().contiguous()

    def widen(self, a: Array) -> Array:
        return a.to(self.torch.float32)

    def empty_of(self, shape: Sequence[int], dtype: Any) -> Array:
        return self.torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def _like(self, value: Array | float, other: Array) -> Array:
        """A number as a tensor of the other's dtype: torch would take a wrapped number's reciprocal, or promote."""
        if isinstance(value, self.torch.Tensor):
            return value
        return self.torch.full((1,), value, dtype=other.dtype, device=self.device)

    def empty(self, shape: Sequence[int], kind: Kind) -> Array:
        return self.torch.empty(tuple(shape), dtype=self._dtypes[kind], device=self.device)

    def full(self, shape: Sequence[int], value: float, kind: Kind) -> Array:
        return self.torch.full(tuple(shape), value, dtype=self._dtypes[kind], device=self.device)

    def constant(self, values: tuple[float, ...], kind: Kind) -> Array:
        key = (values, kind)
        if key not in self._constants:
            self._constants[key] = self.torch.tensor(values, dtype=self._dtypes[kind], device=self.device)
        return self._constants[key]

    def cast(self, a: Array, kind: Kind) -> Array:
        if kind in ("u8", "i8") and a.is_floating_point():
            # Twice as fast on a processor as the direct way.
            a = a.to(self.torch.int32)
        return a.to(self._dtypes[kind])

    def in_columns(self, a: Array) -> Array:
        # torch is as fast along short rows, and slow to transpose.
        return a.contiguous()

    def view(self, a: Array, kind: Kind) -> Array:
        dtype = self._dtypes[kind]
        # A slice of one line counts as contiguous and may still lie where the wider kind cannot.
        steps = (a.storage_offset(), *a.stride()[:-1])
        if dtype.itemsize > a.element_size() and any(n * a.element_size() % dtype.itemsize for n in steps):
            a = a.reshape(-1).clone().reshape(a.shape)
        return a.view(dtype)

    def contiguous(self, a: Array) -> Array:
        return a.contiguous()

    def concat(self, parts: Sequence[Array]) -> Array:
        return self.torch.cat(tuple(parts), dim=-1)

    def broadcast(self, a: Array, shape: Sequence[int]) -> Array:
        return a.expand(tuple(shape))

    def repeat(self, a: Array, times: int) -> Array:
        return a.repeat_interleave(times, dim=0)

    def divide(self, a: Array, b: Array | float) -> Array:
        return a / self._like(b, a)

    def where(self, mask: Array, a: Array | float, b: Array | float) -> Array:
        if isinstance(a, self.torch.Tensor):
            return self.torch.where(mask, a, self._like(b, a))
        return self.torch.where(mask, self._like(a, b), b)

    def minimum(self, a: Array, b: Array | float) -> Array:
        return self.torch.minimum(a, self._like(b, a))

    def maximum(self, a: Array, b: Array | float) -> Array:
        return self.torch.maximum(a, self._like(b, a))

    def abs(self, a: Array) -> Array:
        return a.abs()

    def floor(self, a: Array) -> Array:
        return a.floor()

    def ceil(self, a: Array) -> Array:
        return a.ceil()

    def trunc(self, a: Array) -> Array:
        return a.trunc()

    def round_half_even(self, a: Array) -> Array:
        return a.round()

    def copysign(self, a: Array | float, sign: Array) -> Array:
        return self.torch.copysign(self._like(a, sign), sign)

    def isnan(self, a: Array) -> Array:
        return a.isnan()

    def isfinite(self, a: Array) -> Array:
        return a.isfinite()

    def any(self, mask: Array) -> bool:
        return bool(mask.any())

    def max(self, a: Array) -> Array:
        return a.amax(dim=-1, keepdim=True)

    def min(self, a: Array) -> Array:
        return a.amin(dim=-1, keepdim=True)

    def absmax(self, x: Array) -> Array:
        return x.abs().amax(dim=-1, keepdim=True)

    def argmax(self, a: Array) -> Array:
        # torch does not promise the first of equals: take the lowest index among them.
        k = a.shape[-1]
        place = self.torch.arange(k, device=self.device).expand(a.shape)
        largest = a == self.max(a)
        return self.torch.where(largest | a.isnan(), place, k).amin(dim=-1, keepdim=True)

    def take(self, table: Array, index: Array) -> Array:
        if index.dtype not in (self.torch.int32, self.torch.int64):
            index = index.to(self.torch.int32)
        return self.torch.index_select(table, 0, index.reshape(-1)).reshape(index.shape)

    def take_along(self, a: Array, index: Array) -> Array:
        return a.gather(-1, index)

    def bucketize(self, a: Array, edges: tuple[float, ...], *, up: bool) -> Array:
        table = self.torch.tensor(edges, dtype=a.dtype, device=self.device)
        turned = a.ndim == 2 and not a.is_contiguous()
        found = self.torch.bucketize(a.T.contiguous() if turned else a, table, right=up, out_int32=True)
        return (found.T if turned else found).to(self.torch.uint8)

    def matmul(self, a: Array, b: Array) -> Array:
        return a @ b

    def quiet(self) -> AbstractContextManager[Any]:
        return self.torch.no_grad()  # type: ignore[no-any-return]

    def to_f16(self, x: Array) -> Array:
        bits = x.to(self.torch.float16).view(self.torch.int16)
        return self.where(x.isnan(), F16_NAN, bits) if self.has_nan(x) else bits

    def from_f16(self, bits: Array) -> Array:
        return bits.view(self.torch.float16).to(self.torch.float32)

    def to_bf16(self, x: Array) -> Array:
        bits = x.to(self.torch.bfloat16).view(self.torch.int16)
        return self.where(x.isnan(), BF16_NAN, bits) if self.has_nan(x) else bits

    def from_bf16(self, bits: Array) -> Array:
        return bits.view(self.torch.bfloat16).to(self.torch.float32)
