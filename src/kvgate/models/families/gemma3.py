"""gemma3: five layers with a window, then one that sees all tokens. Seen: 3 of 18 layers full in the 270M model.

Source: llama.cpp src/models/gemma3.cpp; transformers 5.19 configuration_gemma3.py. In a `config.json`, `layer_types`
wins over `sliding_window_pattern`, and 6 stands where neither is given. The published 4B file leaves out its heads.
"""

from kvgate.models.config_windows import Windowed, every_nth
from kvgate.models.layers import EveryNthFull

FAMILY = EveryNthFull(name="gemma3", architectures=("gemma3",), period=6, window_tokens=0)
CONFIG_FAMILY = Windowed(
    name="gemma3",
    model_types=("gemma3", "gemma3_text"),
    rule=every_nth(6),
    note="no layer_types: every sliding_window_pattern-th layer (6 where absent) sees all tokens",
    defaults={"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
)
