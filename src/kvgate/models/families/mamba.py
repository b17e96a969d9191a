"""mamba: state-space layers only (Mamba, Falcon-Mamba; Mamba-2), so nothing grows and no KV recipe changes anything.

Mamba-1 has an inner width of `intermediate_size`, else `expand` times the width; Mamba-2 has `num_heads` of `head_dim`.
Sources: transformers MambaConfig, FalconMambaConfig, Mamba2Config; vLLM 0.32 mamba.py, mamba2.py. In GGUF files (mamba,
mamba2) every block has a state: llama.cpp src/models/mamba.cpp, mamba2.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, StatePart
from kvgate.models.arch_keys import MAX_LAYERS as MAX_BLOCKS
from kvgate.models.arch_keys import ArchKeys
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_DIM, MAX_HEADS, MAX_LAYERS, ConfigKeys
from kvgate.models.gguf_states import GROUPED_SSM_KEYS, SSM_KEYS, grouped_state, plain_state
from kvgate.models.layers import refuse_unknown_keys
from kvgate.models.state_parts import NATIVE, StateDtype, mamba1_state, mamba2_state, state_dtype

#: Words of geometry for the two generations.
PLAIN_KIND, GROUPED_KIND = "mamba", "mamba2"


@dataclass(frozen=True, slots=True)
class Mamba:
    """Both generations; `grouped` is Mamba-2."""

    name: str
    model_types: tuple[str, ...]
    grouped: bool

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = keys.integer("num_hidden_layers", "n_layer", maximum=MAX_LAYERS)
        keys.ignore("use_mambapy", "chunk_size", "time_step_rank", "use_mamba_kernels", "intermediate_size")
        ssm = state_dtype(keys, NATIVE)
        states = _grouped(keys, ssm) if self.grouped else _plain(keys, ssm)
        layers = _stack(count, states, grouped=self.grouped)
        return ConfigLayers(layers, count, (), ssm.notes)


def _stack(count: int, states: tuple[StatePart, ...], *, grouped: bool) -> tuple[LayerGeometry, ...]:
    kind = GROUPED_KIND if grouped else PLAIN_KIND
    return tuple(LayerGeometry(n, kind, 0, 0, 0, state=states) for n in range(count))


def _plain(keys: ConfigKeys, ssm: StateDtype) -> tuple[StatePart, ...]:
    inner = keys.maybe_int("intermediate_size", minimum=1, maximum=MAX_DIM)
    if inner is None:
        inner = keys.integer("expand", maximum=MAX_HEADS) * keys.integer("hidden_size", "d_model", maximum=MAX_DIM)
    keys.ignore("expand")
    state, kernel = keys.integer("state_size", maximum=MAX_DIM), keys.integer("conv_kernel", maximum=MAX_DIM)
    return mamba1_state(inner, state, kernel, ssm)


def _grouped(keys: ConfigKeys, ssm: StateDtype) -> tuple[StatePart, ...]:
    keys.ignore("expand")
    return mamba2_state(
        keys.integer("num_heads", maximum=MAX_HEADS),
        keys.integer("head_dim", maximum=MAX_DIM),
        keys.integer("n_groups", maximum=MAX_HEADS),
        keys.integer("state_size", maximum=MAX_DIM),
        keys.integer("conv_kernel", maximum=MAX_DIM),
        ssm,
    )


@dataclass(frozen=True, slots=True)
class MambaGguf:
    """Both generations; `grouped` is Mamba-2."""

    name: str
    architectures: tuple[str, ...]
    grouped: bool

    def layers(self, keys: ArchKeys) -> tuple[LayerGeometry, ...]:
        refuse_unknown_keys(keys, GROUPED_SSM_KEYS if self.grouped else SSM_KEYS)
        count = keys.integer("block_count")
        if not 1 <= count <= MAX_BLOCKS:
            raise UserError(f"{keys.architecture}.block_count is {count}; llama.cpp takes 1 to {MAX_BLOCKS}")
        states = grouped_state(keys) if self.grouped else plain_state(keys)
        return _stack(count, states, grouped=self.grouped)


FAMILY = (MambaGguf("mamba", ("mamba",), grouped=False), MambaGguf("mamba2", ("mamba2",), grouped=True))
CONFIG_FAMILY = (
    Mamba("mamba", ("mamba", "falcon_mamba"), grouped=False),
    Mamba("mamba2", ("mamba2",), grouped=True),
)
