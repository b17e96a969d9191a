"""llama4: three layers that attend inside chunks of 8,192 tokens, then one that sees all tokens.

llama.cpp has the chunk size in its code and keeps such layers in its sliding cache; a window of 0 in the file turns
chunks off. Source: llama.cpp src/models/llama4.cpp.
"""

from kvgate.models.layers import EveryNthFull

FAMILY = EveryNthFull(
    name="llama4",
    architectures=("llama4",),
    period=4,
    window_tokens=8192,
    kind="chunked_attention",
    fixed_window=True,
)
