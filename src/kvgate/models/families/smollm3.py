"""smollm3: layers without RoPE would have the window, which the published models switch off.

Source: transformers 5.19 configuration_smollm3.py.
"""

from __future__ import annotations

from kvgate.models.config_keys import MAX_LAYERS, ConfigKeys
from kvgate.models.config_layers import FULL, SLIDING
from kvgate.models.config_windows import Windowed, window_size


def _rule(keys: ConfigKeys, count: int) -> tuple[str, ...]:
    if not keys.flag("use_sliding_window") or window_size(keys) is None:
        return (FULL,) * count
    with_rope = keys.ints("no_rope_layers", maximum=1)
    interval = keys.maybe_int("no_rope_layer_interval", minimum=1, maximum=MAX_LAYERS) or 4
    if not with_rope or len(with_rope) != count:
        with_rope = tuple(int((i + 1) % interval != 0) for i in range(count))
    return tuple(FULL if rope else SLIDING for rope in with_rope)


CONFIG_FAMILY = Windowed(
    name="smollm3",
    model_types=("smollm3",),
    rule=_rule,
    ignored=("no_rope_layers", "no_rope_layer_interval"),
)
