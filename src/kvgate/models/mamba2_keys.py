"""The `mamba_*` keys of Granite 4, Bamba and Falcon-H1: heads, their size, groups and the kernel of a Mamba-2 layer."""

from __future__ import annotations

from typing import Final

from kvgate.core.errors import UserError
from kvgate.core.geometry import StatePart
from kvgate.models.config_keys import MAX_DIM, MAX_HEADS, ConfigKeys
from kvgate.models.state_parts import StateDtype, mamba2_state

#: What GraniteMoeHybridConfig, BambaConfig and FalconH1Config of transformers take where a file is silent.
DEFAULT_HEADS: Final = 128
DEFAULT_GROUPS: Final = 1
SIZE_KEYS: Final = (
    "mamba_n_heads",
    "mamba_d_head",
    "mamba_d_ssm",
    "mamba_n_groups",
    "mamba_d_state",
    "mamba_d_conv",
    "mamba_expand",
    "mamba_ssm_cache_dtype",
    "mamba_ssm_dtype",
)
_OTHER_KEYS: Final = (
    "mamba_chunk_size",
    "mamba_use_mlp",
    "use_mamba_kernels",
    "mamba_norm_before_gate",
    "mamba_rms_norm",
)


def mamba2_of(keys: ConfigKeys, ssm: StateDtype) -> tuple[tuple[StatePart, ...], tuple[str, ...]]:
    """State of one Mamba-2 layer, and what was taken from the classes' defaults.

    Raises:
        UserError: a key is missing, or heads and sizes do not fit the width.
    """
    ignore_mamba2(keys)
    heads, head_dim, notes = _heads(keys)
    groups = keys.maybe_int("mamba_n_groups", minimum=1, maximum=MAX_HEADS)
    if groups is None:
        groups, notes = (
            DEFAULT_GROUPS,
            (*notes, f"no mamba_n_groups in the configuration: {DEFAULT_GROUPS}, by default"),
        )
    state = keys.integer("mamba_d_state", maximum=MAX_DIM)
    kernel = keys.integer("mamba_d_conv", maximum=MAX_DIM)
    return mamba2_state(heads, head_dim, groups, state, kernel, ssm), (*notes, *ssm.notes)


def ignore_mamba2(keys: ConfigKeys) -> None:
    """Mark the keys that say nothing of a state's size; all of them, if a model has no Mamba layer."""
    keys.ignore(*_OTHER_KEYS)


def _heads(keys: ConfigKeys) -> tuple[int, int, tuple[str, ...]]:
    """Heads and head size, which together are the inner width."""
    notes: tuple[str, ...] = ()
    heads = keys.maybe_int("mamba_n_heads", minimum=1, maximum=MAX_HEADS)
    if heads is None:
        heads, notes = DEFAULT_HEADS, (f"no mamba_n_heads in the configuration: {DEFAULT_HEADS}, by default",)
    inner = _inner(keys)
    # The class takes the word "auto" for "as the width says".
    head_dim = (
        None if keys.raw("mamba_d_head") == "auto" else keys.maybe_int("mamba_d_head", minimum=1, maximum=MAX_DIM)
    )
    if inner is None:
        if head_dim is None:
            raise keys.lacks("mamba_d_head", "mamba_expand")
        return heads, head_dim, notes
    if inner % heads or head_dim not in (None, inner // heads):
        shown = f"{heads} heads" if head_dim is None else f"{heads} heads of {head_dim}"
        raise UserError(
            f"Mamba's {shown} do not make up its inner width of {inner} "
            "(mamba_d_ssm, or mamba_expand times hidden_size)",
            fix="give the config.json as the model's authors published it",
        )
    return heads, inner // heads, notes


def _inner(keys: ConfigKeys) -> int | None:
    inner = keys.maybe_int("mamba_d_ssm", minimum=1, maximum=MAX_DIM)
    expand = keys.maybe_int("mamba_expand", minimum=1, maximum=MAX_HEADS)
    if inner is not None or expand is None:
        return inner
    return expand * keys.integer("hidden_size", maximum=MAX_DIM)
