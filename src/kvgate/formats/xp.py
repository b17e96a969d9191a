"""One array namespace over numpy arrays and torch tensors, so that each codec is written once and gives the same bytes.

`namespace(x)` picks by the type of `x`; torch is used only where the caller has imported it. Arrays keep their own
operators (+ - * / & | ^ << >> comparisons, indexing, reshape): the methods here are what differs between the two
libraries, and what has to be bit-equal in both: bit casts, roundings, float16, bfloat16 and E8M0 conversions. The two
sides are in `xp_numpy.py` and `xp_torch.py`.

Kinds are named by strings: "u8" "i8" "i16" "i32" "i64" "f32" "f64" "bool". Bit patterns are signed integers (torch has
few operators on wider unsigned ones). All arithmetic is IEEE float32, one rounding per operator; never fused.
Division by a Python number is `xp.divide`: torch on CUDA would multiply by the reciprocal instead.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from kvgate.core.errors import UserError

if TYPE_CHECKING:
    Array = Any

Kind = Literal["u8", "i8", "i16", "i32", "i64", "f32", "f64", "bool"]

#: Dtypes that codecs take, by name.
FLOATS = ("float32", "float16", "bfloat16")

#: The largest float32 below one half. trunc(x + this) rounds half away from zero without the error that adding 0.5
#: makes just below a half, and at odd integers beyond 2**23.
_BELOW_HALF = 0.49999997
#: The only NaN we write.
F16_NAN, BF16_NAN = 0x7E00, 0x7FC0


class Namespace(ABC):
    """Operations on arrays of one library and device. Reductions run over the last axis and keep it."""

    name: str
    #: Whether arrays lie in the processor's memory; and where they lie, in words.
    on_processor: bool
    where_it_is: str

    # -- arrays as the caller gave them ------------------------------------------------------------------------------

    @abstractmethod
    def owns(self, a: object) -> bool:
        """Whether `a` is an array of this library on this device."""

    @abstractmethod
    def plain(self, a: Array) -> Array:
        """Contiguous, without gradients."""

    @abstractmethod
    def widen(self, a: Array) -> Array:
        """float16, bfloat16 or float32 -> float32, exactly."""

    def in_columns(self, a: Array) -> Array:
        """The same [n, k] array in the order of memory in which work along k is fastest; numpy: stored as [k, n]."""
        return self.contiguous(a.T).T

    @abstractmethod
    def empty_of(self, shape: Sequence[int], dtype: Any) -> Array:
        """Uninitialised, of the library's own dtype."""

    # -- making and converting ---------------------------------------------------------------------------------------

    @abstractmethod
    def empty(self, shape: Sequence[int], kind: Kind) -> Array: ...
    @abstractmethod
    def full(self, shape: Sequence[int], value: float, kind: Kind) -> Array: ...
    @abstractmethod
    def constant(self, values: tuple[float, ...], kind: Kind) -> Array:
        """A one-dimensional array of these numbers; cached, do not write to it."""

    @abstractmethod
    def cast(self, a: Array, kind: Kind) -> Array:
        """By value; floats go to integers toward zero and must be in range. The same array if it has the kind."""

    @abstractmethod
    def view(self, a: Array, kind: Kind) -> Array:
        """The same memory read as another kind; the last axis grows or shrinks with the width. `a` is contiguous."""

    @abstractmethod
    def contiguous(self, a: Array) -> Array: ...
    @abstractmethod
    def concat(self, parts: Sequence[Array]) -> Array:
        """Joined along the last axis."""

    @abstractmethod
    def broadcast(self, a: Array, shape: Sequence[int]) -> Array: ...
    @abstractmethod
    def repeat(self, a: Array, times: int) -> Array:
        """Each line of the first axis so many times in a row."""

    # -- arithmetic --------------------------------------------------------------------------------------------------

    @abstractmethod
    def divide(self, a: Array, b: Array | float) -> Array:
        """Correctly rounded quotient in float32 (float64 where `a` is)."""

    @abstractmethod
    def where(self, mask: Array, a: Array | float, b: Array | float) -> Array:
        """`a` or `b` by mask; a Python number takes the kind of the other."""

    @abstractmethod
    def minimum(self, a: Array, b: Array | float) -> Array: ...
    @abstractmethod
    def maximum(self, a: Array, b: Array | float) -> Array:
        """NaN where either is NaN, like minimum."""

    @abstractmethod
    def abs(self, a: Array) -> Array: ...
    @abstractmethod
    def floor(self, a: Array) -> Array: ...
    @abstractmethod
    def ceil(self, a: Array) -> Array: ...
    @abstractmethod
    def trunc(self, a: Array) -> Array: ...
    @abstractmethod
    def round_half_even(self, a: Array) -> Array: ...
    @abstractmethod
    def copysign(self, a: Array | float, sign: Array) -> Array:
        """float32 `a`, not negative, with the sign of float32 `sign`."""

    @abstractmethod
    def isnan(self, a: Array) -> Array: ...
    @abstractmethod
    def isfinite(self, a: Array) -> Array: ...
    @abstractmethod
    def any(self, mask: Array) -> bool: ...
    def has_nan(self, x: Array) -> bool:
        """Whether any element is NaN; cheaper than asking each."""
        flat = x.reshape(1, -1) if x.ndim != 2 else x
        return 0 not in x.shape and self.any(self.isnan(self.max(flat)))

    @abstractmethod
    def max(self, a: Array) -> Array:
        """NaN if any is NaN, like min. [n, k] -> [n, 1]."""

    @abstractmethod
    def min(self, a: Array) -> Array: ...
    @abstractmethod
    def argmax(self, a: Array) -> Array:
        """Index of the largest, the first on a tie; of the first NaN if there is one. [n, k] -> i64 [n, 1]."""

    @abstractmethod
    def take(self, table: Array, index: Array) -> Array:
        """table[index] for a one-dimensional table and an index of any integer kind and shape."""

    @abstractmethod
    def take_along(self, a: Array, index: Array) -> Array:
        """a[i, index[i, j]]; index is i64."""

    @abstractmethod
    def bucketize(self, a: Array, edges: tuple[float, ...], *, up: bool) -> Array:
        """u8: how many of the ascending edges lie below; a value on an edge counts it if `up`. No NaN in `a`."""

    @abstractmethod
    def matmul(self, a: Array, b: Array) -> Array: ...
    @abstractmethod
    def quiet(self) -> AbstractContextManager[Any]:
        """Without floating-point warnings and without gradients."""

    # -- float16 -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def to_f16(self, x: Array) -> Array:
        """float32 -> i16 bit patterns of float16, half to even, overflow to infinity, one NaN."""

    @abstractmethod
    def from_f16(self, bits: Array) -> Array:
        """i16 bit patterns -> float32, exact."""

    # -- the same for both libraries ---------------------------------------------------------------------------------

    def clip(self, a: Array, low: float, high: float) -> Array:
        return self.minimum(self.maximum(a, low), high)

    def absmax(self, x: Array) -> Array:
        """Largest magnitude over the last axis; NaN if any is NaN."""
        return self.abs(self.maximum(self.max(x), -self.min(x)))

    def first_extreme(self, x: Array) -> Array:
        """The element of largest magnitude with its sign, the first on a tie. [n, k] -> [n, 1]; NaN if any is NaN."""
        high, low = self.max(x), -self.min(x)
        found = self.abs(self.maximum(high, low)) * (1 - 2 * self.cast(low > high, "f32"))
        tie = (high == low) & (high > 0)
        if self.any(tie):
            rows = tie[:, 0]
            some = x[rows]
            found[rows] = self.take_along(some, self.argmax(self.abs(some)))
        return found

    def first_min(self, x: Array) -> Array:
        """The smallest element; of zeros, which are equal, the first one with its sign. [n, k] -> [n, 1]."""
        low = self.min(x)
        zero = low == 0
        if self.any(zero):
            rows = zero[:, 0]
            some = x[rows]
            low[rows] = self.take_along(some, self.argmax(self.cast(some == 0, "u8")))
        return low

    def reciprocal_or_zero(self, d: Array) -> Array:
        """1/d, and 0 where d is 0."""
        return self.where(d == 0, 0.0, self.divide(self.full((1,), 1.0, "f32"), self.where(d == 0, 1.0, d)))

    def round_half_away(self, a: Array) -> Array:
        """roundf: halves go away from zero, exactly, for any float32."""
        return self.trunc(a + self.copysign(_BELOW_HALF, a))

    def round_half_away_to(self, a: Array, kind: Kind) -> Array:
        """`round_half_away` as integers, which must be in range."""
        return self.cast(a + self.copysign(_BELOW_HALF, a), kind)

    def bits(self, x: Array) -> Array:
        """float32 -> i32 bit patterns (a view)."""
        return self.view(x, "i32")

    def from_bits(self, bits: Array) -> Array:
        """i32 bit patterns -> float32 (a view)."""
        return self.view(bits, "f32")

    def bytes_f16(self, x: Array) -> Array:
        """float32 [..., k] -> uint8 [..., 2k], little-endian float16."""
        return self.view(self.contiguous(self.to_f16(x)), "u8")

    def lines(self, a: Array) -> Array:
        """`a` so that its last axis can be viewed as another kind; copied where that is needed."""
        return self.contiguous(a)

    def f16_bytes(self, packed: Array) -> Array:
        """uint8 [..., 2k] -> float32 [..., k]."""
        return self.from_f16(self.view(self.lines(packed), "i16"))

    def power_below(self, x: Array) -> Array:
        """The largest power of two not above |x|; 0 for zero and subnormals, infinity for infinity and NaN."""
        return self.from_bits(self.bits(x) & 0x7F800000)

    def half_ulp_f16(self, x: Array) -> Array:
        """How far at most rounding to float16 moves x: half a place, absolute where x is subnormal; infinite beyond."""
        half = self.maximum(self.power_below(x) * 2.0**-11, 2.0**-25)
        return self.where(self.abs(x) < 65520.0, half, float("inf"))

    def sum_in_order(self, a: Array) -> Array:
        """Sum over the last axis, one element after another, as a plain loop in C does. [n, k] -> [n, 1]."""
        total = a[:, :1]
        for j in range(1, a.shape[-1]):
            total = total + a[:, j : j + 1]
        return total

    def pack_bits(self, q: Array) -> Array:
        """u8 [n, 8k] of 0 or 1 -> [n, k]: element 8j+i is bit i of byte j."""
        groups = q.T.reshape(-1, 8, q.shape[0])
        packed = groups[:, 0]
        for i in range(1, 8):
            packed = packed | groups[:, i] * (1 << i)
        return packed.T

    def unpack_bits(self, packed: Array) -> Array:
        """u8 [n, k] -> [n, 8k] of 0 or 1; the reverse of `pack_bits`."""
        spread = (packed[:, :, None] >> self.constant(tuple(range(8)), "u8")) & 1
        return spread.reshape(packed.shape[0], -1)

    def round_f16(self, x: Array) -> Array:
        """float32 rounded to what float16 holds."""
        return self.from_f16(self.to_f16(x))

    def to_bf16(self, x: Array) -> Array:
        """float32 -> i16 bit patterns of bfloat16, half to even, overflow to infinity, one NaN."""
        b = self.bits(x)
        high = (b + (((b >> 16) & 1) + 0x7FFF)) >> 16
        if self.has_nan(x):
            high = self.where(self.isnan(x), BF16_NAN, high)
        return self.cast(high, "i16")

    def from_bf16(self, bits: Array) -> Array:
        """i16 bit patterns -> float32, exact."""
        return self.from_bits(self.cast(bits, "i32") << 16)

    def bytes_f32(self, x: Array) -> Array:
        """float32 [..., k] -> uint8 [..., 4k], with one NaN: its sign and bits differ between processors."""
        if self.has_nan(x):
            x = self.where(self.isnan(x), float("nan"), x)
        return self.view(self.contiguous(x), "u8")

    def f32_bytes(self, packed: Array) -> Array:
        """uint8 [..., 4k] -> float32 [..., k]."""
        return self.view(self.lines(packed), "f32")

    def exponent(self, x: Array) -> Array:
        """floor(log2 |x|) as i32 for normal float32; -127 for zero and subnormals, 128 for infinity and NaN."""
        return ((self.bits(x) >> 23) & 0xFF) - 127

    def power_of_two(self, e: Array) -> Array:
        """2**e exactly as float32, for i32 e from -149 to 127."""
        normal = self.from_bits((self.maximum(e, -126) + 127) << 23)
        tiny = self.from_bits(
            self.cast(self.full((1,), 1, "i32") << (self.minimum(self.maximum(e, -149), -127) + 149), "i32")
        )
        return self.where(e < -126, tiny, normal)

    def from_e8m0(self, code: Array) -> Array:
        """u8 -> float32 2**(code - 127); 255 is NaN (OCP MX 1.0, section 5.4.1)."""
        power = self.power_of_two(self.minimum(self.cast(code, "i32") - 127, 127))
        return self.where(code == 255, float("nan"), power)


@cache
def numpy_namespace() -> Namespace:
    """The namespace of numpy arrays."""
    from kvgate.formats.xp_numpy import NumpyNamespace

    return NumpyNamespace()


@cache
def _torch_namespace(device: Any) -> Namespace:
    from kvgate.formats.xp_torch import TorchNamespace

    return TorchNamespace(device)


def namespace(x: Array) -> Namespace:
    """The namespace of an array, by its library and device.

    Raises:
        UserError: `x` is neither a numpy array nor a torch tensor; or a masked or sparse one, or one without values.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        if x.layout != torch.strided or x.device.type == "meta":
            word = "on the meta device" if x.device.type == "meta" else str(x.layout).removeprefix("torch.")
            raise UserError(f"codecs take dense tensors with values, not a tensor {word}")
        return _torch_namespace(x.device)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(x, numpy.ndarray):
        if hasattr(x, "mask"):
            raise UserError("codecs take no masked arrays", fix="fill the array first: the mask would be lost")
        return numpy_namespace()
    raise UserError(f"codecs take numpy arrays and torch tensors, not {type(x).__name__}")


def dtype_name(a: Array) -> str:
    """The name of an array's dtype, the same word for both libraries."""
    return str(getattr(a.dtype, "name", a.dtype)).removeprefix("torch.")
