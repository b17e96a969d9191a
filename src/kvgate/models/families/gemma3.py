"""gemma3: five layers with a window, then one that sees all tokens. Seen: 3 of 18 layers full in the 270M model.

Source: llama.cpp src/models/gemma3.cpp.
"""

from kvgate.models.layers import EveryNthFull

FAMILY = EveryNthFull(name="gemma3", architectures=("gemma3",), period=6, window_tokens=0)
