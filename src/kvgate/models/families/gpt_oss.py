"""gpt_oss: even layers have a window of 128 tokens, odd layers see all tokens.

Source: llama.cpp src/models/openai-moe.cpp.
"""

from kvgate.models.layers import EveryNthFull

FAMILY = EveryNthFull(name="gpt_oss", architectures=("gpt-oss",), period=2, window_tokens=None)
