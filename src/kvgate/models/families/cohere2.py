"""cohere2: three layers with a window, then one that sees all tokens.

Source: llama.cpp src/models/cohere2.cpp.
"""

from kvgate.models.layers import EveryNthFull

FAMILY = EveryNthFull(name="cohere2", architectures=("cohere2",), period=4, window_tokens=None)
