"""gpt_oss: even layers have a window of 128 tokens, odd layers see all tokens.

Source: llama.cpp src/models/openai-moe.cpp; transformers 5.19 configuration_gpt_oss.py.
"""

from kvgate.models.config_windows import Windowed, even_windowed
from kvgate.models.layers import EveryNthFull

FAMILY = EveryNthFull(name="gpt_oss", architectures=("gpt-oss",), period=2, window_tokens=None)
CONFIG_FAMILY = Windowed(
    name="gpt_oss",
    model_types=("gpt_oss",),
    rule=even_windowed,
    note="no layer_types: even layers have the window, as in the family's code",
)
