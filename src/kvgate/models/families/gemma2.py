"""gemma2: even layers have a window, odd layers see all tokens.

Source: llama.cpp src/models/gemma2.cpp; transformers 5.19 configuration_gemma2.py. In a `config.json`, `layer_types`
wins; a window of null or 0 is none.
"""

from kvgate.models.config_windows import Windowed, even_windowed
from kvgate.models.layers import EveryNthFull

FAMILY = EveryNthFull(name="gemma2", architectures=("gemma2",), period=2, window_tokens=4096)
CONFIG_FAMILY = Windowed(
    name="gemma2",
    model_types=("gemma2", "vaultgemma"),
    rule=even_windowed,
    note="no layer_types: even layers have the window, as in the family's code",
)
