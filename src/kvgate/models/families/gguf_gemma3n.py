"""gemma3n (GGUF): four layers with a window, then one that sees all tokens; only the first 20 layers own KV.

llama.cpp has both numbers in its code and does not read the file's: a file that says otherwise is refused, because the
engine and the file would disagree. Source: llama.cpp src/models/gemma3n.cpp (set_swa_pattern 5, n_layer_kv_from_start).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.models.arch_keys import ArchKeys
from kvgate.models.gguf_states import layer_flags
from kvgate.models.layers import PATTERN_KEY, WINDOW_KEY, attention_layers, refuse_unknown_keys

OWNING_LAYERS, PERIOD = 20, 5
SHARED_KEY = "attention.shared_kv_layers"
_KNOWN = (
    WINDOW_KEY,
    PATTERN_KEY,
    SHARED_KEY,
    "altup.active_idx",
    "altup.num_inputs",
    "embedding_length_per_layer_input",
)


@dataclass(frozen=True, slots=True)
class Gemma3nGguf:
    name: str = "gemma3n"
    architectures: tuple[str, ...] = ("gemma3n",)

    def layers(self, keys: ArchKeys) -> tuple[LayerGeometry, ...]:
        refuse_unknown_keys(keys, _KNOWN)
        count, window = keys.integer("block_count"), keys.integer(WINDOW_KEY)
        shared = keys.maybe_int(SHARED_KEY)
        if shared is not None and count - shared != OWNING_LAYERS:
            raise UserError(
                f"{keys.architecture}.{SHARED_KEY} is {shared} of {count} layers, and llama.cpp caches the first "
                f"{OWNING_LAYERS}"
            )
        _refuse_another_pattern(keys, count)
        if window < 1:
            raise UserError(f"{keys.architecture}.{WINDOW_KEY} is {window}")
        return tuple(
            layer if (layer.index + 1) % PERIOD == 0 else replace(layer, kind="sliding_window", window_tokens=window)
            for layer in attention_layers(keys)
            if layer.index < OWNING_LAYERS
        )


def _refuse_another_pattern(keys: ArchKeys, count: int) -> None:
    """The period is a number for all layers, or a true for each layer with a window."""
    if isinstance(keys.values.get(f"{keys.architecture}.{PATTERN_KEY}"), tuple):
        flags = layer_flags(keys, PATTERN_KEY) or ()
        as_expected = all(flag == ((n + 1) % PERIOD != 0) for n, flag in enumerate(flags[:count]))
    else:
        as_expected = keys.maybe_int(PATTERN_KEY) in (None, PERIOD)
    if not as_expected:
        raise UserError(f"{keys.architecture}.{PATTERN_KEY} is not that every {PERIOD}th layer sees all tokens")


FAMILY = Gemma3nGguf()
