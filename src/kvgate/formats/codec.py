"""Run a codec on arrays: `kvgate.codecs["q4_0"].encode(x)` and back. Shapes, chunks, scales, refusals for all codecs.

Values are float32, float16 or bfloat16, in numpy arrays or torch tensors on any device, of shape [..., dim]; a K or V
cache is (batch, kv_heads, tokens, head_dim). float16 and bfloat16 are widened exactly. Anything else (float64,
integers, complex numbers) is refused: nothing is cast silently. Bytes are uint8 [..., row_bytes(dim)], of the same
library and device, and the same bytes from both libraries.

Arrays need not be contiguous: they are copied. The work runs in chunks that fit a processor's cache, so that
temporaries stay small whatever the size. Tensors that require gradients are detached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from numbers import Real
from typing import TYPE_CHECKING, Any

from kvgate.core.errors import UserError
from kvgate.formats import spec as specs
from kvgate.formats.numerics import Numerics, Overflow, ScaledNumerics
from kvgate.formats.spec import CodecSpec
from kvgate.formats.xp import FLOATS, Namespace, dtype_name, namespace

if TYPE_CHECKING:
    from kvgate.formats.xp import Array

#: float32 elements worked on at once by numpy: 250 KiB, so that a few temporaries stay in the second-level cache. Not a
#: power of two: columns at such distances would fall on each other in the first-level cache (four times slower).
CHUNK_ELEMENTS = 64_000
#: By torch on a processor: its threads meet after each operation, which must be worth it.
TORCH_CHUNK_ELEMENTS = 500_000
#: By torch on an accelerator, where each operation is a launch.
DEVICE_CHUNK_ELEMENTS = 1 << 24


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec's arithmetic on whole arrays.

    `scale` is for codecs whose scale lies outside the cache (fp8, nvfp4's global scale): one positive number, or an
    array that broadcasts against [..., dim] with a last dimension of 1, such as (kv_heads, 1, 1) for one scale a head.
    The dequantized value is code times scale.
    """

    spec: CodecSpec

    @property
    def name(self) -> str:
        return self.spec.name

    def encode(self, x: Array, *, scale: Array | float | None = None, overflow: Overflow = "saturate") -> Array:
        """Pack values [..., dim] into uint8 [..., row_bytes(dim)].

        Raises:
            UserError: dtype, last dimension, scale or policy do not fit; the message says what does.
        """
        job = _Job(self, x, scale, overflow)
        out = job.xp.empty((*job.lead, job.row_bytes), "u8")
        flat = out.reshape(job.lines, job.bytes_a_line)
        with job.xp.quiet():
            for part, values in job.chunks():
                flat[part] = job.encode(values, part).reshape(-1, job.bytes_a_line)
        return out

    def decode(self, packed: Array, *, dim: int | None = None, scale: Array | float | None = None) -> Array:
        """Unpack uint8 [..., row_bytes(dim)] into float32 [..., dim].

        Args:
            dim: elements of a row, to be checked against the bytes; by default what the bytes say.

        Raises:
            UserError: not bytes, or not whole rows.
        """
        numerics = self._numerics()
        xp = namespace(packed)
        if packed.dtype != xp.empty((0,), "u8").dtype:
            raise UserError(f"{self.name} decodes uint8 bytes, not {dtype_name(packed)}")
        if packed.ndim == 0:
            raise UserError(f"{self.name} decodes arrays of at least one dimension [..., row_bytes]")
        row_bytes, lead = packed.shape[-1], tuple(packed.shape[:-1])
        found = self.spec.row_dim(row_bytes)
        if dim is not None and dim != found:
            raise UserError(
                f"a row of {dim} elements takes {self.spec.row_bytes(dim)} bytes in {self.name}; got {row_bytes}"
            )
        factor = _scale_rows(self, scale, lead, xp)
        lines = _Lines.of(self.spec, numerics, prod(lead), found, row_bytes, factor)
        factor = lines.spread(factor, xp)
        source = xp.contiguous(packed).reshape(lines.count, lines.bytes_each)
        out = xp.empty((*lead, found), "f32")
        flat = out.reshape(lines.count, lines.width)
        with xp.quiet():
            for part in lines.parts(xp):
                _decode_into(lines.fold(flat[part]), numerics, lines.fold(source[part]), xp, _of(factor, part))
        return out

    def roundtrip(self, x: Array, *, scale: Array | float | None = None, overflow: Overflow = "saturate") -> Array:
        """decode(encode(x)) in the dtype of `x` (rounded half to even), as attention would read it back."""
        job = _Job(self, x, scale, overflow)
        return job.collect(x.dtype, lambda v, p: _decode(job.numerics, job.encode(v, p), job.xp, _of(job.factor, p)))

    def error_bound(self, x: Array, *, scale: Array | float | None = None, overflow: Overflow = "saturate") -> Array:
        """float32 [..., dim]: no finite element of decode(encode(x)) is further from x than this."""
        job = _Job(self, x, scale, overflow)

        def bound(values: Array, part: slice) -> Array:
            if isinstance(job.numerics, ScaledNumerics):
                found = job.numerics.error_bound(values, job.xp, _of(job.factor, part), job.overflow)
            else:
                found = job.numerics.error_bound(values, job.xp)
            return job.xp.broadcast(found, values.shape)

        return job.collect(job.xp.empty((0,), "f32").dtype, bound)

    def _numerics(self) -> Numerics:
        if self.spec.numerics is None:
            raise UserError(f"{self.name} has a size here but no arithmetic", allowed=sorted(codecs))
        return self.spec.numerics


@dataclass(frozen=True, slots=True)
class _Lines:
    """How an array is cut: `count` lines of `width` elements and `bytes_each` bytes, worked on `step` at a time."""

    unit: str
    count: int
    width: int
    bytes_each: int

    @classmethod
    def of(cls, spec: CodecSpec, numerics: Numerics, rows: int, dim: int, row_bytes: int, factor: Array) -> _Lines:
        many_scales = factor is not None and factor.shape[0] != 1
        if numerics.unit == "row" or (numerics.unit == "element" and many_scales):
            return cls("row", rows, dim, row_bytes)
        return cls(numerics.unit, rows * dim // spec.block, spec.block, spec.block_bytes)

    def spread(self, factor: Array, xp: Namespace) -> Array:
        """Scales of rows [1, 1] or [rows, 1] -> of lines."""
        if factor is None or factor.shape[0] in (1, self.count):
            return factor
        return xp.repeat(factor, self.count // factor.shape[0] if factor.shape[0] else 1)

    def parts(self, xp: Namespace) -> Iterator[slice]:
        step = max(1, _chunk_elements(xp) // max(1, self.width))
        # Rows without elements hold no bytes: there is nothing to work on.
        count = self.count if self.width else 0
        return (slice(a, min(a + step, count)) for a in range(0, count, step))

    def fold(self, part: Array) -> Array:
        """What the numerics see: free elements lie in one line."""
        return part.reshape(1, -1) if self.unit == "element" else part


class _Job:
    """One checked call on values."""

    def __init__(self, codec: Codec, x: Array, scale: Array | float | None, overflow: Overflow) -> None:
        self.numerics = codec._numerics()
        self.xp = xp = namespace(x)
        if x.ndim == 0:
            raise UserError(f"{codec.name} encodes arrays of at least one dimension [..., dim]")
        if dtype_name(x) not in FLOATS:
            raise UserError(
                f"{codec.name} encodes float32, float16 or bfloat16, not {dtype_name(x)}",
                fix="convert the array first: nothing is cast silently",
            )
        if overflow not in _policies(self.numerics):
            raise UserError(f"{codec.name} has no overflow policy {overflow!r}", allowed=_policies(self.numerics))
        self.overflow = overflow
        self.lead, dim = tuple(x.shape[:-1]), x.shape[-1]
        self.row_bytes = codec.spec.row_bytes(dim)
        factor = _scale_rows(codec, scale, self.lead, xp)
        self.cut = _Lines.of(codec.spec, self.numerics, prod(self.lead), dim, self.row_bytes, factor)
        self.lines, self.bytes_a_line = self.cut.count, self.cut.bytes_each
        self.factor = self.cut.spread(factor, xp)
        self.shape = tuple(x.shape)
        self._values = xp.plain(x).reshape(self.lines, self.cut.width)

    def chunks(self) -> Iterator[tuple[slice, Array]]:
        for part in self.cut.parts(self.xp):
            values = self.cut.fold(self.xp.widen(self._values[part]))
            yield part, self.xp.in_columns(values) if self.numerics.columns else values

    def encode(self, values: Array, part: slice) -> Array:
        if isinstance(self.numerics, ScaledNumerics):
            return self.numerics.encode_blocks(values, self.xp, _of(self.factor, part), self.overflow)
        return self.numerics.encode_blocks(values, self.xp)

    def collect(self, dtype: Any, work: Callable[[Array, slice], Array]) -> Array:
        """`work` on each chunk, joined to an array of the shape of x."""
        out = self.xp.empty_of(self.shape, dtype)
        flat = out.reshape(self.lines, self.cut.width)
        with self.xp.quiet():
            for part, values in self.chunks():
                flat[part] = work(values, part).reshape(-1, self.cut.width)
        return out


def _chunk_elements(xp: Namespace) -> int:
    if xp.on_processor:
        return CHUNK_ELEMENTS if xp.name == "numpy" else TORCH_CHUNK_ELEMENTS
    return DEVICE_CHUNK_ELEMENTS


def _decode_into(out: Array, numerics: Numerics, packed: Array, xp: Namespace, factor: Array) -> None:
    if isinstance(numerics, ScaledNumerics):
        out[...] = numerics.decode_blocks(packed, xp, factor)
    else:
        numerics.decode_into(out, packed, xp)


def _decode(numerics: Numerics, packed: Array, xp: Namespace, factor: Array) -> Array:
    if isinstance(numerics, ScaledNumerics):
        return numerics.decode_blocks(packed, xp, factor)
    return numerics.decode_blocks(packed, xp)


def _policies(numerics: Numerics) -> tuple[str, ...]:
    return numerics.overflows if isinstance(numerics, ScaledNumerics) else ("saturate",)


def _of(factor: Array, part: slice) -> Array:
    """The scales of a chunk; one scale for all stays one."""
    return factor if factor is None or factor.shape[0] == 1 else factor[part]


def _scale_rows(codec: Codec, scale: Any, lead: tuple[int, ...], xp: Namespace) -> Array:
    """float32 [1, 1] or [rows, 1], all positive and finite; None for codecs that find their own."""
    if not isinstance(codec.spec.numerics, ScaledNumerics):
        if scale is not None:
            raise UserError(f"{codec.name} finds its own scales and takes none")
        return None
    if scale is None:
        return xp.full((1, 1), 1.0, "f32")
    if _is_number(scale):
        number = xp.full((), _bounded(scale), "f32")
        _check_scale(codec, number, xp)
        return number.reshape(1, 1)
    if not xp.owns(scale):
        raise UserError(f"the scale of {codec.name} must be a number or an array like the values ({xp.where_it_is})")
    if dtype_name(scale) not in FLOATS:
        raise UserError(f"the scale of {codec.name} must be float32, float16 or bfloat16, not {dtype_name(scale)}")
    scale = xp.widen(xp.plain(scale))
    _check_scale(codec, scale, xp)
    if prod(scale.shape) == 1:
        return scale.reshape(1, 1)
    full = (*lead, 1)
    if scale.ndim > len(full) or any(
        have not in (1, want) for have, want in zip(scale.shape[::-1], full[::-1], strict=False)
    ):
        raise UserError(
            f"a scale of shape {tuple(scale.shape)} does not fit values of shape {(*lead, '...')}".replace("'", ""),
            fix=f"give one number, or a shape that broadcasts to {full}: one scale a head is (kv_heads, 1, 1)",
        )
    return xp.contiguous(xp.broadcast(scale, full)).reshape(-1, 1)


def _is_number(scale: Any) -> bool:
    """A Python number, or numpy's scalar of one."""
    return isinstance(scale, Real) and not isinstance(scale, bool)


def _bounded(scale: Any) -> float:
    try:
        return float(scale)
    except OverflowError:
        return float("inf")


def _check_scale(codec: Codec, scale: Array, xp: Namespace) -> None:
    bad = ~((scale > 0) & xp.isfinite(scale))
    if xp.any(bad):
        flat = int(xp.argmax(xp.cast(bad, "u8").reshape(1, -1))[0, 0])
        place, value = _place(flat, tuple(scale.shape)), float(scale.reshape(-1)[flat])
        which = f" of element {place}" if place else ""
        raise UserError(f"the scale{which} of {codec.name} is {value:g}; scales are positive and finite")


def _place(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    place: list[int] = []
    for size in reversed(shape):
        place.insert(0, flat % size)
        flat //= size
    return tuple(place)


class _Codecs(Mapping[str, Codec]):
    """Every registered codec that has arithmetic, by canonical id. An unknown id raises `UnknownCodec`."""

    def __getitem__(self, name: str) -> Codec:
        return Codec(specs.codec(name))

    def __iter__(self) -> Iterator[str]:
        return (c.name for c in specs.codecs() if c.numerics is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"codecs({', '.join(self)})"


codecs: Mapping[str, Codec] = _Codecs()
