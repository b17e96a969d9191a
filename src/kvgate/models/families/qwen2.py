"""qwen2: a window that is off unless `use_sliding_window`; then layers from `max_window_layers` on have it.

Source: transformers 5.19 configuration_qwen2.py, configuration_qwen3.py, configuration_qwen2_moe.py (where only even
layers below `max_window_layers` have it).
"""

from __future__ import annotations

from kvgate.models.config_keys import MAX_LAYERS, ConfigKeys
from kvgate.models.config_layers import FULL, SLIDING
from kvgate.models.config_windows import Windowed, from_max_window_layers, window_size


def _even_below_max(keys: ConfigKeys, count: int) -> tuple[str, ...]:
    if not keys.flag("use_sliding_window") or window_size(keys) is None:
        return (FULL,) * count
    last = keys.integer("max_window_layers", minimum=0, maximum=MAX_LAYERS)
    return tuple(SLIDING if i % 2 == 0 and i < last else FULL for i in range(count))


CONFIG_FAMILY = (
    Windowed(
        name="qwen2",
        model_types=(
            "qwen2",
            "qwen3",
            "qwen3_moe",
            "qwen2_vl",
            "qwen2_vl_text",
            "qwen2_5_vl",
            "qwen2_5_vl_text",
            "qwen2_5_omni_text",
            "qwen3_vl_text",
            "qwen3_vl_moe_text",
            "qwen3_omni_moe_text",
            "mimo",
        ),
        rule=from_max_window_layers,
    ),
    Windowed(name="qwen2_moe", model_types=("qwen2_moe",), rule=_even_below_max),
)
