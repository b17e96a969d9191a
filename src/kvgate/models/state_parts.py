"""Recurrent states of fixed size: what one sequence keeps in one layer, in elements, with type and source.

    Mamba-2     conv (heads*head_dim + 2*groups*state) * (kernel-1)      ssm heads*head_dim*state
    Mamba-1     conv inner * (kernel-1)                                  ssm inner*state
    GDN         conv (2*k_heads*k_dim + v_heads*v_dim) * (kernel-1)      ssm v_heads*v_dim*k_dim
    KDA         conv 3*heads*head_dim * (kernel-1)                       ssm heads*head_dim*head_dim, float32
    lightning                                                            ssm heads*head_dim*head_dim
    short conv  conv width * (kernel-1)

Source: vLLM 0.32 vllm/model_executor/layers/mamba/mamba_utils.py (shapes and types of all of these). Convolutions keep
the compute dtype there (`mamba_cache_dtype` auto); the recurrent part follows a key of the configuration where there is
one. Mamba-2's groups are a part of their own, because tensor parallelism pads them up to one a rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Final

from kvgate.core.errors import UserError
from kvgate.core.geometry import StatePart
from kvgate.core.text import one_line
from kvgate.models.config_keys import ConfigKeys

NATIVE: Final = "native"
_VLLM: Final = "vLLM 0.32 mamba_utils.py"
CONV_SOURCE: Final = f"{_VLLM}, mamba_cache_dtype auto"
KDA_SOURCE: Final = f"{_VLLM}, kda_state_dtype"
DTYPE_KEYS: Final = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")
_DTYPES: Final[Mapping[str, str]] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class StateDtype:
    """Type of a recurrent state: "native" or a codec id; an empty source is an assumption."""

    dtype: str
    source: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must be told: nothing where the type is known."""
        if self.source:
            return ()
        what = "the compute dtype" if self.dtype == NATIVE else "float32" if self.dtype == "f32" else self.dtype
        return (f"no {DTYPE_KEYS[0]} in the configuration: recurrent states are assumed to be kept in {what}",)


def state_dtype(keys: ConfigKeys, absent: str) -> StateDtype:
    """The recurrent state's type as the configuration says; `absent`, as an assumption, where it does not.

    Raises:
        UserError: a word that is no float type.
    """
    for name in DTYPE_KEYS:
        word = keys.text(name).removeprefix("torch.")
        if word and word != "auto":
            if word not in _DTYPES:
                raise UserError(
                    f"{keys.label(name)} is {one_line(repr(word), 60)}, not a type of a state",
                    allowed=(*_DTYPES, "auto"),
                )
            return StateDtype(_DTYPES[word], f"{keys.label(name)} of the configuration")
    return StateDtype(absent)


def mamba2_state(
    heads: int, head_dim: int, groups: int, state: int, kernel: int, ssm: StateDtype
) -> tuple[StatePart, ...]:
    """Mamba-2: a convolution over the heads' inputs and both groups' projections, and one matrix a head."""
    return _parts(
        _conv("conv", heads * head_dim, kernel, heads),
        _conv("conv_groups", 2 * groups * state, kernel, groups),
        StatePart("ssm", heads * head_dim * state, ssm.dtype, heads, ssm.source),
    )


def mamba1_state(inner: int, state: int, kernel: int, ssm: StateDtype) -> tuple[StatePart, ...]:
    """Mamba-1: channels without heads."""
    return _parts(_conv("conv", inner, kernel, inner), StatePart("ssm", inner * state, ssm.dtype, inner, ssm.source))


def delta_net_state(
    k_heads: int, k_dim: int, v_heads: int, v_dim: int, kernel: int, ssm: StateDtype
) -> tuple[StatePart, ...]:
    """Gated DeltaNet: a convolution over q, k and v, and one matrix a value head."""
    units = gcd(k_heads, v_heads)
    return _parts(
        _conv("conv", 2 * k_heads * k_dim + v_heads * v_dim, kernel, units),
        StatePart("ssm", v_heads * v_dim * k_dim, ssm.dtype, v_heads, ssm.source),
    )


def kda_state(heads: int, head_dim: int, kernel: int) -> tuple[StatePart, ...]:
    """Kimi Delta Attention: three convolutions and one square matrix a head, which is float32 whatever is asked."""
    return _parts(
        _conv("conv", 3 * heads * head_dim, kernel, heads),
        StatePart("ssm", heads * head_dim * head_dim, "f32", heads, KDA_SOURCE),
    )


def lightning_state(heads: int, head_dim: int, ssm: StateDtype) -> tuple[StatePart, ...]:
    """Lightning attention: one square matrix a head, no convolution."""
    return (StatePart("ssm", heads * head_dim * head_dim, ssm.dtype, heads, ssm.source),)


def short_conv_state(width: int, kernel: int) -> tuple[StatePart, ...]:
    """A short convolution alone."""
    return _parts(_conv("conv", width, kernel, width))


def _conv(name: str, channels: int, kernel: int, units: int) -> StatePart:
    return StatePart(name, channels * (kernel - 1), NATIVE, units, CONV_SOURCE)


def _parts(*parts: StatePart) -> tuple[StatePart, ...]:
    """Without what has no elements (a kernel of 1, no groups)."""
    return tuple(part for part in parts if part.elements)
