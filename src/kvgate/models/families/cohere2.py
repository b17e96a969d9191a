"""cohere2: three layers with a window, then one that sees all tokens.

Source: llama.cpp src/models/cohere2.cpp; transformers 5.19 configuration_cohere2.py. In a `config.json`, `layer_types`
wins over `sliding_window_pattern`, and 4 stands where neither is given.
"""

from kvgate.models.config_windows import Windowed, every_nth
from kvgate.models.layers import EveryNthFull

FAMILY = EveryNthFull(name="cohere2", architectures=("cohere2",), period=4, window_tokens=None)
CONFIG_FAMILY = Windowed(
    name="cohere2",
    model_types=("cohere2",),
    rule=every_nth(4),
    note="no layer_types: every sliding_window_pattern-th layer (4 where absent) sees all tokens",
)
