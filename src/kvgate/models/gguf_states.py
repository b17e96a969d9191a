"""Recurrent states as llama.cpp keeps them: R (convolution) and S (recurrence), float32, one row a sequence and layer.

    Mamba, GDN      R = (conv_kernel-1) * (inner_size + 2*group_count*state_size)      S = state_size * inner_size
    KDA             R = 3 * (conv_kernel-1) * head_count * kda.head_dim                S = head_count * kda.head_dim^2
    short conv      R = (l_cache-1) * embedding_length                                 S = 0

Cache types do not touch them. Rollback for speculation multiplies rows and is not counted.
Source: llama.cpp src/llama-hparams.cpp (n_embd_r, n_embd_s), src/llama-memory-recurrent.cpp at b11434; a public load
log of a Qwen3.6-27B file: 598.50 MiB for 4 sequences.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, StatePart
from kvgate.models.arch_keys import ArchKeys

SOURCE: Final = "llama.cpp src/llama-memory-recurrent.cpp at b11434: R and S are F32"
_KERNEL, _INNER, _STATE, _GROUPS = "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.group_count"
#: Keys of a Mamba-1 state, then those of one with groups.
SSM_KEYS: Final = (_KERNEL, _INNER, _STATE, "ssm.time_step_rank", "ssm.dt_b_c_rms")
GROUPED_SSM_KEYS: Final = (*SSM_KEYS, _GROUPS)
KDA_KEYS: Final = (_KERNEL, "kda.head_dim")
SHORT_CONV_KEYS: Final = ("shortconv.l_cache",)


def grouped_state(keys: ArchKeys) -> tuple[StatePart, ...]:
    """State of a Mamba-2 or Gated DeltaNet layer.

    Raises:
        UserError: a key is missing.
    """
    return _ssm(keys, keys.integer(_GROUPS))


def plain_state(keys: ArchKeys) -> tuple[StatePart, ...]:
    """State of a Mamba-1 layer, which has no groups.

    Raises:
        UserError: a key is missing.
    """
    return _ssm(keys, 0)


def kda_gguf_state(keys: ArchKeys) -> tuple[StatePart, ...]:
    """State of a Kimi Delta Attention layer; heads are those of the first layer, as llama.cpp takes them.

    Raises:
        UserError: a key is missing.
    """
    heads = keys.per_layer("attention.head_count", 1)
    if heads is None:
        raise UserError(f"the GGUF metadata lacks {keys.architecture}.attention.head_count")
    dim, kernel = keys.integer("kda.head_dim"), keys.integer(_KERNEL)
    # llama.cpp takes a kernel of 4 where the file says 0.
    return _parts(3 * (kernel - 1 if kernel > 0 else 3) * heads[0] * dim, heads[0] * dim * dim)


def short_conv_gguf_state(keys: ArchKeys) -> tuple[StatePart, ...]:
    """State of a short convolution.

    Raises:
        UserError: a key is missing, or says 0.
    """
    length = keys.integer("shortconv.l_cache")
    if length < 1:
        raise UserError(f"{keys.architecture}.shortconv.l_cache is {length}")
    return _parts((length - 1) * keys.integer("embedding_length"), 0)


def layer_flags(keys: ArchKeys, name: str) -> tuple[bool, ...] | None:
    """One true or false a block, MTP blocks too; None where the file has no such key.

    Raises:
        UserError: another type, or too few entries.
    """
    value = keys.values.get(f"{keys.architecture}.{name}")
    if value is None:
        return None
    count = keys.integer("block_count")
    entries = value if isinstance(value, tuple) else (value,) * count
    # Writers differ: an array of booleans, or of zeros and ones.
    if len(entries) < count or not all(isinstance(v, int) and v in (0, 1) for v in entries):
        raise UserError(f"{keys.architecture}.{name} is not one true or false for each of {count} layers")
    return tuple(bool(v) for v in entries)


def without_kv(keys: ArchKeys, layers: Sequence[LayerGeometry]) -> tuple[int, ...]:
    """Layers of the main stack without KV heads: where llama.cpp keeps a state instead (head_count_kv is 0)."""
    count = keys.integer("block_count") - (keys.maybe_int("nextn_predict_layers") or 0)
    cached = {layer.index for layer in layers}
    return tuple(n for n in range(count) if n not in cached)


def with_states(
    attention: Sequence[LayerGeometry], recurrent: Collection[int], state: tuple[StatePart, ...], kind: str
) -> tuple[LayerGeometry, ...]:
    """`attention` with the layers in `recurrent` replaced by, or joined by, layers that keep only a state."""
    kept = [layer for layer in attention if layer.index not in recurrent]
    states = [LayerGeometry(n, kind, 0, 0, 0, state=state) for n in recurrent]
    return tuple(sorted((*kept, *states), key=lambda layer: layer.index))


def _ssm(keys: ArchKeys, groups: int) -> tuple[StatePart, ...]:
    kernel, inner, state = keys.integer(_KERNEL), keys.integer(_INNER), keys.integer(_STATE)
    return _parts(max(kernel - 1, 0) * (inner + 2 * groups * state), state * inner)


def _parts(conv_elements: int, state_elements: int) -> tuple[StatePart, ...]:
    parts = (StatePart("conv", conv_elements, "f32", 0, SOURCE), StatePart("ssm", state_elements, "f32", 0, SOURCE))
    return tuple(part for part in parts if part.elements)
