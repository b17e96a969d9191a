"""nemotron_h: Mamba-2, attention, MLP and expert layers in a written order (Nemotron-H, Nemotron Nano 2, Nemotron 3).

`hybrid_override_pattern` has a letter a layer (M Mamba, * attention, - MLP, E experts), `layers_block_type` a word; MLP
and expert layers keep nothing. An MTP block is a small stack of its own: `mtp_hybrid_override_pattern` or
`mtp_layers_block_type`, attention and experts where the file is silent, as the class has it.
Sources: NVIDIA's configuration_nemotron_h.py and transformers NemotronHConfig; vLLM 0.32 nemotron_h.py. In GGUF files
(nemotron_h, nemotron_h_moe) a layer with feed_forward_length is an MLP, one with head_count_kv attention, and one with
neither Mamba: llama.cpp src/llama-model.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.models.arch_keys import ArchKeys
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_DIM, MAX_HEADS, MAX_LAYERS, ConfigKeys
from kvgate.models.config_layers import Heads, heads
from kvgate.models.gguf_states import GROUPED_SSM_KEYS, grouped_state, with_states, without_kv
from kvgate.models.layer_words import check_length, layer_words, unknown_word
from kvgate.models.layers import attention_layers, refuse_unknown_keys
from kvgate.models.mtp import mtp_count
from kvgate.models.state_parts import NATIVE, mamba2_state, state_dtype

KIND = "mamba2"
MAMBA, ATTENTION = "mamba", "attention"
LETTERS: Mapping[str, str] = {"M": MAMBA, "*": ATTENTION, "-": "mlp", "E": "moe"}
#: What the class takes for an MTP block of which a file says nothing.
MTP_DEFAULT = (ATTENTION, "moe")


@dataclass(frozen=True, slots=True)
class NemotronH:
    name: str = "nemotron_h"
    model_types: tuple[str, ...] = ("nemotron_h",)

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        words = _words(keys)
        keys.ignore("chunk_size", "mamba_chunk_size", "mamba_hidden_act", "use_mamba_kernels", "intermediate_size")
        shape = heads(keys)
        ssm = state_dtype(keys, NATIVE)
        states = mamba2_state(
            keys.integer("mamba_num_heads", maximum=MAX_HEADS),
            keys.integer("mamba_head_dim", maximum=MAX_DIM),
            keys.integer("n_groups", "mamba_n_groups", maximum=MAX_HEADS),
            keys.integer("ssm_state_size", "mamba_state_dim", maximum=MAX_DIM),
            keys.integer("conv_kernel", "mamba_d_conv", maximum=MAX_DIM),
            ssm,
        )
        layers = tuple(
            shape.layer(n) if word == ATTENTION else LayerGeometry(n, KIND, 0, 0, 0, state=states)
            for n, word in enumerate(words)
            if word in (ATTENTION, MAMBA)
        )
        mtp, note = _mtp(keys, shape, len(words))
        return ConfigLayers(layers, len(words), mtp, (*(ssm.notes if MAMBA in words else ()), *note))


def _words(keys: ConfigKeys) -> tuple[str, ...]:
    """A known word a layer; the stack's length is the pattern's own, and `num_hidden_layers` must agree with it."""
    words = _pattern(keys, "hybrid_override_pattern")
    if words is None:
        named = keys.words("layers_block_type")
        if named is None:
            raise keys.lacks("hybrid_override_pattern", "layers_block_type")
        words = layer_words(keys, "layers_block_type", len(named), tuple(LETTERS.values())) or ()
    count = keys.maybe_int("num_hidden_layers", minimum=1, maximum=MAX_LAYERS)
    check_length(keys, "hybrid_override_pattern", len(words), len(words) if count is None else count)
    if not words:
        raise UserError(f"{keys.label('hybrid_override_pattern')} names no layers")
    return words


def _pattern(keys: ConfigKeys, name: str) -> tuple[str, ...] | None:
    """Words behind a pattern of letters; some files write the letters as a list."""
    letters = keys.words(name) if isinstance(keys.raw(name), (list, tuple)) else tuple(keys.text(name))
    if not letters:
        return None
    for index, letter in enumerate(letters):
        if letter not in LETTERS:
            raise unknown_word(keys, name, index, letter, tuple(LETTERS))
    return tuple(LETTERS[letter] for letter in letters)


def _mtp(keys: ConfigKeys, shape: Heads, count: int) -> tuple[tuple[LayerGeometry, ...], tuple[str, ...]]:
    blocks = mtp_count(keys)
    words = _pattern(keys, "mtp_hybrid_override_pattern")
    if words is None:
        named = keys.words("mtp_layers_block_type")
        given = None if named is None else layer_words(keys, "mtp_layers_block_type", len(named), (*LETTERS.values(),))
        words = given
    note = () if words is not None or not blocks else ("the MTP block is taken as attention and experts, by default",)
    words = MTP_DEFAULT if words is None else words
    if blocks and MAMBA in words:
        raise UserError("kvgate has no rule for an MTP block with a Mamba layer", fix="leave its pattern out")
    stack = words * blocks
    return tuple(shape.layer(count + n) for n, word in enumerate(stack) if word == ATTENTION), note


@dataclass(frozen=True, slots=True)
class NemotronHGguf:
    name: str = "nemotron_h"
    architectures: tuple[str, ...] = ("nemotron_h", "nemotron_h_moe")

    def layers(self, keys: ArchKeys) -> tuple[LayerGeometry, ...]:
        refuse_unknown_keys(keys, GROUPED_SSM_KEYS)
        full = attention_layers(keys)
        count = keys.integer("block_count") - (keys.maybe_int("nextn_predict_layers") or 0)
        widths = keys.per_layer("feed_forward_length", count)
        if widths is None:
            raise UserError(
                f"the GGUF metadata lacks {keys.architecture}.feed_forward_length, which tells layers apart"
            )
        if any(widths[layer.index] for layer in full):
            raise UserError(
                f"this {keys.architecture} file has layers with KV heads and an MLP: kvgate has no rule for them"
            )
        mamba = [n for n in without_kv(keys, full) if widths[n] == 0]
        return with_states(full, mamba, grouped_state(keys), KIND)


FAMILY = NemotronHGguf()
CONFIG_FAMILY = NemotronH()
