"""gemma2: even layers have a window, odd layers see all tokens.

Source: llama.cpp src/models/gemma2.cpp.
"""

from kvgate.models.layers import EveryNthFull

FAMILY = EveryNthFull(name="gemma2", architectures=("gemma2",), period=2, window_tokens=4096)
