"""Hadamard rotation before quantization: `+hadamard` as llama.cpp applies it, `+hadamard_random`, and `+none`.

x' = x H with the normalised Sylvester matrix H (entries +-1/sqrt(n), natural order, H = H^T, H H = I), block-diagonal
where the head is longer than n. Scores stay: (q H) . (k H) = q . k; for V the output is multiplied by H once more.
Rotating K and V inside the cache (encode x H, decode x' H) is the same as rotating q and the output.

* `hadamard`: K takes the largest power of two that divides head_dim, V always 64; nothing is rotated where 64 does not
  divide head_dim or where the side is not quantized. K and V are decided apart.
* `hadamard_random`: random signs first, x' = (x * s) H, with the largest power of two that divides head_dim for K and V
  alike (QuaRot's form). The signs are ours: bits of SHA-256 of a fixed seed, so that they do not change with a library.
* `none`: asks an engine to leave out the rotation that it would apply by itself.

Shapes: any array [..., head_dim]. Bytes: a rotation changes none.
Departs: llama.cpp multiplies by the matrix, or on some backends runs a fast transform; the last bits of its float32
result differ from ours. It also wants all layers of one cache to have one head size (the engine's own rule, in
`engines/_llama_rotation.py`); here each layer is decided by itself. vLLM's int4_per_token_head has its own signs.
Source: llama.cpp src/llama-kv-cache.cpp at b11434 (pull request 21038); QuaRot, arXiv 2404.00456.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, ClassVar

from kvgate.core.errors import UserError
from kvgate.core.source import Source
from kvgate.formats.spec import KVSide
from kvgate.methods.spec import BoundTransform, Role, Storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvgate.formats.xp import Array

SMALLEST = 64
#: Codecs that hold values as they are: nothing to gain from a rotation.
PLAIN = ("native", "f32", "f16", "bf16")
SIGN_SEED = 20260401

_LLAMA_CPP = Source("spec", "llama.cpp src/llama-kv-cache.cpp, pull request 21038", "b11434")
_QUAROT = Source("spec", "QuaRot, arXiv 2404.00456, section 3; signs from SHA-256 of a fixed seed")
_GRAMMAR = Source("spec", "docs/contracts.md, recipe grammar")


def power_of_two_in(dim: int) -> int:
    """The largest power of two that divides `dim`; 0 for 0."""
    return dim & -dim


def fast_hadamard(x: Array, size: int) -> Array:
    """x [..., dim] times the block-diagonal normalised Sylvester matrix of `size`; a new array of the dtype of x.

    log2(size) rounds of sums and differences, then one multiplication: the same bits from numpy and torch.
    """
    lead, dim = tuple(x.shape[:-1]), int(x.shape[-1])
    half = 1
    while half < size:
        pairs = x.reshape(*lead, dim // (2 * half), 2, half)
        top, bottom = pairs[..., 0, :], pairs[..., 1, :]
        out = _empty_like(pairs)
        out[..., 0, :] = top + bottom
        out[..., 1, :] = top - bottom
        x = out.reshape(*lead, dim)
        half *= 2
    return x * _number(1.0 / sqrt(size), x)


def random_signs(dim: int, seed: int = SIGN_SEED) -> tuple[float, ...]:
    """`dim` signs, +-1: bits of SHA-256 over seed and a counter, lowest bit of each byte first; 1 is minus."""
    bits: list[int] = []
    for block in range(-(-dim // 256)):
        digest = hashlib.sha256(f"kvgate hadamard {seed} {block}".encode()).digest()
        bits += [byte >> i & 1 for byte in digest for i in range(8)]
    return tuple(-1.0 if bit else 1.0 for bit in bits[:dim])


@dataclass(frozen=True)
class Rotation:
    """A bound rotation.

    Attributes:
        size: of the matrix; 0 rotates nothing, and `why_not` says why.
        signs: of the head's elements, applied before the matrix; empty for none.
    """

    size: int
    why_not: str = ""
    signs: tuple[float, ...] = ()

    def forward(self, x: Array) -> Array:
        if not self.size:
            return x
        _check_rows(x, self.size)
        return fast_hadamard(x * _signs(self.signs, x) if self.signs else x, self.size)

    def query(self, q: Array) -> Array:
        return self.forward(q)

    def inverse(self, x: Array) -> Array:
        if not self.size:
            return x
        _check_rows(x, self.size)
        back = fast_hadamard(x, self.size)
        return back * _signs(self.signs, back) if self.signs else back


class TransformMethod:
    """A method of role "transform": it has no bytes of its own."""

    role: ClassVar[Role] = "transform"

    def storage(self, side: KVSide, params: Mapping[str, str]) -> Storage:
        raise TypeError("a transform changes what is stored, not how much")

    def native_layers(self, layer_count: int, *, hybrid: bool) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True)
class Hadamard(TransformMethod):
    """The rotation of llama.cpp."""

    name: str = "hadamard"
    description: str = "normalised Hadamard rotation as llama.cpp applies it: K by head_dim's power of two, V by 64"
    source: Source = _LLAMA_CPP

    def bind(self, kv: KVSide, dim: int, codec: str) -> BoundTransform:
        if codec in PLAIN:
            return Rotation(0, f"{codec} is not quantized")
        if dim == 0 or dim % SMALLEST:
            return Rotation(0, f"a head of {dim} elements is not a multiple of {SMALLEST}")
        return Rotation(power_of_two_in(dim) if kv == "k" else SMALLEST)


@dataclass(frozen=True)
class RandomHadamard(TransformMethod):
    """Random signs, then the matrix."""

    name: str = "hadamard_random"
    description: str = "random signs and a normalised Hadamard rotation, the largest power of two that divides head_dim"
    source: Source = _QUAROT
    seed: int = SIGN_SEED

    def bind(self, kv: KVSide, dim: int, codec: str) -> BoundTransform:
        if codec in PLAIN:
            return Rotation(0, f"{codec} is not quantized")
        size = power_of_two_in(dim)
        if size < 2:
            return Rotation(0, f"no power of two divides a head of {dim} elements")
        return Rotation(size, signs=random_signs(dim, self.seed))


@dataclass(frozen=True)
class NoTransform(TransformMethod):
    """`+none`."""

    name: str = "none"
    description: str = "asks an engine to leave out the transform that it would apply by itself"
    source: Source = _GRAMMAR

    def bind(self, kv: KVSide, dim: int, codec: str) -> BoundTransform:
        return Rotation(0, "asked for none")


def _check_rows(x: Array, size: int) -> None:
    """UserError where x is no floating-point array of whole blocks: integers would come out as zeros."""
    word = str(x.dtype).removeprefix("torch.").lstrip("<>=")
    if "float" not in word and word not in ("f2", "f4", "f8"):
        raise UserError(f"a rotation takes floating-point values, not {word}", fix="convert the array first")
    if x.ndim == 0 or x.shape[-1] % size:
        raise UserError(f"a rotation by {size} takes rows of a multiple of {size}, and the array is {tuple(x.shape)}")


def _empty_like(x: Array) -> Array:
    """An array like x, by the library of x."""
    if hasattr(x, "new_empty"):
        return x.new_empty(x.shape)
    import numpy

    return numpy.empty(x.shape, x.dtype)


def _number(value: float, x: Array) -> Array:
    """A number in the dtype of x: a Python number times float32 is float32 in numpy 2 and in torch."""
    return x.dtype.type(value) if not hasattr(x, "new_empty") else x.new_full((1,), value)


def _signs(signs: tuple[float, ...], x: Array) -> Array:
    if hasattr(x, "new_tensor"):
        return x.new_tensor(signs)
    import numpy

    return numpy.array(signs, x.dtype)


METHOD = (Hadamard(), RandomHadamard(), NoTransform())
