"""afmoe: `global_attn_every_n_layers` - 1 layers with a window, then one that sees all tokens.

Source: transformers 5.19 configuration_afmoe.py.
"""

from __future__ import annotations

from kvgate.models.config_keys import MAX_LAYERS, ConfigKeys
from kvgate.models.config_layers import FULL, every_nth_full
from kvgate.models.config_windows import Windowed, window_size

_EVERY = "global_attn_every_n_layers"


def _rule(keys: ConfigKeys, count: int) -> tuple[str, ...]:
    if window_size(keys) is None:
        return (FULL,) * count
    return every_nth_full(count, keys.maybe_int(_EVERY, minimum=1, maximum=MAX_LAYERS) or 4)


CONFIG_FAMILY = Windowed(
    name="afmoe",
    model_types=("afmoe",),
    rule=_rule,
    note="no layer_types: every fourth layer, or as global_attn_every_n_layers says, sees all tokens",
    ignored=(_EVERY,),
)
