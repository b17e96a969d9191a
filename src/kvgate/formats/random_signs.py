"""vLLM's randomised Hadamard rotation of INT4 rows: fixed signs, then an unnormalised Walsh-Hadamard butterfly.

Rows of D elements are rotated in D/b blocks, b the largest power of two that divides D; the matrix R = H diag(signs)
of a block has R R' = b, so the inverse is its transpose over b. Source: vLLM 0.32.0,
v1/attention/ops/int4_per_token_head.py, `single_rht`, in its CPU form: the GPU's kernels round to bfloat16 on the
way.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from kvgate.core.errors import UserError

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

#: Bit i is set where sign i is +1: torch's CPU generator, seed 0x9E3779B9, bernoulli(0.5). A shorter block's signs
#: are the first ones of a longer block's; `tests/formats/test_token_head_int4.py` draws them again.
_PLUS = int(
    "0997f98b446bab0fa95bf25fb411a56f3878d702dc888e53e1cd2a784d1b30fa"
    "e2abe201f0c303145af2c8c01d618cccf35c904b14ff7d4926308c5699751b1c"
    "8a9dacb9c9a02476cd26200e3038796e9803b3591b951ddaa8a9c7cb4d6e1c33"
    "fa2043a0320b9848abafc4414aa48b816b7f5438a6443d6c808035b16573590d",
    16,
)
LONGEST_BLOCK = 1024


def block_of(dim: int) -> int:
    """The largest power of two that divides `dim`.

    Raises:
        UserError: it is beyond the signs that we hold.
    """
    block = dim & -dim
    if block > LONGEST_BLOCK:
        raise UserError(f"a head of {dim} rotates blocks of {block}; the signs are known up to {LONGEST_BLOCK}")
    return block


def rotate(x: Array, xp: Namespace) -> Array:
    """R x for each block of each row: float32 [n, D], norm grown by sqrt(b)."""
    block = block_of(x.shape[1])
    return butterfly(x.reshape(-1, block) * _signs(block, xp), xp).reshape(x.shape)


def rotate_back(y: Array, xp: Namespace) -> Array:
    """R' y / b for each block of each row; the inverse of `rotate` up to float32's rounding."""
    block = block_of(y.shape[1])
    return (butterfly(y.reshape(-1, block), xp) * _signs(block, xp) * (1.0 / block)).reshape(y.shape)


def butterfly(x: Array, xp: Namespace) -> Array:
    """H x, unnormalised, natural order, for rows of a power of two: float32 [m, b]. Pairs at distance 1, 2, 4, ..."""
    m, b = x.shape
    h = 1
    while h < b:
        pairs = x.reshape(m, b // (2 * h), 2, h)
        left, right = pairs[:, :, 0, :], pairs[:, :, 1, :]
        x = xp.concat([left + right, left - right]).reshape(m, b)
        h *= 2
    return x


def _signs(block: int, xp: Namespace) -> Array:
    return xp.constant(_sign_values(block), "f32")


@cache
def _sign_values(block: int) -> tuple[float, ...]:
    return tuple(1.0 if _PLUS >> i & 1 else -1.0 for i in range(block))
